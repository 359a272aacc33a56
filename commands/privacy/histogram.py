"""Prompts for a model of utterances given a label, from a noised histogram of the private labels."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jsonargparse.typing import PositiveInt

from commands.privacy.stage_release import StageRelease
from commands.run_folder.ownership import hold
from commands.run_folder.stage_config import StageConfig
from datamodules.reading.example import Example
from doppel.errors import DataError, UserError
from doppel.files import read_list, write_json, write_json_lines
from doppel.tables.schema import plain


def histogram(
    stage_dir: Path,
    *,
    labels: Path,
    out: Path,
    num_samples: PositiveInt,
    seed: int = 1,
    exact: bool = False,
    shares: Path | None = None,
    only: str | None = None,
) -> None:
    """Write prompts for a model of utterances given a label, from a DP histogram of the private labels.

    Data, unit, budget and noise are those of the trained stage: its privacy arguments announced the histogram
    (histogram_noise_multiplier), and one release of it is written to the ledger. The noised histogram is kept beside
    the prompts, and read instead of released again. Of one that a crash lost, labels are drawn alike.

    Args:
        stage_dir: Folder of the trained model of labels, RUN/labels/labels.
        labels: File of all labels there are, one a line; a public list.
        out: JSON lines of prompts to write.
        num_samples: Prompts to draw.
        seed: Seed of the draw, never of the noise.
        exact: No noise, as in the paper: NOT PRIVATE, which the ledger and the report then say.
        shares: What was released before: draw by it, and release nothing.
        only: Draw this label alone.

    Raises:
        UserError: The stage, the labels and the options do not fit together.
        BudgetExceededError: The histogram alone costs more than its scope may spend.
    """
    bins = read_labels(labels)
    field = StageConfig.read(stage_dir).model.get("source")
    if field != "label":
        raise UserError(f"{stage_dir} holds no model of utterances given a label: its source is {field!r}")
    if only is not None and only not in bins:
        raise UserError(f"{labels} has no label {only!r}: give one that stands there")
    path = shares or out.with_name(f"{out.stem}.histogram.json")
    if shares is None:
        release(stage_dir, path, bins, _labels, "labels", exact)
    released = read_shares(path)
    sums = dict.fromkeys(bins, 1.0) if released["sums"] is None else released["sums"]
    if list(sums) != bins or (released["noise_multiplier"] is None) != exact:
        raise UserError(
            f"{path} was released with other labels or noise: restore them; another release would be spent on top"
        )
    from doppel.privacy.histogram import normalise  # needs torch, which no --help waits for

    probabilities = list(normalise(sums).values())
    names = random.Random(seed).choices(bins, probabilities, k=num_samples) if only is None else [only] * num_samples
    write_json_lines(out, ({"label": name} for name in names))
    noise = "exact: NOT PRIVATE" if exact else f"noise of standard deviation {released['noise_multiplier']:g}"
    print(f"{out}: {num_samples} prompts of {len(bins)} labels ({noise})")


def read_shares(path: Path) -> dict[str, Any]:
    """Read the released shares.

    Raises:
        UserError: They are not there: nobody releases them a second time, which would be spent on top.
    """
    if not path.is_file():
        raise UserError(f"there are no released shares at {path}: restore the file; another release would be spent")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _labels(turns: list[Example]) -> list[dict[str, float]]:
    return [{turn.label: 1.0} if turn.label else {} for turn in turns]


def read_labels(path: Path) -> list[str]:
    """Read the public labels, one a line, without empty lines and those that begin with #.

    Raises:
        DataError: The file is missing, has no label, or one twice.
    """
    if not path.is_file():
        raise DataError(f"no labels at {path}: give --labels a file with one label a line, from a public source")
    labels = [plain(line) for line in read_list(path) if not line.startswith("#")]
    if not labels or len(set(labels)) != len(labels):
        raise DataError(f"{path} has {'a label twice' if labels else 'no label'}: give every label once")
    return labels


def release(
    stage_dir: Path,
    path: Path,
    bins: Iterable[str],
    vectors: Callable[[list[Example]], Iterable[Mapping[str, float]]],
    name: str,
    exact: bool = False,
    told: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Release the sums of the vectors of the turns that a stage was trained on, with the noise that it announced; once.

    Formal guarantees:
        One Gaussian mechanism of sensitivity 1 (see :mod:`doppel.privacy.histogram`), one step with q = 1 in the scope
        of the stage, whose own noise was calibrated for both together. Sums without noise stay in the memory of this
        process, and the noised ones leave it in the line of the ledger that pays for them, once
        (:meth:`StageRelease.once`). With ``exact`` there is no guarantee, and the ledger says so.

    Args:
        stage_dir: Folder of the trained model.
        path: File to write: ``unit``, ``num_units``, ``noise_multiplier`` (None if exact) and ``sums`` by label (None
            where the release was left out).
        bins: Public labels, or labels that come from the private model.
        vectors: Entries of each turn by label: a function of this turn and of public things.
        name: What is counted, in words.
        exact: No noise: NOT PRIVATE.
        told: What the file says more, of public things.

    Raises:
        BudgetExceededError: It alone costs more than its scope may spend.
    """
    from doppel.privacy.histogram import unit_sums
    from doppel.privacy.release import NoisyHistogram

    with hold(stage_dir):
        if path.exists():
            return
        made = StageRelease.declare(stage_dir, f"histogram of {name}", exact, "histogram", NoisyHistogram)

        def numbers() -> dict[str, Any]:
            rows = zip((turn.unit for turn in made.turns), list(vectors(made.turns)), strict=True)
            sums = unit_sums(rows, bins)
            return {"sums": sums if made.sigma is None else NoisyHistogram(made.sigma).draw(sums), **told}

        write_json(path, made.once(numbers) or {**made.terms, "sums": None, **told})
