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

    Row x of template T is drawn with probability q_α(x) = p(T)^α / Σ p(T')^α · 1 / c(T): first a template, then one of
    its rows; p(T) = c(T) / rows is its share of the pool. Two readings of "without replacement":

    * renormalised, as the paper: the sum runs over templates that still have rows, and a template keeps its chance
      until it has none. α = 0 draws uniformly among such templates, α = 1 is not exactly uniform once some are used up;
    * ``fixed_weights``, as the published code: every row has the weight p(T)^(α - 1), and the next row is drawn by the
      weights of those left, so a template loses chance as it is used. α = 1 is uniform sampling.

    Both are one race. Exponential waiting times with rate p(T)^α between the rows of a template, put in random order,
    make its rows arrive as a Poisson process; the first arrivals of all templates are the renormalised draws. A waiting
    time for each row by its own weight gives the other (Efraimidis and Spirakis, 2006).

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
