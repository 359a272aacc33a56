"""Prompts for a model of utterances given attributes, from rows like those of the private table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse.typing import PositiveInt

from commands.privacy.marginals import Marginals, fitted_again, read_releases, terms_of
from commands.privacy.stage_release import StageRelease
from commands.run_folder.stage_config import StageConfig
from datamodules.reading.attribute_codes import AttributeCodes
from datamodules.reading.columns import Columns, codes_of
from datamodules.reading.example import Example
from doppel.errors import UserError
from doppel.files import read_json_lines, write_json_lines
from doppel.tables.marginals import Table
from doppel.tables.releases import NoisyMarginals

if TYPE_CHECKING:
    from doppel.tables.mixture import Mixture

#: Name of the releases in the ledger, in the scope of the stage.
STAGE = "marginals"


def attributes(
    stage_dir: Path,
    *,
    out: Path,
    num_samples: PositiveInt,
    seed: int = 1,
    exact: bool = False,
    releases: Path | None = None,
    only: str | None = None,
) -> None:
    """Write prompts for a model of utterances given attributes, from rows like those of the private table.

    Data, unit, attributes and budget are those of the trained stage: its privacy arguments announced the release
    (histogram_share, or histogram_noise_multiplier). Marginals of the table of attributes are measured with noise and
    written to the ledger as one Gaussian release. They are kept beside the prompts, and read instead of measured again.

    Args:
        stage_dir: Folder of the trained model of attributes, RUN/attributes/attributes.
        out: JSON lines of prompts to write.
        num_samples: Prompts to draw.
        seed: Seed of the draw, never of the noise.
        exact: Draw rows as they are in the table: NOT PRIVATE, which the ledger and the report then say.
        releases: What was measured before: draw by it, and read no private file.
        only: Draw rows with these attributes alone, such as "Stars: 5" or "Category: Food | Stars: 5".

    Raises:
        UserError: The stage and the options do not fit together.
        BudgetExceededError: The budget of the scope does not afford the releases any more.
    """
    config = StageConfig.read(stage_dir)
    codes = codes_of(Columns.from_config(config.data))
    if codes is None or config.model.get("source") != "label":
        raise UserError(f"{stage_dir} holds no model of utterances given attributes: its columns name no attributes")
    given = {} if only is None else codes.read_some(only)
    path = releases or out.with_name(f"{out.stem}.releases.jsonl")
    if exact:
        drawn = _exact(stage_dir, codes, path, releases is None, num_samples, seed, given)
    else:
        model = _measured(stage_dir, codes, path) if releases is None else _read_again(codes, path)
        drawn = model.draw(num_samples, seed, given).tolist()
    write_json_lines(out, ({"label": codes.write(row)} for row in drawn))
    noise = "exact: NOT PRIVATE" if exact else "with noise"
    print(f"{out}: {num_samples} prompts of {len(codes.names)} attributes ({noise})")


def _measured(stage_dir: Path, codes: AttributeCodes, path: Path) -> Mixture:
    """The model of the private table.

    Formal guarantees:
        The attributes of a row are a function of this row and of the public schema, so the table of a neighbour differs
        in the rows of one unit. The mechanism with noise multiplier σ is on file before anything is measured, and all
        that is measured is 1/σ-GDP together (:class:`~doppel.tables.releases.Releases`); the stage's own noise was
        calibrated for both. An interrupted one goes on with what the ledger holds.
    """
    if path.is_file():
        return _read_again(codes, path)
    made = StageRelease.declare(stage_dir, "table of attributes", False, STAGE, NoisyMarginals)
    assert made.ledger is not None
    found = Marginals(made.ledger, made.mechanism)
    model = found.fit(terms_of(codes.schema, made.unit, made.num_units, made.sigma), table_of(made.turns, codes))
    found.write(path)
    return model


def table_of(turns: Sequence[Example], codes: AttributeCodes) -> Table:
    """Return the table of the attributes of private turns, each row a function of its turn and of the public schema."""
    rows = [codes.read(turn.label or "") for turn in turns]
    return Table.of_units(rows, [turn.unit for turn in turns], codes.schema.sizes)


def _read_again(codes: AttributeCodes, path: Path) -> Mixture:
    """The model by its releases: post-processing."""
    terms, records = read_releases(path)
    if terms.get("columns") != codes.schema.as_dict() or terms["noise_multiplier"] is None:
        raise UserError("it was measured of other attributes: restore it, or the schema of the run", about=path)
    return fitted_again(terms, records)


def _exact(
    stage_dir: Path,
    codes: AttributeCodes,
    path: Path,
    reads: bool,
    num_samples: int,
    seed: int,
    given: Mapping[int, int],
) -> list[list[int]]:
    """Rows of the table as it is: NOT PRIVATE. They are kept, as private as the table, for later draws."""
    if reads:
        made = StageRelease.declare(stage_dir, "table of attributes", True, STAGE, NoisyMarginals)
        rows = Counter(tuple(codes.read(turn.label or "")) for turn in made.turns)
        told = [{"row": list(row), "count": count} for row, count in rows.items()]
        write_json_lines(path, [terms_of(codes.schema, made.unit, made.num_units, None), *told])
    if not path.is_file():
        raise UserError(f"there are no rows at {path}: restore the file")
    _, *lines = (record for _, record in read_json_lines(path))
    found: Sequence[dict[str, Any]] = [r for r in lines if all(r["row"][p] == v for p, v in given.items())]
    if not found:
        raise UserError("no row of the table has these attributes together: ask for fewer of them")
    return random.Random(seed).choices([r["row"] for r in found], [r["count"] for r in found], k=num_samples)
