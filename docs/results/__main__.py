"""Writes docs/results.md, the pages of details here and figures from the CSV files here: ``python -m docs.results``."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from commands.quality import tables
from commands.quality.frame import pool, read_csv
from commands.quality.measures import SHOWN, measure
from commands.report.charts import draw_curves
from doppel.console.plan import MEASURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
#: Page → its template.
PAGES = {
    HERE.parent / "results.md": "results.md.jinja",
    HERE / "details.md": "details.md.jinja",
    HERE / "earlier.md": "earlier.md.jinja",
}


def written(template: str) -> str:
    """A page, by its template, in which ``table`` and ``value`` read the files: no number is typed twice."""
    made = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True)
    functions = {
        "table": table,
        "value": value,
        "gpu_table": gpu_table,
        "gpu_value": gpu_value,
        "users_table": users_table,
        "words_table": words_table,
    }
    text = made.get_template(template).render(**functions, inf=math.inf)
    return "\n\n".join(map(_wrapped, text.rstrip().split("\n\n"))) + "\n"


def _wrapped(block: str) -> str:
    """A paragraph or list of a page at one width; tables, headings and figures as they are."""
    if not block or block.lstrip()[0] in "|#<!":
        return block.strip("\n")
    items = [" ".join(item.split()) for item in re.split(r"\n(?=- )", block.strip())]
    indents = ["  " if item.startswith("- ") else "" for item in items]
    fill = textwrap.TextWrapper(145, break_long_words=False, break_on_hyphens=False)
    lines = []
    for item, fill.subsequent_indent in zip(items, indents, strict=True):
        lines += fill.wrap(item)
    return "\n".join(lines)


def table(file: str, rows: str, metrics: str, *, paper: bool = False, **settings: Any) -> str:
    """A table of one file.

    Args:
        file: Its name, without ``.csv``.
        rows: Settings that name a row, a word each.
        metrics: Columns, a word each; those that no row has are left out.
        paper: Whether the paper's numbers stand beside ours.
        settings: Which rows of the file: a value, a list of values, or None for those that have none.
    """
    own = _chosen(file, settings)
    own = tables.beside_paper(own) if paper else own
    return tables.table(own, rows.split(), [name for name in metrics.split() if name in set(own["metric"])]).markdown()


def value(file: str, metric: str, **settings: Any) -> str:
    """Mean ± deviation of a metric over the seeds of one setting, as tables show it."""
    own = _chosen(file, settings | {"metric": metric})
    if len(own) != 1:
        raise ValueError(f"{file}.csv has {len(own)} settings with {metric} of {settings}, not one")
    return measure(metric.removeprefix("human_")).show(own["value"].item(), own["std"].item())


def gpu_table(file: str, runs: dict[str, str], metrics: str, minutes: dict[str, str] | None = None) -> str:
    """A table of what ``benchmarks/gpu`` measured, on the second half of the dialogues of ``valid``.

    Args:
        file: Of benchmarks/results, without ``.csv``.
        runs: What a row is called → its runs, as :func:`gpu_value` takes them.
        metrics: Columns, a word each.
        minutes: What a row is called → CPU minutes, for a column of them.
    """
    labels = [*(measure(name).label for name in metrics.split()), *(["CPU minutes"] if minutes else []), "seeds"]
    lines = ["| | " + " | ".join(labels) + " |", "|---" * (len(labels) + 1) + "|"]
    for label, words in runs.items():
        cells = [gpu_value(file, name, words) for name in metrics.split()]
        cells += [minutes.get(label, "")] if minutes else []
        cells += ["" if words == "human" else str(len(words.split()))]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gpu_value(file: str, metric: str, runs: str) -> str:
    """A cell of such a table; a dash where nothing was measured.

    Args:
        file: Of benchmarks/results, without ``.csv``.
        metric: Which.
        runs: A word each: mean ± unbiased standard deviation where they are several. Of ``human`` stand the values of
            real requests.
    """
    own = pd.read_csv(HERE.parents[1] / "benchmarks" / "results" / f"{file}.csv")
    own = own[own["reference"] == "second half of valid"]
    words = runs.split()
    if runs == "human" and runs not in set(own["run"]):
        key = f"human_{metric}" if f"human_{metric}" in set(own["metric"]) else f"reference_{metric}"
        found = own[own["metric"] == key]["value"].head(1)
    else:
        found = own[own["run"].isin(words) & (own["metric"] == metric)]["value"]
        if len(found) not in (0, len(words)):
            raise ValueError(f"{file}.csv has {len(found)} values of {metric} for the runs {runs}")
    return "–" if found.empty else measure(metric).show(found.mean(), found.std())


def users_table() -> str:
    """The runs that ``python cli.py plan`` names: how near samples come by the number of requests and the batch."""
    of = ("mauve_minilm", "mauve_smollm2_135m", "fluency", "word_overlap")
    labels = ["data", "system", "N", "B", "steps", *(measure(name).label for name in of), "seeds"]
    lines = ["| " + " | ".join(labels) + " |", "|---|---|" + "---:|" * (len(labels) - 2)]
    for data, rows in pd.read_csv(MEASURED).groupby("data", sort=False):
        for _, row in rows.iterrows():
            sizes = [f"{row[name]:,}" for name in ("num_units", "batch_size", "steps")]
            found = [measure(name).show(row[name]) for name in of]
            lines.append("| " + " | ".join([data, row["system"], *sizes, *found, str(row["seeds"])]) + " |")
        human = [measure(name).show(rows[f"human_{name}"].iloc[-1]) for name in of[:-1]]
        lines.append("| " + " | ".join([data, "real requests", "", "", "", *human, "–", ""]) + " |")
    return "\n".join(lines)


def words_table() -> str:
    """What words that nobody expected are worth, by data, unit, N and ε: sums over the seeds."""
    lines = [
        "| data, reference | unit, N | ε | σ | words shown | precision | named "
        "| shows from | intervals right | cost in σ |",
        "|---|---|" + "---:|" * 8,
    ]
    own = pd.read_csv(HERE / "unexpected-words.csv")
    for (data, setting, epsilon), rows in own.groupby(["data", "setting", "epsilon"], sort=False):
        of = rows.groupby("metric")["value"]
        total, mean = of.sum(), of.mean()
        themes = _themes(rows)
        large = themes[themes["share"] >= 0.025]
        num = total["num_words"]
        right, held = (f"{total[name] / num:.2f}" if num else "–" for name in ("num_right", "num_intervals_right"))
        cells = [f"{epsilon:g}", f"{mean['sigma']:.1f}", f"{num:.0f}", right]
        cells += [f"{large['value'].sum():.0f} of {len(large)}", f"{100 * mean['least']:.2f} %"]
        cells += [held, f"{100 * mean['cost_in_sigma']:.1f} %"]
        lines.append("| " + " | ".join([data, setting, *cells]) + " |")
    return "\n".join(lines)


def _themes(rows: pd.DataFrame) -> pd.DataFrame:
    """Hidden themes with their share of the units, and whether a word names them (``named@SHARE``)."""
    named = rows[rows["metric"].str.startswith("named@")]
    return named.assign(share=named["metric"].str.partition("@")[2].astype(float))


def draw_words(frame: pd.DataFrame) -> Figure:
    """The chance that a hidden theme is named against its share of the units, a line for each N of utterances."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    own = _themes(frame[(frame["epsilon"] > 1) & (frame["data"] == "sgd, same source")])
    edges = [0, 0.01, 0.025, 0.05, 0.1, 1]
    for setting, rows in own.groupby("setting", sort=False):
        binned = rows.groupby(pd.cut(rows["share"], edges), observed=True).agg(x=("share", "mean"), y=("value", "mean"))
        axes.plot(100 * binned["x"], binned["y"], "o-" if "utterance" in str(setting) else "s--", label=setting)
    axes.set(xlabel="share of the units, %", ylabel="chance of being named", ylim=(-0.05, 1.05))
    axes.legend(fontsize=8)
    return figure


def draw_users(frame: pd.DataFrame, larger: pd.DataFrame) -> Figure:
    """MAUVE against the number of requests, a line for each data set, system and machine; real requests are dotted.

    Args:
        frame: What ``plan`` names, of the shipped base.
        larger: Rows of users-135m.csv.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    colors = {data: f"C{place}" for place, data in enumerate(frame["data"].unique())}
    ticks = [2000, 5000, 10000, 40000, 100000]
    for axes, name in zip(figure.subplots(1, 2), ("mauve_minilm", "mauve_smollm2_135m"), strict=True):
        for (data, system, machine), line in frame.groupby(["data", "system", "machine"], sort=False):
            batches = " to ".join(
                f"{batch:,}" for batch in sorted({line["batch_size"].min(), line["batch_size"].max()})
            )
            style = "s--" if system == "two_stage" else "o-" if "NVIDIA" in machine else "o--"
            label = f"{data}, {system}, B = {batches}"
            axes.plot(line["num_units"], line[name], style, color=colors[data], label=label)
            axes.axhline(line[f"human_{name}"].iloc[-1], color=colors[data], linestyle=":", linewidth=1)
        own = larger[(larger["metric"] == name) & (larger["system"] == "one_stage")]
        means = own.groupby(own["setting"].str.replace(r"\D", "", regex=True).astype(int))["value"].mean()
        if len(means):
            label = f"{own['data'].iloc[0]}, one_stage, B = 512, SmolLM2-135M"
            axes.plot(means.index, means, "^-.", color=colors[own["data"].iloc[0]], label=label)
        axes.set(xscale="log", ylim=(0, 1), xlabel="private requests N", ylabel=measure(name).label)
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
    left, right = figure.axes
    right.legend(*left.get_legend_handles_labels(), fontsize=7, loc="lower right")
    return figure


def _chosen(file: str, settings: dict[str, Any]) -> pd.DataFrame:
    own = read_csv(HERE / f"{file}.csv")
    for name, wanted in settings.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        own = own[own[name].where(own[name].notna(), None).isin(values)]
    return pool(own)


def main() -> None:
    """Write the pages and their figures."""
    for page, template in PAGES.items():
        page.write_text(written(template), encoding="utf-8")
    draw_users(pd.read_csv(MEASURED), read_csv(HERE / "users-135m.csv")).savefig(
        HERE / "users.png", dpi=110, bbox_inches="tight"
    )
    words = draw_words(pd.read_csv(HERE / "unexpected-words.csv"))
    words.savefig(HERE / "unexpected-words.png", dpi=110, bbox_inches="tight")
    best = read_csv(HERE / "smcalflow-best-small.csv")
    of = ["mauve_minilm", "mauve_smollm2_135m", "word_overlap", "parsed_chi_square", "parsed_function_overlap"]
    shown = best["setting"].isna() & best["system"].isin(["one_stage", "two_stage"]) & best["metric"].isin(of)
    draw_metrics(best[shown]).savefig(HERE / "smcalflow-best-small.png", dpi=110, bbox_inches="tight")
    draw_orders(read_csv(HERE / "divergence.csv")).savefig(HERE / "divergence.png", dpi=110, bbox_inches="tight")
    curves = draw_redaction(read_csv(HERE / "redaction.csv"), read_csv(HERE / "next-word.csv"))
    curves.savefig(HERE / "redaction.png", dpi=110, bbox_inches="tight")
    draw_losses(read_csv(HERE / "pretrain-135m.csv")).savefig(HERE / "pretrain-135m.png", dpi=110, bbox_inches="tight")


def draw_metrics(frame: pd.DataFrame) -> Figure:
    """Each metric against ε, a line for each setting with its deviation over seeds; the paper's are dashed."""
    from matplotlib.figure import Figure

    drawn = tables.lines(frame)
    names = sorted(set(drawn["metric"]), key=SHOWN.index)
    figure = Figure(figsize=(9, 3 * math.ceil(len(names) / 2)), layout="constrained")
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(math.ceil(len(names) / 2), 2, place)
        draw_curves(axes, drawn[drawn["metric"] == name])
        axes.set_title(measure(name).label)
    return figure


def draw_orders(frame: pd.DataFrame) -> Figure:
    """Divergence against its order (``divergence@ORDER``), a line for each setting, over all seeds."""
    import seaborn as sns
    from matplotlib.figure import Figure

    rows = frame[frame["metric"].str.startswith("divergence@")]
    lines = rows.assign(order=rows["metric"].str.partition("@")[2].astype(float))
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    sns.lineplot(
        lines, x="order", y="value", hue="setting", style="setting", markers=True, dashes=False, seed=0, ax=axes
    )
    axes.set(xscale="log", yscale="log", xlabel="order α", ylabel="Rényi divergence, nats")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.legend(title=None)
    return figure


def draw_redaction(told: pd.DataFrame, trained: pd.DataFrame) -> Figure:
    """What redaction, word-level mechanisms and private training leave to an attacker, and of a next-word model.

    Args:
        told: Attack and divergence of a setting such as ``logistic, p = 0.1`` or ``custext, word-level ε = 5``.
        trained: Perplexity and distances of weights of a setting such as ``p = 0.1`` or ``DP-SGD, ε = 4``.
    """
    import seaborn as sns
    from matplotlib.figure import Figure

    frame = pd.concat([told[told["data"] == "SGD"], trained])
    parts = frame["setting"].str.extract(r"(?:(?P<way>[^,]+), )?(?P<scale>.+) = (?P<amount>.+)")
    frame = frame.assign(way=parts["way"].fillna(""), scale=parts["scale"], amount=parts["amount"].astype(float))
    weights = frame["metric"].str.extract(r"(?P<distance>pwcca|procrustes)_(?P<part>encoder|decoder)")
    frame["weights"] = weights["distance"].map({"pwcca": "PWCCA", "procrustes": "Procrustes"}) + ", " + weights["part"]
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels: list[tuple[str, str, str, str]] = [
        ("attack_accuracy", "p", "share p of hidden words", "attack accuracy (.5 is chance)"),
        ("divergence_2_estimate", "p", "p", "divergence, nats (estimate)"),
        ("attack_accuracy", "word-level ε", "word-level ε", "attack accuracy (.5 is chance)"),
        ("log_perplexity", "p", "p, of redacted text", "cross-entropy per word (nats)"),
        ("log_perplexity", "ε", "ε of DP-SGD", "cross-entropy per word (nats)"),
        ("weights", "p", "p", "distance of weights"),
    ]
    for axes, (metric, scale, x, y) in zip(figure.subplots(2, 3).flat, panels, strict=True):
        rows = frame[frame["scale"] == scale]
        rows = rows[rows["weights"].notna()] if metric == "weights" else rows[rows["metric"] == metric]
        if metric == "log_perplexity":
            rows = rows[rows["amount"] < 1] if scale == "p" else rows  # all masked: nothing was learnt
        hue = "weights" if metric == "weights" else "way"
        many = rows[hue].nunique() > 1
        sns.lineplot(rows, x="amount", y="value", hue=hue if many else None, marker="o", seed=0, ax=axes)
        axes.set(xlabel=x, ylabel=y, xscale="linear" if scale == "p" else "log")
        if many:
            axes.legend(title=None, fontsize=8)
    return figure


def draw_losses(frame: pd.DataFrame) -> Figure:
    """Loss on held-out public text against the tokens that were read (``loss@TOKENS``), a line for each setting."""
    import seaborn as sns
    from matplotlib.figure import Figure

    lines = frame.assign(tokens=frame["metric"].str.partition("@")[2].astype(int))
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    sns.lineplot(lines, x="tokens", y="value", hue="setting", style="setting", markers=True, dashes=False, ax=axes)
    axes.set(xlabel="tokens read", ylabel="cross-entropy per token (nats), held-out public text")
    axes.legend(title=None)
    return figure


if __name__ == "__main__":
    main()
