"""The guarantee: p-values that hold, thresholds that are proven, and the power to prove any."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parse_local.calibration.risk import (
    Point,
    accepted_losses,
    curve,
    interval,
    loosest,
    p_value,
    problems_needed,
    upper_bound,
)

N_SETS = 4000


def draw(rng: np.random.Generator, lost: float, won: float, n: int) -> np.ndarray:
    return rng.choice([1.0, -1.0, 0.0], p=[lost, won, 1 - lost - won], size=n)


@pytest.mark.parametrize(
    ("lost", "won", "n"),
    [(0.01, 0.0, 150), (0.03, 0.02, 250), (0.06, 0.05, 100), (0.3, 0.29, 60)],
)
def test_a_loss_that_is_too_large_is_seldom_passed(lost: float, won: float, n: int) -> None:
    # The true loss is exactly the 0.01 that must be ruled out: the hardest case.
    rng = np.random.default_rng(1)
    found = np.array([p_value(draw(rng, lost, won, n), 0.01) for _ in range(N_SETS)])
    for level in (0.01, 0.05, 0.2):  # three standard errors of a count of N_SETS
        assert np.mean(found <= level) <= level + 3 * math.sqrt(level * (1 - level) / N_SETS)


def test_a_loss_that_is_small_is_proven() -> None:
    rng = np.random.default_rng(2)

    def power(lost: float, won: float, n: int, risk: float) -> float:
        return float(np.mean([p_value(draw(rng, lost, won, n), risk) < 0.05 for _ in range(300)]))

    assert power(0.0, 0.02, 300, 0.01) > 0.95
    assert power(0.01, 0.03, 400, 0.01) > 0.6
    assert power(0.01, 0.01, 200, 0.05) > 0.9


def test_a_bet_by_hand() -> None:
    # No loss seen: the bet stays at nine tenths of what can be lost, 0.9 / 0.99 a problem.
    assert p_value(np.zeros(100), 0.01) == pytest.approx((1 + 0.01 * 0.9 / 0.99) ** -100)
    # A first loss leaves a tenth of the money; what was there before it counts.
    assert p_value([1.0], 0.01) == 1
    assert p_value([-1.0, 1.0], 0.01) == pytest.approx(1 / (1 + 1.01 * 0.9 / 0.99))
    assert p_value([], 0.01) == 1
    with pytest.raises(ValueError, match="outside"):
        p_value([1.5], 0.01)


def test_problems_needed() -> None:
    n = problems_needed(0.01, 0.95)
    assert n == 332  # the least any test can do with is log(0.05) / log(0.99) = 298.07
    assert p_value(np.zeros(n), 0.01) <= 0.05 < p_value(np.zeros(n - 1), 0.01)


def test_bounds_hold_the_mean() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(400):
        low, high = interval(draw(rng, 0.05, 0.02, 60), 0.9)
        inside += low <= 0.03 <= high
    assert inside >= 360
    sample = draw(rng, 0.05, 0.02, 60)
    bound = upper_bound(sample, 0.95)
    assert p_value(sample, bound + 1e-3) <= 0.05 < p_value(sample, bound - 1e-3)


def test_only_accepted_drafts_cost_anything() -> None:
    scores, losses = np.array([3.0, 2.0, 1.0, -np.inf]), [1, -1, 0, 1]
    assert accepted_losses(scores, losses, 2.0).tolist() == [1, 0, 0, 0]
    strict, loose = curve(scores, losses, [1.5, 0.0], risk=0.5, confidence=0.9)
    assert (strict.accepted, strict.loss) == (0.5, 0.0)
    assert (loose.accepted, loose.loss) == (0.75, 0.0)


def points(*p: float) -> list[Point]:
    return [Point(-float(i), 0.1 * (i + 1), 0.0, value) for i, value in enumerate(p)]


def test_the_sequence_ends_at_the_first_failure() -> None:
    tried = points(0.01, 0.04, 0.06, 0.01)
    assert loosest(tried, 0.95) == tried[1]
    assert loosest(tried, 0.95, start=2) is None
    assert loosest(tried, 0.95, start=3) == tried[3]
    assert loosest([], 0.95) is None


def test_the_chosen_threshold_keeps_the_promise() -> None:
    # Every second draft is wrong and the score says which, with noise; the target is
    # always right. What the chosen threshold truly loses is known.
    rng = np.random.default_rng(4)
    thresholds = [3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0]
    n_broken, accepted = 0, []
    for _ in range(600):
        wrong = rng.random(300) < 0.5
        scores = rng.normal(np.where(wrong, -1.0, 1.0))
        tried = curve(scores, wrong.astype(float), thresholds, risk=0.1, confidence=0.9)
        chosen = loosest(tried, 0.9)
        if chosen is not None:
            truth = 0.5 * 0.5 * math.erfc((chosen.threshold + 1) / math.sqrt(2))
            n_broken += truth > 0.1
            accepted.append(chosen.accepted)
    assert n_broken / 600 <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 600)
    assert np.mean(accepted) > 0.4
