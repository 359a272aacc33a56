"""All metrics of a parser's accuracy, as one collection or one dictionary."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchmetrics import MetricCollection

from doppel.lispress import LispressError, anonymise, read, write
from doppel.metrics.plain_number import plain_number
from doppel.metrics.tree_pairs import SMCALFLOW_APIS, ApiMatch, BagOfNodes, GraphMatch

PARSER_KEYS = ("exact_match", "api_precision", "api_recall", "node_precision", "node_recall", "num_turns")
_BATCH = 1024


def parser_metric_collection(
    functions: Sequence[str] = (), apis: Collection[str] = SMCALFLOW_APIS, prefix: str | None = None
) -> MetricCollection:
    """Build a torchmetrics collection whose ``update(predicted, gold)`` and ``compute()`` serve all values at once.

    ``compute`` returns one flat dictionary of scalar tensors; nan where no turn counts.

    Args:
        functions: patterns of the functions to tell apart, as in ``uses_function``.
        apis: node names that are API calls.
        prefix: put before every name, such as ``test/``.
    """
    metrics = [GraphMatch(functions), ApiMatch(apis, functions), BagOfNodes(functions)]
    return MetricCollection(metrics, prefix=prefix, compute_groups=False)  # type: ignore[arg-type]


def parser_metrics(
    predicted: Sequence[str | None],
    gold: Sequence[str],
    functions: Sequence[str] = (),
    apis: Collection[str] = SMCALFLOW_APIS,
) -> dict[str, float | int | None]:
    """Score how well predicted trees agree with gold ones.

    Args:
        predicted: linearised trees, None where there is none; what is no valid Lispress is wrong.
        gold: the true trees of the same turns.
        functions: patterns of functions: ``WeatherQueryApi`` (a call head), ``EventOnDate*`` (its start).
        apis: node names that are API calls.

    Returns:
        ``PARSER_KEYS``: ``exact_match``, ``api_precision``, ``api_recall``, ``node_precision``, ``node_recall``
        in [0, 1] and ``num_turns``; then for each pattern the same with suffix ``@PATTERN``, over the turns
        whose gold tree has the function, and ``@not PATTERN``, over the others. None where no turn counts.

    Raises:
        ValueError: the sides differ in length, a gold tree is no valid Lispress, or a function is no pattern.
    """
    collection = parser_metric_collection(functions, apis)
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted trees but {len(gold)} gold trees")
    for start in range(0, len(gold), _BATCH):  # so that a tree is still remembered when the next metric asks for it
        collection.update(predicted[start : start + _BATCH], gold[start : start + _BATCH])
    computed = collection.compute()
    suffixes = ("", *(f"{sign}{pattern}" for pattern in dict.fromkeys(functions) for sign in ("@", "@not ")))
    return {
        f"{key}{suffix}": plain_number(computed[f"{key}{suffix}"].item()) for suffix in suffixes for key in PARSER_KEYS
    }


def identical_trees(predicted: Sequence[str | None], gold: Sequence[str]) -> dict[str, float | int | None]:
    """Score how many trees are right with their strings, and whether they stay right as the strings change.

    Arguments are those of :func:`parser_metrics`.

    Returns:
        ``identical_trees``: share of turns whose tree is the gold one, quoted strings included (exact match of Oren et
        al., 2021, section 4.1), None without a turn; ``num_groups``: gold trees that differ in quoted strings alone,
        where there are several; ``consistent_groups``: share of these in which every tree is identical (Table 6 there,
        robustness to the replacement of an entity), None without a group.

    Raises:
        ValueError: The sides differ in length.
        LispressError: A gold tree is no Lispress.
    """
    is_right = [guess is not None and _same(guess, truth) for guess, truth in zip(predicted, gold, strict=True)]
    groups: dict[str, list[int]] = {}
    for place, tree in enumerate(gold):
        groups.setdefault(write(anonymise(read(tree))), []).append(place)
    several = [places for places in groups.values() if len({gold[place] for place in places}) > 1]
    consistent = sum(all(is_right[place] for place in places) for places in several)
    return {
        "identical_trees": sum(is_right) / len(is_right) if is_right else None,
        "num_groups": len(several),
        "consistent_groups": consistent / len(several) if several else None,
    }


def _same(guess: str, truth: str) -> bool:
    try:
        return read(guess) == read(truth)
    except LispressError:
        return False
