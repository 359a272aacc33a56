"""The page of one run: what people ask for and the assistant cannot do, and what stands behind that."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from commands.page import quality
from commands.page.asked import FEWEST, Asked, Sample, ask, hierarchy, is_asked_for, lacks
from commands.page.html import PAGE, render
from commands.page.names import Names, read_names
from commands.page.redacted import hidden
from commands.page.released import read_release
from commands.page.support import Support, find_support, sampled_of
from commands.page.tree_paths import tree_paths
from commands.privacy.coverage import ledger_of
from commands.privacy.verify import card as card_of
from commands.quality import run_numbers
from commands.runs.manifest import Entry, enter_report
from commands.runs.run_record import RunRecord
from commands.runs.systems import in_order, system
from commands.runs.yaml_files import public_names
from doppel.errors import UserError
from doppel.files import read_json_lines, write_text

#: Utterances of one system on the page; the files hold all.
_MOST = 2000


def write_page(
    record: RunRecord,
    report: Mapping[str, Any] | None,
    card: Mapping[str, Any] | None = None,
    *,
    supported: Sequence[str] | None = None,
    names: str | None = None,
    with_private: bool = False,
    out: Path | None = None,
) -> tuple[Path, tuple[str, ...]]:
    """Write the page of a run.

    Formal guarantees:
        What stands on it is released with noise and paid for in the ledger, computed from samples of private models
        (post-processing), or from files that are declared public. ε is shown where the card vouches for it, and else
        NOT PRIVATE with the reason. Metrics named ``private/…`` are on it only if they are asked for, and labelled.

    Samples that ``python cli.py sample`` has drawn since count like the run's own, but in metrics and their pictures,
    which are of these alone. Those that somebody asked for by a label, a topic or trees are shown and never counted.

    Args:
        record: The run.
        report: As :func:`commands.page.report.build_report` makes it; None where the run was not evaluated.
        card: Of :func:`commands.privacy.verify.card`, if it is at hand.
        supported: What the assistant supports, in place of what the experiment says.
        names: A public file of what people call functions, labels and topics, likewise.
        with_private: Also show the figures that are not private.
        out: The file; ``report.html`` in the run folder by default.

    Returns:
        The file, and notes for the console.

    Raises:
        UserError: The run has no samples; ``supported`` or ``names`` cannot be read, or nothing that ``supported``
            names occurs.
    """
    made, released = record.manifest.samples(), record.manifest.released()
    wrong = {entry.path: own for entry in released if (own := _not_as_made(record, entry))}
    systems = [name for name in in_order(made) if made[name].path not in wrong]
    if not systems:
        why = "; ".join(text for own in wrong.values() for text in own)
        raise UserError(
            f"{record.folder} has no samples{f' ({why})' if why else ''}: give the folder of a run that came so far, "
            "or of several runs"
        )
    metrics = {name: values for name, values in ((report or {}).get("metrics") or {}).items() if values}
    measured = {name: _samples(record, made[name]) for name in systems}
    systems, ordered_by = quality.best_first(sorted(systems, key=lambda name: _rank(name, measured[name])), metrics)
    metrics = {name: metrics[name] for name in [*systems, *metrics] if name in metrics}
    later = [entry for entry in released if entry.role in ("more", "examples") and entry.path not in wrong]
    files = {name: [made[name], *(e for e in later if (e.role, e.system) == ("more", name))] for name in systems}
    asked_for = {name: [e for e in later if (e.role, e.system) == ("examples", name)] for name in systems}
    files |= {f"{name}, examples": own for name, own in asked_for.items() if own}
    shown = {name: [s for entry in own for s in _samples(record, entry)] for name, own in files.items()}
    samples = {name: shown[name] for name in systems}
    measured = {name: measured[name] for name in systems}
    main = next((name for name in systems if any(sample.names for sample in samples[name])), systems[0])
    called = read_names(names if names is not None else record.experiment.get("names"))
    trees = [sample.tree for sample in samples[main] if sample.tree and sample.label is None]
    release = read_release(record, main, trees)
    occurring = {name for sample in samples[main] for name in sample.names}
    occurring |= set() if release is None or trees else set(release.shares)  # labels that no sample has
    support = find_support(record, supported, called, occurring)
    known = support.supported
    asked = ask(samples[main], known, release, called)
    human, no_human = quality.reference(record)
    path = out or record.folder / PAGE
    html = render(
        "report.html",
        run=record.folder.resolve().name,
        asked=asked,
        is_topics=main == "topics",
        has_attributes=system(main).has_attributes,
        main=system(main).label,
        supported=known,
        support=support,
        sampled_of=sampled_of(record, made[main].path),
        called=called,
        branches=_hierarchy(samples[main], called, support, asked, is_whole=False),
        whole=_hierarchy(samples[main], called, support, asked, is_whole=True),
        commands=_commands(record, made[main].path),
        ordered_by=ordered_by if len(systems) > 1 else None,
        fewest=FEWEST,
        systems={name: system(name).label for name in systems},
        headings=_headings(files),
        abouts={name: system(name).about for name in systems},
        samples={name: own[:_MOST] for name, own in shown.items()},
        totals={name: len(own) for name, own in shown.items()},
        files={name: ", ".join(entry.path for entry in own) for name, own in files.items()},
        lacks={s.label or s.tree or "": _lacks(s, called, support) for own in shown.values() for s in own},
        privacy=privacy(record, card),
        hidden=hidden(record),
        figures=quality.figures(metrics, with_private),
        measured=[system(name).label for name in metrics],
        notes=[*sum(wrong.values(), []), *_notes(metrics, with_private), *_later_notes(later)],
        frequency=quality.frequency_picture(human, measured[main], called) if human else None,
        lengths=quality.length_picture(human, measured) if human else None,
        no_human=no_human,
        warnings=[sentence for name in systems for sentence in run_numbers.warnings(record, name)],
        num_human=len(human),
        provenance=_provenance(record, report),
    )
    write_text(path, record.without_folders(html))
    if path.resolve() == (record.folder / PAGE).resolve():
        enter_report(record.folder, [PAGE], ["page", ".", *(["--private"] if with_private else [])])
    return path, support.notes


def privacy(record: RunRecord, card: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a page says of privacy: the card that ``python cli.py verify`` writes, or why there is none.

    Returns:
        ``is_private``, ``is_verified``, ``reasons`` (why not), ``card``, None where there is none, and ``together``,
        the ε of all systems where there are several.
    """
    none: dict[str, Any] = {"is_private": False, "is_verified": False, "card": None, "together": None}
    if not record.is_private:
        return {**none, "reasons": ["the run was started with ε = inf: its models trained without privacy"]}
    try:
        card = card or card_of(record, renews=True)
    except UserError as error:
        return {**none, "reasons": [str(error)]}
    budgets = card["budgets"].values()
    return {
        "is_private": bool(budgets) and all(own["epsilon"] is not None for own in budgets),
        "is_verified": card["verified"],
        "reasons": card["reasons"],
        "card": card,
        "together": ledger_of(record).summary()["epsilon"] if len(budgets) > 1 else None,
    }


def _not_as_made(record: RunRecord, samples: Entry) -> list[str]:
    """Why samples are not shown: they may be others than those that the steps of the run have made."""
    return [
        f"{samples.path} is not shown: {why}" for why in record.manifest.stale_inputs(samples.path, may_be_gone=True)
    ]


def _rank(name: str, samples: Sequence[Sample]) -> tuple[bool, bool, bool]:
    """Where a system stands that no figure tells apart: two-stage, another one with trees, one with labels."""
    has_trees = any(sample.tree and sample.label is None for sample in samples)
    return not system(name).is_main, not has_trees, not any(sample.label for sample in samples)


def _samples(record: RunRecord, made: Entry) -> list[Sample]:
    """The samples of a system; lines without an utterance are passed over."""
    manifest = record.manifest
    parsed = [entry for entry in manifest.find("data", made.system, "evaluate") if not manifest.changes(entry.path)]
    lines = (line for entry in parsed for _, line in read_json_lines(manifest.path(entry)))
    read = {str(line.get("utterance")): (line.get("parse") or "", line.get("confidence")) for line in lines}
    has_trees = system(str(made.system)).has_trees  # which say more than the attributes that they were written for
    return [
        Sample(
            u,
            _text(line, "parse"),
            None if has_trees else _text(line, "label"),
            *read.get(u, (None, None)),
            str(made.system),
        )
        for _, line in read_json_lines(manifest.path(made))
        if isinstance(u := line.get("utterance"), str)
    ]


def _headings(files: Mapping[str, Sequence[Entry]]) -> dict[str, str]:
    """What the lists of samples are called."""
    asked = ", asked for by a label, a topic or trees: they tell nothing of shares"
    return {
        name: system(str(own[0].system)).label + (asked if own[0].role == "examples" else "")
        for name, own in files.items()
    }


def _later_notes(later: Sequence[Entry]) -> list[str]:
    if not later:
        return []
    return ["Metrics and pictures are of the samples that the run itself has made, not of what was sampled later."]


def _text(line: Mapping[str, Any], key: str) -> str | None:
    return line[key] if isinstance(line.get(key), str) else None


def _lacks(sample: Sample, called: Names, support: Support) -> list[str]:
    """What people call that which a sample asks for and is not supported."""
    return [called.of(name) for name in lacks(sample, called, support.supported)]


def _hierarchy(
    samples: Sequence[Sample], called: Names, support: Support, asked: Asked | None, *, is_whole: bool
) -> tuple[Any, ...]:
    """Who calls whom: of what is asked for, or of the whole trees where they hold more."""
    if asked is None or asked.has_labels or (is_whole and not asked.plumbing):
        return ()
    paths: dict[str, frozenset[tuple[str, ...]]] = {}
    for tree in {sample.tree for sample in samples if sample.tree and sample.names}:
        paths[tree] = tree_paths(tree, lambda name: is_whole or is_asked_for(name, called, support.supported))
    calls = [(s, paths[s.tree]) for s in samples if s.tree and s.names]
    return hierarchy(calls, called, support.supported, max(FEWEST, len(calls) // 100))


def _commands(record: RunRecord, samples: str) -> dict[str, str]:
    """What answers the questions that this page leaves open."""
    folder = Path(public_names(str(record.folder.resolve())))  # the page is read by others, in other places
    run, experiment, more = (
        shlex.quote(str(path)) for path in (folder, folder / "experiment.yaml", f"{folder}-topics")
    )
    return {
        "topics": f"python cli.py run {experiment} {more} --systems topics",
        "supported": f"python cli.py page {run} --supported supported.txt",
        "names": f"python cli.py page {run} --names names.yaml",
        "reference": f"python cli.py evaluate --synthetic {run}/{samples} --reference public.txt",
    }


def _notes(metrics: Mapping[str, Mapping[str, Any]], with_private: bool) -> list[str]:
    notes = [note for values in metrics.values() for note in values.get("notes") or ()]
    return list(dict.fromkeys(note for note in notes if with_private or not note.startswith("private/")))


def _provenance(record: RunRecord, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where the numbers come from, and how to have them again."""
    experiment, told = dict(record.experiment), report or {}
    commits = [word for word in experiment.get("commit") or () if word]
    epsilon = experiment.get("epsilon")
    ids = {path.parent.name: path.read_text("utf-8").strip() for path in sorted(record.folder.glob("*/wandb_id"))}
    ids = {stage: name for stage, name in ids.items() if re.fullmatch(r"[\w-]{1,128}", name)}  # ours, and no text
    facts = {
        "Experiment": experiment.get("name"),
        "Seed": told.get("seed"),
        "Target ε of each system": "∞ (not private)" if epsilon == math.inf else epsilon,
        "Base model": told.get("base_model"),
        "Samples of each system": experiment.get("num_samples"),
        "Training file": (told.get("data") or {}).get("train"),
        "Reference": (told.get("data") or {}).get("reference"),
        "Parser of the evaluation": record.parser,
        "Commit": ", ".join(commits),
    }
    command = [f"python cli.py run {public_names(str(record.folder.resolve()))}/experiment.yaml runs/again --local"]
    clean = commits[-1].removesuffix("+dirty") if commits else ""
    return {
        "facts": {name: value for name, value in facts.items() if value not in (None, "")},
        "versions": told.get("versions") or {},
        "wandb": ids,
        "configuration": yaml.safe_dump(public_names(experiment), sort_keys=False, allow_unicode=True, width=100),
        "command": "\n".join([*([f"git checkout {clean}"] if clean else []), *command]),
        "is_dirty": any(word.endswith("+dirty") for word in commits),
        "seconds": sum((told.get("timings") or {}).values()),
    }
