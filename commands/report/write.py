"""The page of one run: what people ask for and the assistant cannot do, and what stands behind that."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from commands.privacy.coverage import ledger_of
from commands.privacy.verify import card as card_of
from commands.quality import run_numbers
from commands.quality.measures import LEAST_FOR_MAUVE, Measure, with_sound_mauve
from commands.report import quality
from commands.report.asked import FEWEST, Asked, Sample, ask, is_asked_for, lacks
from commands.report.branches import hierarchy
from commands.report.html import PAGE, percent, render
from commands.report.names import Names, read_names, shipped_names, write_template
from commands.report.redacted import hidden
from commands.report.released import Release, read_release
from commands.report.support import Support, find_support, sampled_of
from commands.report.tree_paths import tree_paths
from commands.report.unexpected import read_unexpected
from commands.run_folder.manifest import Entry
from commands.run_folder.manifest_writer import enter_report
from commands.run_folder.places import public_names
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.systems import in_order, system
from doppel.errors import UserError
from doppel.files import read_json_lines, write_text

#: Utterances of one system on the page; the files hold all.
_MOST = 2000


def write_page(
    record: RunFolder,
    report: Mapping[str, Any] | None,
    card: Mapping[str, Any] | None = None,
    *,
    supported: Sequence[str] | None = None,
    names: str | None = None,
    names_template: Path | None = None,
    topics: int | None = None,
    with_private: bool = False,
    out: Path | None = None,
) -> tuple[Path, tuple[str, ...]]:
    """Write the page of a run.

    Formal guarantees:
        What stands on it is released with noise and charged in the ledger, computed from samples of private models
        (post-processing), or from files that are declared public. ε is shown where the card vouches for it, and else
        NOT PRIVATE with the reason. Metrics named ``private/…`` are on it only if they are asked for, and labelled.

    Samples that ``python cli.py sample`` has drawn since count like the run's own, but in metrics and their pictures,
    which are of these alone. Those that somebody asked for by a label, a topic or trees are shown and never counted.

    Args:
        record: The run.
        report: As :func:`commands.report.report_json.build_report` makes it; None where the run was not evaluated.
        card: Of :func:`commands.privacy.verify.card`, if it is at hand.
        supported: What the assistant supports, in place of what the experiment says.
        names: A public file of what people call functions, labels and topics, likewise.
        names_template: Also write the names of the page here, to fill in.
        topics: Group samples without trees and labels by so many topics of their own, which is post-processing.
        with_private: Also show the figures that are not private.
        out: The file; ``report.html`` in the run folder by default.

    Returns:
        The file, and notes for the console.

    Raises:
        UserError: The run has no samples; ``supported`` or ``names`` cannot be read, or nothing that ``supported``
            names occurs.
    """
    told = {name: values for name, values in ((report or {}).get("metrics") or {}).items() if values}
    metrics = {name: with_sound_mauve(values) for name, values in told.items()}
    drawn = _drawn(record, metrics)
    if topics is not None:
        drawn = _by_topics(drawn, topics)
    called = _called(drawn, record.experiment.get("names") if names is None else names)
    drawn, release, topics = _by_themes(record, drawn)
    asked, support = _requests(record, drawn, called, supported, release, topics)
    if names_template is not None:
        if (found := asked["asked"]) is None:
            raise UserError("the samples have neither trees nor labels, so there are no names to fill in")
        rows = sorted(found.rows, key=lambda row: -row.share.value)
        about = {row.name: f"{percent(row.share.value)} {json.dumps(row.examples[:1])}" for row in rows}
        plumbing = [row.name for row in found.plumbing]
        write_template(names_template, called, about | dict.fromkeys(found.too_rare, ""), plumbing)
    guarantee, told_quality = privacy(record, card), _quality(record, drawn, metrics, called, with_private)
    html = render(
        "report.html",
        run=record.folder.resolve().name,
        systems={name: system(name).label for name in drawn.systems},
        main=system(drawn.main).label,
        is_topics=drawn.main == "topics" or topics is not None,
        unexpected=_unexpected(record, drawn),
        privacy=guarantee,
        hidden=hidden(record),
        commands=_commands(record, drawn.made[drawn.main].path),
        provenance=_provenance(record, report),
        without_mauve=[system(name).label for name in metrics if len(metrics[name]) < len(told[name])],
        least_for_mauve=LEAST_FOR_MAUVE,
        **asked,
        **_lists(drawn, called, support),
        **told_quality,
    )
    path = out or record.folder / PAGE
    write_text(path, record.without_folders(html))
    if path.resolve() == (record.folder / PAGE).resolve():
        quoted = None if guarantee["card"] is None else guarantee["card"]["statement"]
        enter_report(record.folder, [PAGE], ["report", ".", *(["--private"] if with_private else [])], quoted)
    far = [
        f"{system(name).label}: not good enough to read or to use. {' '.join(w)}"
        for name, w in told_quality["far"].items()
    ]
    return path, (*far, *support.notes)


@dataclass(frozen=True)
class _Drawn:
    """The samples of which a page tells; a list of them is called as its system, and has what was sampled later too."""

    made: Mapping[str, Entry]  # of each system
    systems: Sequence[str]  # that are shown, the best first
    ordered_by: Measure | None
    own: Mapping[str, list[Sample]]  # of a system, as they were measured
    files: Mapping[str, list[Entry]]  # of a list
    shown: Mapping[str, list[Sample]]  # in a list
    later: Sequence[Entry]
    wrong: Sequence[str]  # why some are not shown: they may be others than those that the run has made

    @property
    def main(self) -> str:
        """The first system whose samples have trees or labels: what people ask for is counted in these."""
        return next((n for n in self.systems if any(sample.names for sample in self.shown[n])), self.systems[0])


def _drawn(record: RunFolder, metrics: Mapping[str, Mapping[str, Any]]) -> _Drawn:
    """The samples of a run that are as its steps have made them.

    Raises:
        UserError: There are none.
    """
    manifest = record.manifest
    made, released = manifest.samples(), manifest.released()
    stale = {entry.path: why for entry in released if (why := manifest.stale_inputs(entry.path, may_be_gone=True))}
    wrong = [f"{path} is not shown: {text}" for path, texts in stale.items() for text in texts]
    systems = [name for name in in_order(made) if made[name].path not in stale]
    if not systems:
        why = f" ({'; '.join(wrong)})" if wrong else ""
        mend = "restore what has changed" if wrong else "give a run that came so far, or several runs"
        raise UserError(f"{record.folder} has no samples{why}: {mend}")
    own = {name: _samples(record, made[name]) for name in systems}
    systems, ordered_by = quality.best_first(sorted(systems, key=lambda name: _rank(name, own[name])), metrics)
    later = [entry for entry in released if entry.role in ("more", "examples") and entry.path not in stale]
    files = {name: [made[name], *(e for e in later if (e.role, e.system) == ("more", name))] for name in systems}
    asked_for = {name: [e for e in later if (e.role, e.system) == ("examples", name)] for name in systems}
    files |= {f"{name}, examples": entries for name, entries in asked_for.items() if entries}
    shown = {name: [s for entry in entries for s in _samples(record, entry)] for name, entries in files.items()}
    return _Drawn(made, systems, ordered_by, {name: own[name] for name in systems}, files, shown, later, wrong)


def _by_topics(drawn: _Drawn, num_topics: int) -> _Drawn:
    """The main system's samples, each with the topic of them all that it is nearest to as its label.

    Raises:
        UserError: They have trees or labels.
        DataError: They are too few.
    """
    from commands.privacy.feature_extractors import embed
    from doppel.text.topics import make_codebook

    main = drawn.main
    if any(sample.names for sample in drawn.shown[main]):
        raise UserError("--topics groups samples without trees and labels, and these have some: leave it out")
    texts = [sample.utterance for sample in drawn.shown[main]]
    vectors = embed(texts, "minilm")
    book = replace(make_codebook(texts, [], vectors, num_topics, "minilm"), least_cosine=None)  # each has a topic
    topics = book.nearest(vectors)
    samples = [replace(sample, label=name) for sample, name in zip(drawn.shown[main], topics, strict=True)]
    return replace(drawn, shown={**drawn.shown, main: samples})


def _called(drawn: _Drawn, given: str | None) -> Names:
    """What functions, labels and topics are called: as given, else by the shipped names if they fit."""
    samples = [sample for sample in drawn.shown[drawn.main] if sample.label is None]
    functions = {name for sample in samples for name in sample.names}
    return shipped_names(functions) if given is None and functions else read_names(given)


def _unexpected(record: RunFolder, drawn: _Drawn) -> dict[str, Any] | None:
    """Words that nobody expected, of the main system's budget or else of the first one that has released any."""
    for name in dict.fromkeys([drawn.main, *drawn.systems]):
        found = read_unexpected(record, system(name).scope, drawn.shown[name])
        if found is not None:
            return found
    return None


def _by_themes(record: RunFolder, drawn: _Drawn) -> tuple[_Drawn, Release | None, Asked | None]:
    """The shares of the main system. Those of topics become those of their themes, which its samples then have as
    labels; what is asked for by topics is told besides."""
    main = drawn.main
    trees = [sample.tree for sample in drawn.shown[main] if sample.tree and sample.label is None]
    release = read_release(record, main, trees)
    if release is None or not release.themes:
        return drawn, release, None
    topics, themes = ask(drawn.shown[main], None, release, read_names(None)), release.themes
    shown = {
        name: [replace(s, label=themes.get(s.label or "", s.label)) if s.system == main else s for s in own]
        for name, own in drawn.shown.items()
    }
    return replace(drawn, shown=shown), release.of_themes(), topics


def _requests(
    record: RunFolder,
    drawn: _Drawn,
    called: Names,
    supported: Sequence[str] | None,
    release: Release | None,
    topics: Asked | None,
) -> tuple[dict[str, Any], Support]:
    """What people ask for, and how requests are built; and what the assistant supports."""
    main = drawn.main
    samples = drawn.shown[main]
    has_trees = any(sample.tree and sample.label is None for sample in samples)
    occurring = {name for sample in samples for name in sample.names}
    occurring |= set() if release is None or has_trees else set(release.shares)  # labels that no sample has
    support = find_support(record, supported, called, occurring)
    asked = ask(samples, support.supported, release, called, topics)
    values = {
        "asked": asked,
        "has_attributes": system(main).has_attributes,
        "supported": support.supported,
        "support": support,
        "sampled_of": sampled_of(record, drawn.made[main].path),
        "called": called,
        "fewest": FEWEST,
        "branches": _hierarchy(samples, called, support, asked),
        "ordered_by": drawn.ordered_by if len(drawn.systems) > 1 else None,
    }
    return values, support


def _lists(drawn: _Drawn, called: Names, support: Support) -> dict[str, Any]:
    """The samples themselves."""
    asked = ", asked for by a label, a topic, words or trees: they tell nothing of shares"
    labels = {name: system(str(entries[0].system)).label for name, entries in drawn.files.items()}
    is_asked = {name: entries[0].role == "examples" for name, entries in drawn.files.items()}
    return {
        "headings": {name: label + (asked if is_asked[name] else "") for name, label in labels.items()},
        "abouts": {name: system(name).about for name in drawn.systems},
        "samples": {name: own[:_MOST] for name, own in drawn.shown.items()},
        "totals": {name: len(own) for name, own in drawn.shown.items()},
        "files": {name: ", ".join(entry.path for entry in entries) for name, entries in drawn.files.items()},
        "lacks": {
            s.label or s.tree or "": [called.of(name) for name in lacks(s, called, support.supported)]
            for own in drawn.shown.values()
            for s in own
        },
    }


def _quality(
    record: RunFolder, drawn: _Drawn, metrics: Mapping[str, Mapping[str, Any]], called: Names, with_private: bool
) -> dict[str, Any]:
    """How near the samples come to human turns; figures named ``private/…`` only if they are asked for."""
    metrics = {name: metrics[name] for name in [*drawn.systems, *metrics] if name in metrics}
    human, no_human = quality.reference(record)
    told = dict.fromkeys(note for values in metrics.values() for note in values.get("notes") or ())
    notes = [*drawn.wrong, *(note for note in told if with_private or not note.startswith("private/"))]
    if drawn.later:
        notes.append(
            "Metrics and pictures are of the samples that the run itself has made, not of what was sampled later."
        )
    with_beams = [name for name in drawn.systems if run_numbers.num_beams(record, name) > 1]
    of_labels = {n: numbers for n in drawn.systems if (numbers := run_numbers.kept(record, n)) is not None}
    found = quality.not_good_enough(metrics, with_beams, of_labels)
    far = {name: why for name, why in found.items() if name in drawn.systems}
    return {
        "figures": quality.figures(metrics, with_private, with_beams),
        "measured": [system(name).label for name in metrics],
        "far": far,
        "following": quality.following(of_labels.get(drawn.main)),
        "is_withheld": drawn.main in far,
        "advice": quality.advice(record) if any(system(name).stages for name in far) else None,
        "notes": notes,
        "frequency": quality.frequency_picture(human, drawn.own[drawn.main], called) if human else None,
        "lengths": quality.length_picture(human, drawn.own) if human else None,
        "no_human": no_human,
        "num_human": len(human),
        "warnings": [sentence for name in drawn.systems for sentence in run_numbers.warnings(record, name)],
    }


def privacy(record: RunFolder, card: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a page says of privacy: the card that ``python cli.py verify`` writes, or why there is none.

    Returns:
        ``is_private``, ``is_verified``, ``reasons`` (why not), ``card``, None where there is none, and ``together``,
        the ε that holds for all systems where there are several.
    """
    none: dict[str, Any] = {"is_private": False, "is_verified": False, "card": None, "together": None}
    if not record.is_private:
        return {**none, "reasons": ["the run was started with ε = inf"]}
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
        "together": ledger_of(record).summary()["target_epsilon"] if len(budgets) > 1 else None,
    }


def _rank(name: str, samples: Sequence[Sample]) -> tuple[bool, bool, bool]:
    """Where a system stands that no figure tells apart: two-stage, another one with trees, one with labels."""
    has_trees = any(sample.tree and sample.label is None for sample in samples)
    return not system(name).is_main, not has_trees, not any(sample.label for sample in samples)


def _samples(record: RunFolder, made: Entry) -> list[Sample]:
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
            line.get("fits") is not False,
        )
        for _, line in read_json_lines(manifest.path(made))
        if isinstance(u := line.get("utterance"), str)
    ]


def _text(line: Mapping[str, Any], key: str) -> str | None:
    return line[key] if isinstance(line.get(key), str) else None


def _hierarchy(samples: Sequence[Sample], called: Names, support: Support, asked: Asked | None) -> tuple[Any, ...]:
    """Who calls whom, of what is asked for."""
    if asked is None or asked.has_labels:
        return ()
    paths: dict[str, frozenset[tuple[str, ...]]] = {}
    for tree in {sample.tree for sample in samples if sample.tree and sample.names}:
        paths[tree] = tree_paths(tree, lambda name: is_asked_for(name, called, support.supported))
    calls = [(s, paths[s.tree]) for s in samples if s.tree and s.names]
    return hierarchy(calls, called, support.supported, max(FEWEST, len(calls) // 100))


def _commands(record: RunFolder, samples: str) -> dict[str, str]:
    """What answers the questions that this page leaves open."""
    folder = Path(public_names(str(record.folder.resolve())))  # the page is read by others, in other places
    run = shlex.quote(str(folder))
    return {
        "topics": f"python cli.py report {run} --topics 20",
        "supported": f"python cli.py report {run} --supported supported.txt",
        "names": f"python cli.py report {run} --names-template names.yaml",
        "words": f"python cli.py sample {run} --num 40 --words",
        "reference": f"python cli.py evaluate --synthetic {run}/{samples} --reference public.txt",
    }


def _provenance(record: RunFolder, report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where the numbers come from, and how to have them again."""
    experiment, told = dict(record.experiment), report or {}
    commits = [word for word in experiment.get("commit") or () if word]
    epsilon = experiment.get("epsilon")
    found = sorted(record.folder.rglob("wandb_id"))
    ids = {str(path.parent.relative_to(record.folder)): path.read_text("utf-8").strip() for path in found}
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
