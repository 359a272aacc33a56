"""Which turns use a function: the patterns that parser metrics and the adaptation experiments share."""

from __future__ import annotations

from doppel.metrics.function_type_metric import valid_function_types


def uses_function(tree: str | None, pattern: str) -> bool:
    """Whether a tree calls a function of a name.

    Args:
        tree: linearised Lispress; None and invalid trees call nothing.
        pattern: a call head such as ``WeatherQueryApi``, or the start of one and a star: ``EventOnDate*``.

    Returns:
        True where some call head equals the name, or starts with it.

    Raises:
        ValueError: the pattern is empty, or has a star elsewhere than at its end.
    """
    name = pattern.removesuffix("*")
    if not name or "*" in name:
        raise ValueError(f"{pattern!r} is no function pattern: give a name, or the start of one and a star")
    heads = (valid_function_types(tree, "call_heads") if tree is not None else None) or ()
    return any(map(str.startswith, heads, [name] * len(heads))) if pattern.endswith("*") else name in heads
