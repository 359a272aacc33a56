"""The one table of metrics: how readers call each, what it and its values mean, and what human requests have."""

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
#: Texts a side under which no MAUVE is shown: at 300, runs that differ in their seed alone differed by up to .15.
LEAST_FOR_MAUVE: Final = 500
#: Judges of MAUVE that have a name for readers; another one is called as its model.
_JUDGES = {
    "minilm": "MiniLM",
    "smollm2_135m": "SmolLM2-135M",
    "gpt2_large": "GPT-2 large",
    OWN_BASE: "generator's base",
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
        """Format a value, with its standard deviation over seeds where there is one; a dash where there is none."""
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
    about = (
        "how alike samples and reference are; biased, for the generator was trained from this model"
        if judge == OWN_BASE
        else ""
    )
    return Measure(
        f"mauve_{judge}",
        f"MAUVE ({_JUDGES.get(judge, judge.replace('_', ' '))} features)",
        about or "how alike samples and reference are; private requests unlike the reference lower it",
        UP,
    )


#: Every metric that has a name for readers, in the order of tables.
MEASURES = {
    measure.name: measure
    for measure in (
        *(_mauve(name) for name in _JUDGES if name != OWN_BASE),
        Measure("fluency", "cross-entropy per word (nats)", "under a public language model", ALIKE, 2),
        Measure(
            "fluency_outliers",
            "above human 95th percentile",
            "share of texts whose loss is above the 95th percentile of human requests of that length",
            ALIKE,
            1,
            True,
        ),
        Measure(
            "precision_minilm",
            "precision (MiniLM features)",
            "texts that are as near to a human request as its third nearest one is; private requests unlike the "
            "reference lower it",
            UP,
            1,
            True,
        ),
        Measure("usable", "usable", "samples that readers took for what people could have said", UP, 0, True),
        Measure(
            "usable_fitting", "usable and fitting", "usable samples that ask for what their label says", UP, 0, True
        ),
        Measure("word_overlap", "word overlap", "words of human requests that the samples use too", UP),
        *_trees("chi_square", "χ²", "distance of function frequencies from those of human requests", DOWN),
        *_trees("function_overlap", "function overlap", "functions of human requests that the samples use too", UP),
        *(
            Measure(
                f"parsed_top_{k}_overlap",
                f"top-{k}",
                f"the {k} most frequent functions that both sides share",
                UP,
                digits=2,
            )
            for k in (10, 25, 50, 100)
        ),
        Measure(
            "parsed_own_tree_match", "round-trip parse match", "texts parsed as the tree they were written from", UP
        ),
        Measure("valid_trees", "well-formed trees", "", UP, 0, True),
        Measure("distinct", "distinct", "different texts, as a share of all", ALIKE, 0, True),
        Measure("commonest", "most frequent", "share of the most frequent text", ALIKE, 1, True),
        Measure("mean_words", "mean words", "words in a request", ALIKE, 1),
        Measure("distinct_trees", "distinct trees", "different trees, as a share of all", ALIKE, 0, True),
        Measure("commonest_tree", "most frequent tree", "share of the most frequent tree", ALIKE, 1, True),
        Measure("exact_match", "exact match", "requests whose tree the parser writes exactly", UP, 1, True),
        Measure("api_precision", "API precision", "function calls of the parser that are right", UP, 1, True),
        Measure("api_recall", "API recall", "function calls of the tree that the parser finds", UP, 1, True),
        Measure("samples_with_function", "samples with the function", "as a parser reads them", "", 1, True),
        _mauve(OWN_BASE),
        Measure(
            "attribute_jsd", "JSD of attributes", "distance of attribute shares from those of human requests", DOWN
        ),
        Measure(
            "attribute_adherence",
            "attribute accuracy",
            "attributes of the prompt that are read in the text",
            UP,
            1,
            True,
        ),
        Measure(
            "attribute_adherence_chance", "attribute accuracy, shuffled", "the same with shuffled texts", "", 1, True
        ),
        Measure(
            "attribute_downstream",
            "downstream accuracy",
            "attributes of human requests that a classifier trained on samples predicts",
            UP,
            1,
            True,
        ),
        Measure("attribute_downstream_majority", "majority class", "the same of the majority class", "", 1, True),
        Measure(
            "next_token_accuracy",
            "next-token accuracy",
            "on human requests, of a model trained on samples",
            UP,
            1,
            True,
        ),
        Measure("total_variation", "total variation", "mean distance of the shares of attribute pairs", DOWN),
        Measure("answers", "generator calls", "", "", 0),
        Measure(
            "attack_accuracy",
            "attack accuracy",
            "a classifier that tells the two redacted sets apart; .5 is chance",
            DOWN,
        ),
        Measure(
            "masks_guessed_first", "masks guessed", "masked words that a public model guesses first", DOWN, 0, True
        ),
        Measure("masks_guessed_in_ten", "masks guessed in ten", "", DOWN, 0, True),
        Measure("divergence_2_estimate", "divergence (estimate)", "Rényi divergence of order 2, in nats", DOWN, 2),
        Measure("cpu_minutes", "CPU minutes", "training and sampling, one core", "", 0),
        Measure("private/exact_copies", "exact copies (not private)", "samples that equal a training request", ALIKE),
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
    """Return a metric by its name in reports (``NAME@TURNS``). One without a name has four digits."""
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
    """Return the MAUVE of each judge that some system has: of the independent ones, and of the generator's own base."""
    own, every = f"mauve_{OWN_BASE}", list(metrics)
    found = dict.fromkeys(name for values in every for name, value in values.items() if value is not None)
    known = [f"mauve_{judge}" for judge in _JUDGES]
    others = sorted(name for name in found if name.startswith("mauve_") and name not in known)
    return [name for name in (*known, *others) if name in found and name != own], [own] if own in found else []


@dataclass(frozen=True)
class Band:
    """What values of a metric mean, and what to do about them.

    Attributes:
        below: They are smaller than this.
        text: The meaning, in words.
        is_bad: Whether a page warns of such samples before it shows anything of them.
        of_beams: What is so of beams besides, for samples that were drawn with some.
    """

    below: float
    text: str
    is_bad: bool = False
    of_beams: str = ""

    def told(self, has_beams: bool) -> str:
        """Return the meaning for samples that were drawn with beams, or without."""
        return f"{self.text} {self.of_beams}" if has_beams and self.of_beams else self.text


_MAUVE = (
    Band(
        0.6,
        "Far from people's requests: so were runs with 2,000 to 9,964 requests (.21–.59 of the human value).",
        True,
    ),
    Band(0.92, "Where most runs with 10,060 requests at ε = 3 are. More requests and larger batches raised it."),
    Band(math.inf, "As near as runs without privacy came (.83–.99 of the human value)."),
)
#: Of headline metrics, what values mean, by the runs of ``docs/results`` and ``benchmarks/results``: of each MAUVE and
#: of precision as a part of the human value, of the cross-entropy as a difference from it.
BANDS: Final = {
    "fluency_outliers": (
        Band(
            0.04,
            "Smoother than people's requests, as samples of the judge's own kin, SmolLM2-135M, are.",
            of_beams="Five beams, which repeat themselves, were so too.",
        ),
        Band(0.18, "Where runs with 2,000 to 40,000 requests at ε = 3 are (6–17 %)."),
        Band(0.5, "More than there: 20–23 % came with non-words, as names were not placeholders (model.slots)."),
        Band(
            math.inf,
            "Most of these are no requests: scrambled words have 53 %, and 77 % were web texts of a generator that had "
            "read no requests, with a MAUVE of .83 all the same. Read some, and do not use them.",
            True,
        ),
    ),
    "mauve_minilm": _MAUVE,
    "mauve_smollm2_135m": _MAUVE,
    "fluency": (
        Band(
            -0.2,
            "More predictable than people's requests: not a better match. SmolLM2-135M was so, which judges here.",
            of_beams="So were five beams.",
        ),
        Band(1.1, "Where runs with 10,060 requests at ε = 3 are (+.4 to +1.0 nats)."),
        Band(math.inf, "Odder than there. What such texts were stands at the share above the human 95th percentile."),
    ),
    "precision_minilm": (
        Band(
            0.5,
            "Most of these say nothing that a public request does: 10 and 15 % did so of a support desk's samples of "
            "which 11 and 4 of 40 were usable, and 76 % of its private requests.",
            True,
        ),
        Band(
            0.7,
            "Far from people's: a generator's texts were at 59 %, and one or none of 40 was usable; a support desk's "
            "samples by label at 68 %, and 20 and 21 were.",
            True,
        ),
        Band(
            0.9,
            "Fewer than of people's. Read blind, 28 to 34 of 40 samples of SmolLM2-135M were usable at 81–89 % of the "
            "human value (a support desk's), 9 to 13 of the shipped base at 77–86 %.",
        ),
        Band(
            math.inf,
            "As many as of people's. Read blind, 23 to 35 of 40 samples of SmolLM2-135M were usable here, 37 to 39 of "
            "people's.",
        ),
    ),
    "word_overlap": (
        Band(0.27, "Few of people's words: reviews had .10–.16.", of_beams="Five beams had .11–.26."),
        Band(math.inf, "Where runs with 2,000 to 40,000 requests at ε = 3 are (.28–.41)."),
    ),
    "parsed_chi_square": (
        Band(0.06, "Where runs with 2,000 to 10,060 requests at ε = 3 are (.03–.05)."),
        Band(math.inf, "Farther than any measured run: believe no share that was counted in these samples."),
    ),
    "parsed_function_overlap": (
        Band(0.66, "Functions are missing that runs at ε = 3 had (.67–.78): their shares are too small here."),
        Band(math.inf, "Where runs with 2,000 to 10,060 requests at ε = 3 are (.67–.78)."),
    ),
    "parsed_own_tree_match": (
        Band(0.14, "Texts do not say their trees: .09 came with a base that had read no trees. Train on no such pair."),
        Band(math.inf, "Runs at ε = 3 had .15–.22, one without privacy .38: most texts do not say all of their tree."),
    ),
    "distinct": (
        Band(0.78, "They repeat themselves: sampling had .80–.99.", of_beams="Five beams had .34–.69."),
        Band(math.inf, "Where runs that sample are (.80–.99)."),
    ),
}
#: Bands of shares that depend on what people do: no fault where they have no more.
_AS_PEOPLE = frozenset({"distinct", "word_overlap"})
_IGNORED = Band(
    math.inf,
    "Useless: the texts follow their attributes no more than shuffled ones do. Only the tables hold. So it was with "
    "reviews (.313, shuffled .311).",
    True,
)


def band(metrics: Mapping[str, Any], name: str) -> Band | None:
    """Return what a value means, by measured runs; None where none was measured, or its human value is missing.

    The human value of MAUVE is of two halves where the reference has no more requests. Those of fewer than
    :data:`LEAST_FOR_MAUVE` texts differ by more than two bands do: then only what is far from it is told.
    """
    value, human = metrics.get(name), human_value(metrics, name)
    if value is None:
        return None
    if name == "attribute_adherence" and (chance := metrics.get(f"{name}_chance")) is not None:
        error = math.sqrt(chance * (1 - chance) / metrics.get("num_compared", LEAST_FOR_MAUVE))
        return _IGNORED if value - chance < 2 * error else None
    if name == "fluency" or name.startswith(("mauve_", "precision_")):
        if not human:
            return None
        value = value - human if name == "fluency" else value / human
    elif name in _AS_PEOPLE and human is not None and value >= human:  # who has no more of it themselves
        return None
    found = next((band for band in BANDS.get(name, ()) if value < band.below), None)
    is_rough = name.startswith("mauve_") and metrics.get("human_num_compared", LEAST_FOR_MAUVE) < LEAST_FOR_MAUVE
    return found if not is_rough or (found is not None and found.is_bad) else None


def with_sound_mauve(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics of a system without each MAUVE of too few texts; all where nobody says how many they were."""
    is_sound = metrics.get("num_compared", LEAST_FOR_MAUVE) >= LEAST_FOR_MAUVE
    return {name: value for name, value in metrics.items() if is_sound or "mauve_" not in name}


def human_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the value that human requests have of a metric, such as ``private/exact_copies``; None without one."""
    room, _, own = name.rpartition("/")
    room += "/" if room else ""
    names = [f"{room}{word}_{own}" for word in ("human", "reference")]
    if own == "parsed_own_tree_match":
        names = [f"{room}ground_truth_exact_match"]
    elif own.startswith("parsed_"):  # of other requests, with a parser's errors; those of a report before, without
        names = [f"{room}human_{own}", f"{room}human_{own.removeprefix('parsed_')}"]
    value = next((metrics[key] for key in names if metrics.get(key) is not None), None)
    return float(value) if isinstance(value, int | float) else None


def is_baseline(name: str) -> bool:
    """Return whether a metric is the human value of another one."""
    return name.rpartition("/")[2].startswith(("human_", "reference_", "ground_truth_"))
