"""The one table of metrics: how readers call each, what it says, which way is better, and what human turns have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

#: Which way a metric is better.
UP: Final = "higher"
DOWN: Final = "lower"
ALIKE: Final = "as humans"
#: The judge that is the base of the generator itself, in ``mauve_own_base``: the last one to ask.
OWN_BASE: Final = "own_base"
#: Judges of MAUVE that have a name for readers; another one is called as its model.
_JUDGES = {
    "minilm": "MiniLM",
    "smollm2_135m": "SmolLM2-135M",
    "gpt2_large": "GPT-2 large",
    OWN_BASE: "the base's own features",
}


@dataclass(frozen=True)
class Measure:
    """A metric as reports call it, and as people read it.

    Attributes:
        name: In reports; ``@missing`` and ``@rest`` are the turns with an adaptation's function and the others.
        label: Its name for readers.
        about: What it says.
        better: Which way is better; empty where none is.
        digits: Decimals that are shown; None: three digits in all.
        is_percent: Whether it is a share that is shown in percent.
    """

    name: str
    label: str
    about: str = ""
    better: str = ""
    digits: int | None = 3
    is_percent: bool = False

    def show(self, value: float | None, std: float | None = None) -> str:
        """A value, and its deviation over seeds where there is one; a dash where there is none."""
        if value is None or math.isnan(value):
            return "–"
        scale = 100 if self.is_percent else 1
        digits = max(0, 2 - math.floor(math.log10(abs(value) or 1))) if self.digits is None else self.digits
        text = f"{scale * value:.{digits}f}"
        if std is not None and not math.isnan(std):
            text += f" ± {scale * std:.{digits}f}"
        return f"{text} %" if self.is_percent else text


def _trees(key: str, label: str, about: str, better: str) -> tuple[Measure, ...]:
    """A metric of trees: those read in the utterances, those drawn with them, and those of the nearest real turns."""
    kinds = {"parsed_": label, "": f"{label} of trees", "nearest_": f"{label} of nearest trees"}
    return tuple(Measure(kind + key, called, about, better) for kind, called in kinds.items())


def _mauve(judge: str) -> Measure:
    """MAUVE in the features of one judge."""
    about = "how alike the two sets of texts are to the generator's own base" if judge == OWN_BASE else ""
    return Measure(
        f"mauve_{judge}",
        f"MAUVE, {_JUDGES.get(judge, judge.replace('_', ' '))}",
        about or "how alike the two sets of texts are to a model that did not write them",
        UP,
    )


#: Every metric that has a name for readers, in the order of tables.
MEASURES = {
    measure.name: measure
    for measure in (
        *(_mauve(name) for name in _JUDGES if name != OWN_BASE),
        Measure("fluency", "nats a word", "how little a model of public text expects the texts", ALIKE, 2),
        Measure("fluency_outliers", "outliers", "texts less expected than 95 % of human turns", ALIKE, 1, True),
        Measure("word_overlap", "word overlap", "words of human turns that the samples use too", UP),
        *_trees("chi_square", "χ²", "how far the frequencies of functions are from those of human turns", DOWN),
        *_trees("function_overlap", "function overlap", "functions of human turns that the samples use too", UP),
        *(
            Measure(
                f"parsed_top_{k}_overlap",
                f"top-{k}",
                f"the {k} commonest functions that both sides share",
                UP,
                digits=2,
            )
            for k in (10, 25, 50, 100)
        ),
        Measure("parsed_own_tree_match", "own-tree match", "utterances read as the tree they were written from", UP),
        Measure("valid_trees", "well-formed trees", "", UP, 0, True),
        Measure("distinct", "distinct", "utterances that differ from all others", ALIKE, 0, True),
        Measure("commonest", "commonest", "share of the one commonest utterance", ALIKE, 1, True),
        Measure("mean_words", "mean words", "words in an utterance", ALIKE, 1),
        Measure("distinct_trees", "distinct trees", "trees that differ from all others", ALIKE, 0, True),
        Measure("commonest_tree", "commonest tree", "share of the one commonest tree", ALIKE, 1, True),
        Measure("exact_match", "exact match", "turns whose tree the parser writes exactly", UP, 1, True),
        Measure("api_precision", "API precision", "function calls of the parser that are right", UP, 1, True),
        Measure("api_recall", "API recall", "function calls of the tree that the parser finds", UP, 1, True),
        Measure("samples_with_function", "samples with the function", "as a parser reads them", "", 1, True),
        _mauve(OWN_BASE),
        Measure(
            "attribute_jsd", "JSD of attributes", "how far the shares of attributes are from those of human turns", DOWN
        ),
        Measure("attribute_adherence", "adherence", "attributes of the prompt that are read in the text", UP, 1, True),
        Measure("attribute_adherence_chance", "adherence by chance", "the same, texts dealt out anew", "", 1, True),
        Measure(
            "attribute_downstream",
            "downstream",
            "attributes of human turns that a classifier of samples finds",
            UP,
            1,
            True,
        ),
        Measure("attribute_downstream_majority", "commonest value", "the same of the commonest value", "", 1, True),
        Measure("next_token_accuracy", "next token", "next tokens of human turns that samples teach", UP, 1, True),
        Measure("total_variation", "total variation", "how far the shares of pairs of attributes are apart", DOWN),
        Measure("answers", "answers", "that a public generator was asked for", "", 0),
        Measure("attack_accuracy", "attack", "redacted rows of which a classifier tells the set; .5 is chance", DOWN),
        Measure("masks_guessed_first", "masks guessed", "first words that a public model guesses", DOWN, 0, True),
        Measure("masks_guessed_in_ten", "in ten guesses", "", DOWN, 0, True),
        Measure("divergence_2_estimate", "divergence (estimate)", "Rényi divergence of order 2, in nats", DOWN, 2),
        Measure("cpu_minutes", "CPU minutes", "of training, sampling and preparing both, on one core", "", 0),
        Measure("private/exact_copies", "exact copies (not private)", "samples that are a training utterance", ALIKE),
    )
}
#: What tables of results show, where a run has it; CSV files hold all.
SHOWN = [
    *("mauve_minilm", "mauve_smollm2_135m", "mauve_gpt2_large", "fluency", "fluency_outliers"),
    *("word_overlap", "parsed_chi_square", "parsed_function_overlap", "parsed_own_tree_match"),
    *(f"parsed_top_{k}_overlap" for k in (10, 25, 50, 100)),
    *("exact_match", "exact_match@missing", "exact_match@rest", "api_precision@missing", "api_recall@missing"),
    f"mauve_{OWN_BASE}",
]
#: Metrics that each attribute has too, ``attribute_jsd_stars``.
_OF_ATTRIBUTES = ("attribute_jsd", "attribute_adherence", "attribute_downstream_majority", "attribute_downstream")
#: Where several stand for one thing, the first that there is.
INSTEAD = {
    "parsed_chi_square": ("chi_square",),
    "parsed_function_overlap": ("function_overlap",),
}


def measure(name: str) -> Measure:
    """A metric by its name in reports; after an ``@`` stands on which turns. One without a name has four digits."""
    known, _, part = name.partition("@")
    found = MEASURES.get(known)
    own = next((of for of in _OF_ATTRIBUTES if found is None and known.startswith(f"{of}_")), None)
    if own is not None:
        attribute = known.removeprefix(f"{own}_").replace("_", " ")
        found = replace(MEASURES[own], label=f"{MEASURES[own].label}, {attribute}")
    elif found is None:
        judge = known.removeprefix("mauve_")
        found = Measure(known, known.replace("_", " "), digits=None) if judge == known else _mauve(judge)
    told = {"": "", "missing": ", missing function"}.get(part, f", {part}")
    return replace(found, name=name, label=found.label + told)


def judged(metrics: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The MAUVE of each judge that some system has: of the independent ones, and of the generator's own base.

    Args:
        metrics: Of each system, as ``evaluate`` writes them.
    """
    own, every = f"mauve_{OWN_BASE}", list(metrics)
    found = dict.fromkeys(name for values in every for name, value in values.items() if value is not None)
    known = [f"mauve_{judge}" for judge in _JUDGES]
    others = sorted(name for name in found if name.startswith("mauve_") and name not in known)
    return [name for name in (*known, *others) if name in found and name != own], [own] if own in found else []


def human_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """The value that human turns have of a metric; None where the report has none.

    Args:
        metrics: Of one system, as ``evaluate`` writes them.
        name: A metric, such as ``word_overlap`` or ``private/exact_copies``.
    """
    room, _, own = name.rpartition("/")
    room += "/" if room else ""
    names = [f"{room}{word}_{own}" for word in ("human", "reference")]
    if own.startswith("parsed_"):  # with a parser's errors, which both sides have
        names = [f"{room}ground_truth_{'exact_match' if own == 'parsed_own_tree_match' else own[7:]}"]
    value = next((metrics[key] for key in names if metrics.get(key) is not None), None)
    return float(value) if isinstance(value, int | float) else None


def is_baseline(name: str) -> bool:
    """Whether a metric is the human value of another one."""
    return name.rpartition("/")[2].startswith(("human_", "reference_", "ground_truth_"))
