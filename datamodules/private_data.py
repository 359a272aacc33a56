"""What a private run asks of a data module, and what one declares public."""

from __future__ import annotations

import inspect
from typing import Protocol


class PrivateData(Protocol):
    """A data module that names its units; everything is known after ``setup("fit")``.

    Its training loader yields :class:`~datamodules.batches.batch.LogicalBatch`: each the part of one Poisson sample
    that this rank computes, in the order of the optimiser's steps, with ``expected_num_units`` equal to
    :attr:`batch_size`. Any object with ``num_units`` and ``rows_per_unit`` serves as a micro-batch. One that can draw
    for correlated noise has ``bands``, which a training sets, and ``sampler``, the
    :class:`~doppel.privacy.sampling.PoissonSampler` of that many bands that its loader draws by. One that knows the
    file of its rows has ``data_file``, a digest like ``data_fingerprint``: runs that read other rows or columns of it
    are on the same data.

    Attributes:
        num_units: N, how many units the training data have.
        batch_size: B, the expected number of units in a step over all ranks; public.
        unit: What the guarantee protects, such as ``utterance`` or ``user``.
        sampling: ``poisson`` where each step draws every unit independently with probability B/N, from a secret that
            the ranks share and nobody else knows.
        data_fingerprint: Tells this data set from others, such as the SHA-256 of the file. The ledger writes down what
            :func:`~doppel.privacy.fingerprint.keyed_fingerprint` makes of it, and nothing else may show it.
        max_rows_per_unit: Rows that represent a unit in a step, at most; None where it is not known.
        privacy_caveat: What ε does not cover, for the ledger; None if there is nothing to say.
    """

    num_units: int
    batch_size: int
    unit: str
    sampling: str
    data_fingerprint: str
    max_rows_per_unit: int | None
    privacy_caveat: str | None


def missing_members(data: object) -> list[str]:
    """Return names of :class:`PrivateData` that a data module does not have; no property is computed."""
    absent = object()
    return [name for name in PrivateData.__annotations__ if inspect.getattr_static(data, name, absent) is absent]


def is_disclosable(data: object) -> bool:
    """Return whether the input of ``predict`` may be counted, shown and hashed: it is public, or a release.

    Of all other text a count is an exact figure of private data, and a plain hash the test of a guess. A data module
    that does not say is taken to read such text.
    """
    return bool(getattr(data, "is_public", False) or getattr(data, "is_released", False))


def reads_public(data: object, verb: str) -> bool:
    """Return whether all that a verb of Lightning reads is declared public: everything, or the file of ``validate`` or
    ``test``."""
    name = {"validate": "val_is_public", "test": "test_is_public"}.get(verb, "is_public")
    return bool(getattr(data, "is_public", False) or getattr(data, name, False))
