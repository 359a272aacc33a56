"""A report as people read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands.pipeline.systems import system
from commands.quality.evaluate import CHOSEN_BY_JUDGE
from commands.quality.human import human_value, is_baseline
from commands.quality.table import Table, show

_SPENT = ("epsilon", "delta", "unit", "accountant", "noise_multiplier")
#: Figures of the story, with the names of the first that a system has.
_STORY = {
    "word overlap": ("word_overlap",),
    "MAUVE": ("mauve",),
    "function overlap": ("parsed_function_overlap", "function_overlap"),
    "own-tree match": ("parsed_own_tree_match",),
    "valid trees": ("valid_trees",),
}


def render(report: dict[str, Any], synthetic: Path, utterances: list[str]) -> str:
    """All figures, some ``utterances`` of the file ``synthetic``, and the run in a few sentences."""
    parts = [metrics_table(report), *_privacy(report)]
    if report.get("parser_metrics"):
        parts += ["", parser_table(report)]
    judged = [name for name, values in report["metrics"].items() if values.get("chosen_by_this_parser")]
    parts += [f"note: {name}: {CHOSEN_BY_JUDGE}" for name in judged]
    for field in ("left_out", "parsers_left_out"):
        parts += [f"left out: {name}: {why}" for name, why in report.get(field, {}).items()]
    parts += _dropped(report.get("draws", {}))
    for name, told in report.get("calibration", {}).items():
        noise = "exact, NOT PRIVATE" if told["noise_multiplier"] is None else f"σ = {told['noise_multiplier']:g}"
        parts.append(
            f"{name}: {told['num_drawn']} {told.get('of', 'trees')} drawn from {told['num_pool']} by the shares of "
            f"{told['num_bins']} {told.get('what', 'function types')} ({noise}); distance "
            f"{told['distance_before']:.3f} before, {told['distance_after']:.3f} after"
        )
    parts += ["", f"Synthetic utterances (of {synthetic.name}; the first different ones of four words or more):"]
    parts += [f"  {text}" for text in utterances]
    return "\n".join([*parts, "", *_story(report, synthetic)])


def metrics_table(report: dict[str, Any]) -> str:
    """One column a system: what it spent, and every figure; the last one has what human turns have in its place."""
    metrics, scopes = report["metrics"], (report["privacy"] or {"systems": {}})["systems"]
    table = Table(["", *metrics, "human turns"])
    if scopes:
        own = [scopes.get(system(name).scope, {}) for name in metrics]
        table.rows += [[key, *(scope.get(key) for scope in own), None] for key in _SPENT]
    for name in dict.fromkeys(name for values in metrics.values() for name in values):
        found = [values.get(name) for values in metrics.values()]
        if any(isinstance(value, int | float) for value in found) and not is_baseline(name):
            human = next((v for values in metrics.values() if (v := human_value(values, name)) is not None), None)
            table.rows.append([name, *found, human])
    return table.text()


def parser_table(report: dict[str, Any]) -> str:
    """Table 3 of the paper as far as the run has it: a line for each parser, in percent."""
    missing = report["missing_function"]
    table = Table(["parser", f"turns with {missing}", "other turns", "all turns"])
    for name, values in report["parser_metrics"].items():
        cells = []
        for part in (f"@{missing}", f"@not {missing}", ""):
            found = (values.get(f"{m}{part}") for m in ("exact_match", "api_precision", "api_recall"))
            cells.append(" / ".join("–" if value is None else f"{100 * value:.1f}" for value in found))
        table.rows.append([name, *cells])
    return f"Parsers: graph match / API precision / API recall, in percent\n{table.text()}"


def _dropped(draws: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Which texts were no samples, file by file."""
    lines = []
    for file, count in (item for files in draws.values() for item in files.items()):
        told = [f"{number} {key.partition('/')[2]}" for key, number in count.items() if key.startswith("dropped/")]
        if told:
            missing = f"; {count['num_missing']} samples are missing" if count["num_missing"] else ""
            lines.append(f"  {file}: {', '.join(told)}, of {count['num_drawn']} texts{missing}")
    return ["", "Dropped, and drawn again (post-processing, which costs no ε):", *lines] if lines else []


def _privacy(report: dict[str, Any]) -> list[str]:
    """What the samples of all systems spend together."""
    privacy = report["privacy"]
    if not privacy:
        return ["", "NOT PRIVATE: the run was started with ε = inf"]
    scopes = privacy["systems"]
    together = show(privacy["epsilon_if_all_systems_are_released"])
    lines = ["", f"ε if the samples of all systems are released: {together}", privacy["statement"]]
    if privacy["everything"]["num_runs"] > 1:
        lines.append(privacy["everything"]["statement"])
    if len({scope["unit"] for scope in scopes.values()}) > 1:
        lines += [f"{name}: adding or removing {scope['protects']}" for name, scope in scopes.items()]
    return [*lines, *_card(report.get("card"))]


def _card(card: dict[str, Any] | None) -> list[str]:
    """Whether the run is signed off, and what prevents it; the whole card lies beside the report."""
    if card is None:
        return []
    if card["signed"]:
        return ["", "Privacy card: SIGNED OFF; hand on privacy_card.json or privacy_card.txt with the samples."]
    return ["", "Privacy card: NOT SIGNED OFF:", *(f"- {text}" for text in card["prevents"])]


def _story(report: dict[str, Any], synthetic: Path) -> list[str]:
    """What was done, what it cost, what came of it and where it is."""
    data, privacy = report["data"], report["privacy"]
    units = f" ({data['num_units']} units)" if data.get("num_units") else ""
    lines = [
        f"In short: {report['experiment'] or 'this run'}, seed {report['seed']}, trained {report['base_model']} on "
    ]
    lines[0] += f"{data['train']}{units} and sampled {report['num_samples'] or 'some'} texts a system."
    scopes = privacy["systems"] if privacy else {}
    table = Table(["", "ε spent", "protects one", *_STORY])
    for name, values in report["metrics"].items():
        scope = scopes.get(system(name).scope, {})
        spent = "not private" if scope.get("epsilon") is None else scope["epsilon"]
        keys = (next((key for key in names if values.get(key) is not None), names[0]) for names in _STORY.values())
        table.rows.append([system(name).label, spent, scope.get("unit"), *(values.get(key) for key in keys)])
    if privacy:
        target, delta = show(privacy["target_epsilon"]), show(privacy["delta"])
        lines.append(f"Each system alone was to spend ε = {target} at δ = {delta}; together they spend the ε above.")
    return [*lines, table.text(), f"The samples are in {synthetic} and beside it."]
