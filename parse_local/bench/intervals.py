"""Intervals and tests: how much of a difference is luck."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import comb

N_BOOTSTRAP = 2000


def wilson(n_right: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a share (95% by default)."""
    if n == 0:
        return 0.0, 1.0
    p = n_right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    # The share itself lies in it, also where rounding puts 6 of 6 just above the upper end.
    return min(p, max(0.0, centre - half)), max(p, min(1.0, centre + half))


def mcnemar(n_gained: int, n_lost: int) -> float:
    """Exact two-sided p of McNemar's test: is one right more often than the other?

    Args:
        n_gained: problems that only the first has right.
        n_lost: problems that only the second has right.

    Source: McNemar 1947; the exact form is the binomial test of the pairs that differ.
    """
    n, k = n_gained + n_lost, min(n_gained, n_lost)
    tail = sum(comb(n, i) for i in range(k + 1))
    return float(min(1.0, 2 * tail / 2**n))


Totals = tuple[float, float]
"""Tokens and seconds of one problem."""


def rate_ratio(of: Sequence[Totals], base: Sequence[Totals]) -> tuple[float, float, float]:
    """Ratio of tokens per second, with a bootstrap interval over problems (95%).

    Args:
        of, base: one entry a problem each, in the same order of problems.

    Returns:
        (ratio, lower, upper).
    """

    def ratio(chosen: Sequence[int]) -> float:
        def rate(totals: Sequence[Totals]) -> float:
            return sum(totals[i][0] for i in chosen) / sum(totals[i][1] for i in chosen)

        return rate(of) / rate(base) if rate(base) else 0.0

    n = len(of)
    rng = random.Random(0)
    drawn = sorted(ratio(rng.choices(range(n), k=n)) for _ in range(N_BOOTSTRAP))
    return ratio(range(n)), drawn[int(0.025 * N_BOOTSTRAP)], drawn[int(0.975 * N_BOOTSTRAP)]
