"""What drafting gained, learnt from the same text written again on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from parse_local.costs import CostCurve, PairCosts
from parse_local.hindsight import Hindsight, Retrace

# A target that reads nine tokens for the price of two.
TARGET = CostCurve(((1, 0.1), (9, 0.2), (64, 0.9)))
COSTS = PairCosts(CostCurve(((1, 0.02), (64, 0.4))), TARGET, TARGET)


def steps(n_tokens: int, n_found: int, n_held: int) -> Retrace:
    """A text of which n-grams propose `n_found` tokens at every step, and so many hold."""

    def retrace(choose: Callable[[int], int]) -> Iterator[tuple[int, int]]:
        written = 0
        while written < n_tokens:
            n_read = choose(n_found)
            held = min(n_held, n_read)
            yield n_read, held
            written += held + 1

    return retrace


def test_without_ngrams_the_gain_is_the_one_on_plain_tokens() -> None:
    hindsight = Hindsight()
    assert hindsight.gain(0.3) == 0.3
    for _ in range(50):
        hindsight.compare(COSTS, steps(100, 0, 0), 100, 7.0)
    assert hindsight.gain(0.0) == pytest.approx(0.3, abs=0.04)  # 7 s in place of 100 x 0.1 s


def test_what_ngrams_write_for_nothing_is_no_gain_of_the_draft() -> None:
    hindsight = Hindsight()
    for _ in range(50):
        hindsight.compare(COSTS, steps(90, 8, 8), 90, 7.0)
    # N-grams alone: ten rounds of nine tokens, 0.2 s each.
    assert hindsight.gain(0.0) == pytest.approx((2.0 - 7.0) / 9.0, abs=0.08)


def test_ngrams_that_never_hold_are_not_read_for_long() -> None:
    hindsight = Hindsight()
    for _ in range(50):
        hindsight.compare(COSTS, steps(100, 8, 0), 100, 10.0)
    # Nearly what plain tokens take, and not the double that reading them all would.
    assert hindsight.gain(0.0) == pytest.approx(0.0, abs=0.1)


def test_what_was_found_out_fades_where_nothing_is_drafted() -> None:
    hindsight = Hindsight()
    hindsight.compare(COSTS, steps(300, 0, 0), 300, 33.0)
    low = hindsight.gain(0.2)
    assert low < 0.0
    hindsight.forget()
    assert hindsight.gain(0.2) < 0.0  # not after a single answer
    for _ in range(200):
        hindsight.forget()
    assert hindsight.gain(0.2) > 0.15
