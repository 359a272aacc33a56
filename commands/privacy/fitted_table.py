"""The model of a private table: measured, paid for once, and fitted to what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tqdm import tqdm

from commands.privacy.kept_releases import KeptReleases, read_releases
from doppel.privacy.ledger import Ledger
from doppel.tables.marginals import Table

if TYPE_CHECKING:
    from doppel.tables.mixture import Mixture

Method = Literal["aim", "independent"]
_BAR = "{desc}: {n:.0f} % of the budget |{bar}| {elapsed}"


def fitted(
    private: Table,
    mu: float,
    method: Method,
    kept: KeptReleases,
    book: Ledger,
    mechanism: str,
    noise_seed: int | None = None,
) -> Mixture:
    """Measure a table within its budget, or go on with what was measured before, and fit a model to it.

    Formal guarantees:
        The mechanism is on file, and has paid, before this is called. All that leaves the table goes through
        :class:`~doppel.tables.releases.Releases`, which stay within μ; each is noted in the ledger and kept before it
        is used. The model is post-processing.

    Args:
        private: The table.
        mu: Budget.
        method: aim measures pairs of columns that go together, independent each column alone.
        kept: Where releases are kept.
        book: What has paid.
        mechanism: Its id there.
        noise_seed: For tests alone: the guarantee is void.
    """
    from doppel.privacy.secret import Secret  # need torch, which no --help waits for
    from doppel.tables.aim import aim
    from doppel.tables.independent import independent
    from doppel.tables.releases import Releases

    def tell(share: float) -> None:
        bar.update(100 * share - bar.n)

    with tqdm(total=100, desc="measured", unit="%", bar_format=_BAR, disable=None) as bar:
        releases = Releases(
            private,
            mu,
            Secret(noise_seed).stream("marginals"),
            done=kept.records,
            keep=lambda record: kept.add(record, book, mechanism),
            tell=tell,
        )
        return (aim if method == "aim" else independent)(releases)


def fitted_again(path: Path) -> Mixture:
    """The model by what is on file of a table, which nobody opens: post-processing."""
    from doppel.tables import aim, independent

    terms, measurements = read_releases(path)
    refit = independent.refit if terms.get("method") == "independent" else aim.refit
    return refit([len(values) for values in terms["columns"].values()], terms["num_units"], measurements)
