"""Samples of a pool: uniform, and uniform over abstract templates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def uniform(template_of_row: NDArray[np.integer], num: int, seed: int) -> Rows:
    """Draw rows uniformly without replacement, the paper's baseline; as :func:`uat` otherwise."""
    return uat(template_of_row, num, seed, alpha=1.0, fixed_weights=True)


def uat(
    template_of_row: NDArray[np.integer], num: int, seed: int, alpha: float = 0.0, fixed_weights: bool = False
) -> Rows:
    """Draw by uniform abstract template sampling (Oren et al., 2021, section 3.2, Equation 1), without replacement.

    Row x of template T has probability q_α(x) = p(T)^α / Σ p(T')^α · 1 / c(T), where p(T) = c(T) / rows. Renormalised,
    as in the paper, the sum runs over templates that still have rows: α = 0 is uniform among these, α = 1 not exactly
    uniform once some are used up. With ``fixed_weights``, as in the published code, every row keeps the weight p(T)^(α
    - 1): α = 1 is uniform sampling. Both are one race: exponential waiting times with rate p(T)^α between the rows of a
    template make a Poisson process, whose first arrivals are the renormalised draws; one waiting time for each row, by
    its weight, gives the other (Efraimidis and Spirakis, 2006).

    Args:
        template_of_row: Which template each row of the pool has, as a number from 0, [rows].
        num: Rows wanted.
        seed: Equal seeds give equal rows; fewer rows are the first of more.
        alpha: Temperature in [0, 1].
        fixed_weights: Whether weights stay as they are while templates are used up.

    Returns:
        Places of rows in the pool, in the order of drawing, (num,).

    Raises:
        ValueError: The pool has fewer rows, ``num`` is below 1, or α is out of range.
    """
    check_num(len(template_of_row), num)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha}: give a number from 0 to 1")
    counts = np.bincount(template_of_row)
    share = counts / len(template_of_row)
    rng = np.random.default_rng(seed)
    waiting = rng.standard_exponential(len(template_of_row))
    if fixed_weights:
        arrival = waiting * share[template_of_row] ** (1 - alpha)
    else:
        order = np.lexsort((rng.random(len(template_of_row)), template_of_row))  # by template, and inside it by chance
        passed = np.append(0.0, np.cumsum(waiting))
        starts = np.cumsum(counts) - counts
        arrival = np.empty(len(template_of_row))
        arrival[order] = (passed[1:] - np.repeat(passed[starts], counts)) / np.repeat(share**alpha, counts)
    first = np.argpartition(arrival, num - 1)[:num]
    return first[np.argsort(arrival[first], kind="stable")]


def check_num(num_rows: int, num: int) -> None:
    """Refuse a number of rows that cannot be drawn.

    Raises:
        ValueError: It is below 1, or more than the pool has.
    """
    if not 1 <= num <= num_rows:
        raise ValueError(f"{num} rows are asked of a pool of {num_rows}: ask for at least 1, at most all")
