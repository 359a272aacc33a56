"""What the steps of a run have measured, and how its samples came about; found in the run's manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from commands.run_folder.manifest import Entry, Manifest
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder, read_json
from commands.run_folder.stage_config import StageConfig
from commands.run_folder.systems import in_order, system
from doppel.errors import UserError

#: Role of what was drawn or chosen from → fields of an experiment that the choice depends on.
_CHOICES = {
    "pool": ("resampling", "public_parser", "topics"),
    "candidates": ("candidates", "public_parser", "label_words"),
}


def values(
    record: RunFolder, verb: Literal["evaluate", "parser-metrics"]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Read the metrics of each system's samples, or of the parser that they taught, and why the rest is not there.

    Numbers of a file that was changed by hand do not count, nor those of samples that were made anew since.
    """
    found, problems = {}, {}
    entries = {str(entry.system): entry for entry in record.manifest.find("metrics", verb=verb)}
    for name in in_order(entries):
        path = record.manifest.path(entries[name])
        wrong = record.manifest.changes(entries[name].path)
        try:
            found[name] = read_json(path)
        except UserError as error:
            wrong = [f"{path.parent.name}/{error}"]
        if wrong:
            found.pop(name, None)
            problems[name] = "; ".join(wrong)
    if verb == "evaluate" and (entries or record.reference or record.experiment.get("adaptation")):
        missing = [name for name in record.experiment.get("systems") or () if name not in entries]
        problems |= {name: "half-done: it has no evaluation" for name in missing if system(name).learns}
    return found, problems


def sampling(record: RunFolder, of: str) -> dict[str, dict[str, Any]]:
    """Return how a system was sampled: file of trees or utterances → arguments of the sampling that wrote it.

    Without seed and ``max_rows``, on which the distribution does not depend.
    """
    found: dict[str, dict[str, Any]] = {}
    for made in _texts(record.manifest, of):
        drawn = record.manifest.drawn_from(made) or made
        if drawn.verb != "predict" or drawn.folder is None:
            continue
        settings = StageConfig.read(record.folder / drawn.folder, "predict.yaml").model.get("sampling") or {}
        kept = {name: value for name, value in settings.items() if name not in ("seed", "max_rows")}
        chosen = {name: record.experiment.get(name) for name in _CHOICES.get(drawn.role, ())}
        found[made.path] = public_names(kept | {name: v for name, v in chosen.items() if v is not None})
    return found


def draws(record: RunFolder, of: str) -> dict[str, dict[str, int]]:
    """Return what a system's models drew: file → number of samples, of texts, of those dropped, by reason, …."""
    prefixes = ("synthetic/num_", "synthetic/dropped/")
    return {
        made.path: {name.removeprefix("synthetic/"): n for name, n in metrics.items() if name.startswith(prefixes)}
        for made, _, metrics in _samplings(record, of)
    }


def warnings(record: RunFolder, of: str) -> list[str]:
    """Return what the samplings of a system warned of, such as texts that were cut off; and what beams have done."""
    beams = num_beams(record, of)
    told = [
        f"{drawn.path}: {metrics['warning']}" for _, drawn, metrics in _samplings(record, of) if "warning" in metrics
    ]
    if beams > 1:
        told.append(
            f"{of} was sampled with {beams} beams, which repeat the most likely texts (MAUVE of five beams at "
            "most .40 of people's): set sampling.num_beams=1"
        )
    return told


def kept(record: RunFolder, of: str) -> dict[str, Any] | None:
    """Return what was kept of several texts for each prompt of a system; None where nothing was chosen."""
    told = (_as_made(record, f"{made.path}.kept.json") for made in _texts(record.manifest, of))
    return next((numbers for numbers in told if numbers is not None), None)


def num_beams(record: RunFolder, of: str) -> int:
    """Return with how many beams a system was sampled, at most; 1 without."""
    return max((told.get("num_beams") or 1 for told in sampling(record, of).values()), default=1)


def resampling(record: RunFolder, of: str) -> dict[str, Any] | None:
    """Return how the trees or utterances of a system were drawn from an over-sample; None where they were not."""
    told = (_as_made(record, f"{made.path}.resampling.json") for made in _texts(record.manifest, of))
    return next((numbers for numbers in told if numbers is not None), None)


def stage_seconds(record: RunFolder) -> dict[str, int]:
    """Return seconds of each finished step, in the order they ended; a mark that was made by hand holds no number.

    A step of a private run that read private text is left out: how long it took depends on that text, and anybody may
    read the report.
    """
    read = {entry.step for entry in record.manifest.files.values() if record.is_private and entry.reads_private}
    marks = sorted(record.folder.glob(".done/*"), key=lambda file: file.stat().st_mtime)
    return {
        file.name: int(text) for file in marks if file.name not in read and (text := file.read_text().strip()).isdigit()
    }


def _samplings(record: RunFolder, of: str) -> Iterator[tuple[Entry, Entry, dict[str, Any]]]:
    """The samples of a system, and the trees or labels behind them: each file, what it was drawn from, its metrics."""
    for made in _texts(record.manifest, of):
        drawn = record.manifest.drawn_from(made) or made
        metrics = _as_made(record, f"{drawn.path}.metrics.json")
        if metrics is not None:
            yield made, drawn, metrics


def _as_made(record: RunFolder, path: str) -> dict[str, Any] | None:
    """What a file of numbers holds; None where no step made it, or it is not what its step made."""
    entry = record.manifest.files.get(path)
    return None if entry is None or record.manifest.changes(path) else read_json(record.manifest.path(entry))


def _texts(manifest: Manifest, of: str) -> list[Entry]:
    """The samples of a system, behind the trees or labels that they were written for."""
    samples = manifest.samples().get(of)
    chain = [] if samples is None else manifest.upstream(samples.path)
    return [*(entry for entry in chain if entry.role == "prompts"), *chain[:1]]
