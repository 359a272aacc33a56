"""A report in ten lines or so: what was made, what it cost and how good it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from commands.quality.evaluate import CHOSEN_BY_JUDGE, NOT_COVERED
from commands.quality.measures import INSTEAD, LEAST_FOR_MAUVE, human_value, judged, measure, with_sound_mauve
from commands.run_folder.run_folder import RunFolder
from commands.run_folder.systems import system
from doppel.console.table import Table
from doppel.files import read_json_lines

_COLUMNS = ("fluency", "word_overlap", "parsed_chi_square", "parsed_function_overlap", "parsed_own_tree_match")
_COLUMNS += ("attribute_jsd", "attribute_adherence", "attribute_downstream")
_OF_PARSERS = ("exact_match", "exact_match@missing")


def render(report: dict[str, Any], record: RunFolder, num_samples: int = 3) -> str:
    """Render the run: a row for each system, what all of them spend, what is missing, and some samples of the main one.

    Every other figure is in report.json and on the page.
    """
    data, privacy = report["data"], report["privacy"]
    units = f" ({data['num_units']} units)" if data.get("num_units") else ""
    how = f"{report['base_model']} trained on" if report["base_model"] else "by votes of"
    lines = [
        f"{report['experiment'] or 'This run'}, seed {report['seed']}: {how} {data['train']}{units}; "
        f"{report['num_samples'] or 'some'} samples a system",
        _table(report).text(),
    ]
    if privacy is None:
        lines.append("NOT PRIVATE: the run was started with ε = inf")
    else:
        lines.append(privacy["statement"])
        if privacy["everything"]["num_runs"] > 1:
            lines.append(privacy["everything"]["statement"])
        if len({scope["unit"] for scope in privacy["systems"].values()}) > 1:
            lines += [f"{name}: adding or removing {of['protects']}" for name, of in privacy["systems"].items()]
        if (card := report.get("card")) is not None:
            state = "VERIFIED" if card["verified"] else f"NOT VERIFIED: {'; '.join(card['reasons'])}"
            lines.append(f"Privacy card: {state}")
    told = [note for values in report["metrics"].values() for note in values.get("notes") or () if note == NOT_COVERED]
    lines += dict.fromkeys([*told, *filter(None, [report.get("parsers_note")])])
    flattered = [name for name, values in report["metrics"].items() if values.get("chosen_by_this_parser")]
    lines += [f"{name}: {CHOSEN_BY_JUDGE}" for name in flattered]
    if any(len(with_sound_mauve(values)) < len(values) for values in report["metrics"].values()):
        lines.append(f"no MAUVE is shown: it needs at least {LEAST_FOR_MAUVE} samples")
    left_out = report["left_out"] | report.get("parsers_left_out", {})
    lines += [f"left out: {name}: {why}" for name, why in left_out.items()]
    return "\n".join([*lines, *_samples(record, report["metrics"], num_samples)])


def _samples(record: RunFolder, names: Iterable[str], number: int) -> list[str]:
    """The first different samples of four words or more, of the first file that is as it was made."""
    made, manifest = record.manifest.samples(), record.manifest
    entries = [made[name] for name in sorted(names, key=lambda name: not system(name).is_main) if name in made]
    entry = next((own for own in entries if not manifest.stale_inputs(own.path, may_be_gone=True)), None)
    if entry is None or not manifest.path(entry).is_file():
        return []
    texts = dict.fromkeys(line["utterance"] for _, line in read_json_lines(manifest.path(entry)))
    shown = [text for text in texts if len(text.split()) >= 4][:number]
    return [f"From {manifest.path(entry)}:", *(f"  {text}" for text in shown)]


def _table(report: dict[str, Any]) -> Table:
    """A row for each system, and one for human turns; a column for each headline metric that some system has."""
    scopes = (report["privacy"] or {"systems": {}})["systems"]
    missing, parsers = report.get("missing_function"), report.get("parser_metrics", {})
    rows = {name: with_sound_mauve(report["metrics"].get(name, {})) for name in (*report["metrics"], *parsers)}
    for name, values in parsers.items():
        rows[name] |= {
            "exact_match": values.get("exact_match"),
            "exact_match@missing": values.get(f"exact_match@{missing}"),
        }
    columns = []
    independent, own = judged(rows.values())
    for first in ("fluency_outliers", *independent, *_COLUMNS, *_OF_PARSERS, *own):
        names = (first, *INSTEAD.get(first, ()))
        columns += [n for n in names if any(values.get(n) is not None for values in rows.values())][:1]
    table = Table(["", "ε", "spent so far", "protects one", *(measure(name).label for name in columns)])
    for name, values in rows.items():
        scope = scopes.get(system(name).scope, {})
        is_void = scope.get("epsilon") is None
        spent = ["not private", None] if is_void else [f"{scope['target_epsilon']:.4g}", f"{scope['epsilon']:.4g}"]
        cells = [measure(column).show(values.get(column)) for column in columns]
        table.rows.append([system(name).label, *spent, scope.get("unit"), *cells])
    human = {
        column: next(
            (v for values in report["metrics"].values() if (v := human_value(values, column)) is not None), None
        )
        for column in columns
    }
    table.rows.append(
        ["human requests", None, None, None, *(measure(name).show(value) for name, value in human.items())]
    )
    return table
