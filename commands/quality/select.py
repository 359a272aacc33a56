"""Choosing among setups: the noise to a fluency sifter is discarded, the rest is ranked."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.pipeline.run_record import RunRecord
from commands.quality.pool import Group, pool
from commands.quality.runs import read_runs
from commands.quality.sections import CONTEXT, format_epsilon, label_of
from commands.quality.sifter import Sifter
from commands.quality.table import Table
from doppel.errors import UserError
from doppel.files import write_json

_SCORE = ("mauve", "parsed_function_overlap")
_CAVEAT = (
    "Choosing among runs by metrics against the private data or a private test split is not covered by any ε here; "
    "choosing by a public reference and a public sifter is. Whether {references} is public is for you to know."
)


@dataclass
class Setup:
    """A candidate: its runs, and how they fared.

    Attributes:
        mean_loss: Of the samples under the sifter, nats per token, averaged over runs; None if no samples are there.
        score: MAUVE + F.Overlap; None where one is missing.
        rank: Among comparable setups, from 1; None if discarded.
        why: Why it is not ranked; empty if it is.
    """

    group: Group
    mean_loss: float | None
    score: float | None
    rank: int | None = None
    why: str = ""

    @property
    def context(self) -> str:
        """Setups are ranked among those whose context is the same."""
        return repr([self.group.key[name] for name in CONTEXT])


def select(runs_dir: Path, *, sifter: str, max_loss: float = 2.0, out: Path | None = None) -> None:
    """Choose among setups: discard those whose samples are noise to a fluency sifter, rank the rest.

    The rule of Mireshghallah et al., 2023: among setups whose synthetic utterances have a mean loss of at most 2.0
    under a language model fine-tuned on public utterances, the best MAUVE + F.Overlap wins.

    Each run's samples are (ε, δ)-DP, and so is all that is computed of them and of public text: the sifter's losses (if
    the sifter is public), and metrics against a *public* reference. Choosing by such numbers is post-processing, and
    costs what was tried: releasing the winner of k runs on the same data spends at most the sum of their ε. Choosing by
    metrics against the private data, or a private test split, is *not* covered by any ε that is printed.

    Args:
        runs_dir: Folder below which the runs lie, with their samples.
        sifter: UtteranceLM fine-tuned on public turns: its run folder, checkpoint, or a model folder or hub name.
        max_loss: Discard setups above it, nats per token.
        out: JSON file (default: RUNS_DIR/selection.json).

    Raises:
        UserError: There is no candidate, or the sifter cannot be used.
    """
    runs = read_runs(runs_dir)
    groups = [group for group in pool(runs.points) if group.key["kind"] == "generation" and group.points]
    if not groups:
        raise UserError(f"{runs_dir} holds no run that can be judged: `python cli.py results` says why")
    model = Sifter(sifter)
    caveats = [_CAVEAT.format(references=" and ".join(sorted({str(group.key["reference"]) for group in groups})))]
    if not model.check_is_public({group.key["fingerprint"] for group in groups}):
        caveats.append(f"What the sifter {sifter} learnt from cannot be told here: it must be public text.")
    setups = judge(groups, runs_dir, model, max_loss)
    spent = total_spent(groups)
    print(format_setups(setups, max_loss))
    for statement in (*spent.values(), *caveats):
        print(f"\n{statement}")
    for problem in runs.problems:
        print(f"left out: {problem}")
    content = {
        "sifter": sifter,
        "max_loss": max_loss,
        "setups": [_to_json(setup) for setup in setups],
        "if_all_were_released": spent,
        "caveats": caveats,
    }
    out = out or runs_dir / "selection.json"
    write_json(out, content)
    print(f"\nWritten to {out}")


def judge(groups: list[Group], root: Path, sifter: Sifter, max_loss: float) -> list[Setup]:
    """Candidates with their losses and ranks, best first among comparable ones; paths are relative to ``root``."""
    setups = []
    for group in groups:
        files = [RunRecord(root / point.path).synthetic(point.key["system"]) for point in group.points]
        losses = [_mean_loss(file, sifter) for file in files if file.exists()]
        cells = {name: group.cell(name) for name in _SCORE}
        means = [cell.mean for cell in cells.values() if cell.mean is not None]
        setup = Setup(
            group,
            mean_loss=statistics.fmean(losses) if len(losses) == len(files) else None,
            score=sum(means) if len(means) == len(cells) else None,
        )
        lacking = [name for name, cell in cells.items() if cell.mean is None]
        if setup.mean_loss is None:
            setup.why = f"{len(files) - len(losses)} of {len(files)} runs have no samples beside the report"
        elif setup.mean_loss > max_loss:
            setup.why = "discarded: mean loss above the bound"
        elif lacking:
            setup.why = f"no {' and no '.join(lacking)} ({cells[lacking[0]].note})"
        setups.append(setup)
    setups.sort(key=lambda s: (s.context, bool(s.why), -(s.score or 0)))
    ranked: dict[str, int] = {}
    for setup in setups:
        if not setup.why:
            ranked[setup.context] = setup.rank = ranked.get(setup.context, 0) + 1
    return setups


def total_spent(groups: list[Group]) -> dict[str, str]:
    """For each private data set, in words, what all its runs spend together, whether they are kept or not.

    ε and δ simply add up (basic composition), which holds for any accountant; runs of one ledger may compose to less.
    """
    statements = {}
    for fingerprint in dict.fromkeys(str(group.key["fingerprint"]) for group in groups):
        own = [group for group in groups if group.key["fingerprint"] == fingerprint]
        name = f"{own[0].key['data']} ({fingerprint[:8]})"
        units = sorted({str(group.key["unit"]) for group in own if group.key["unit"]})
        if any(group.spent is None for group in own):
            told = "at least one run is not private, so all of them together have no ε"
        elif len(units) > 1:
            told = f"the runs protect different units ({', '.join(units)}), which have no common ε"
        else:
            epsilon = sum(point.spent or 0.0 for group in own for point in group.points)
            delta = sum(group.key["delta"] * len(group.points) for group in own)
            number = sum(len(group.points) for group in own)
            told = f"ε ≤ {epsilon:.4g}, δ ≤ {delta:.3g} under adding or removing one {units[0]} (sums over {number} "
            told += "trained systems; what runs that are left out have spent comes on top)"
        statements[fingerprint] = f"If all that was tried on {name} is released or chosen from: {told}."
    return statements


def format_setups(setups: list[Setup], max_loss: float) -> str:
    """An aligned table for each set of comparable setups."""
    tables: dict[str, Table] = {}
    headings = ["rank", "loss", "MAUVE", "F.Overlap", "sum", "ε spent", "seeds", "setup"]
    for setup in setups:
        key, group = setup.group.key, setup.group
        about = f"{key['data']} ({str(key['fingerprint'])[:8]}), target ε {format_epsilon(key['epsilon'])}, model "
        about += f"{key['base_model']}, {key['num_samples']} samples; bound {max_loss:g} nats per token"
        values = [setup.mean_loss, *(group.cell(name).mean for name in _SCORE), setup.score]
        numbers = [None if value is None else f"{value:.3f}" for value in values]
        spent = "∞" if group.spent is None else f"{group.spent:.3f}"
        reasons = [text for text in (setup.why, key["caveats"]) if text]
        name = ": ".join([f"{key['experiment']}, {label_of(key['system'])}", *reasons])
        table = tables.setdefault(f"{setup.context}\n{about}", Table(headings))
        table.rows.append([setup.rank, *numbers, spent, len(group.points), name])
    return "\n\n".join("\n".join((about.rpartition("\n")[2], table.text("<"))) for about, table in tables.items())


def _mean_loss(path: Path, sifter: Sifter) -> float:
    from commands.quality.evaluate import read_synthetic

    return float(sifter.losses([turn.utterance for turn in read_synthetic(path)]).double().mean())


def _to_json(setup: Setup) -> dict[str, Any]:
    key = {name: None if value == math.inf else value for name, value in setup.group.key.items()}
    return {
        "rank": setup.rank,
        "why": setup.why,
        "mean_loss": setup.mean_loss,
        "mauve": setup.group.cell("mauve").mean,
        "function_overlap": setup.group.cell("parsed_function_overlap").mean,
        "score": setup.score,
        "epsilon_spent": setup.group.spent,
        "runs": [point.path for point in setup.group.points],
        "setting": key,
    }
