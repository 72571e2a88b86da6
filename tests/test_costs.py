"""Cost curves: interpolation, repair of noisy measurements, and learning from a run."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_local.costs import CostCurve, LearnedCurve, PairCosts

CURVE = CostCurve(((1, 0.04), (4, 0.10), (16, 0.34)))

measurements = st.dictionaries(st.integers(1, 512), st.floats(1e-5, 10.0), min_size=1, max_size=10)


@pytest.mark.parametrize(
    ("n", "seconds"),
    [
        (-1, 0.0),
        (0, 0.0),
        (0.5, 0.04),  # below the first point: as much as it
        (1, 0.04),
        (2, 0.06),
        (4, 0.10),
        (10, 0.22),
        (16, 0.34),
        (32, 0.66),  # the last slope is 0.02 a token
    ],
)
def test_linear_between_the_points(n: float, seconds: float) -> None:
    assert CURVE.seconds(n) == pytest.approx(seconds)


def test_one_point_goes_on_in_proportion() -> None:
    curve = CostCurve(((4, 0.2),))
    assert curve.seconds(2) == 0.2
    assert curve.seconds(4) == 0.2
    assert curve.seconds(8) == pytest.approx(0.4)


def test_per_token() -> None:
    assert CURVE.per_token(16) == pytest.approx(0.34 / 16)


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0, 0.1),),
        ((1, 0.0),),
        ((1, math.nan),),
        ((1, math.inf),),
        ((2, 0.1), (1, 0.2)),
        ((1, 0.2), (2, 0.1)),
    ],
)
def test_nonsense_is_no_curve(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(points)


def test_measurements_out_of_order_share_their_mean() -> None:
    # 0.30 at 4 is above 0.10 at 8 and 0.26 at 16: pooled (0.30 + 0.10) / 2 = 0.20 <= 0.26.
    curve = CostCurve.through({1: 0.05, 16: 0.26, 4: 0.30, 8: 0.10})
    assert dict(curve.points) == pytest.approx({1: 0.05, 4: 0.20, 8: 0.20, 16: 0.26})


def test_a_guess_is_in_proportion_to_the_size() -> None:
    costs = PairCosts.guess(500_000_000, 2_000_000_000)
    assert costs.target.seconds(1) == pytest.approx(0.1)  # 2 GB at 20 GB/s
    assert costs.target.seconds(5) == pytest.approx(0.1 * 3)
    assert costs.target.seconds(9) / costs.draft.seconds(9) == pytest.approx(4.0)


def test_bound_of_the_measured_default_pair() -> None:
    # 38.5 ms target, 13.3 ms draft, 11 ms a verified token: 38.5 / 24.3.
    costs = PairCosts(
        draft=CostCurve(((1, 0.0133), (512, 1.7))),
        target=CostCurve(((1, 0.0385), (64, 64 * 0.011))),
        target_bare=CostCurve(((1, 0.0385), (64, 64 * 0.010))),
    )
    assert costs.bound(sizes=(1, 64)) == pytest.approx(38.5 / 24.3)


def test_the_middle_of_several_measurements() -> None:
    def costs(*seconds: float) -> PairCosts:
        curve = CostCurve(tuple(zip((1, 4, 16), seconds, strict=True)))
        return PairCosts(curve, CostCurve(((1, seconds[0]),)), curve)

    fast, slow, stalled = costs(1, 2, 8), costs(2, 4, 10), costs(1.5, 9, 9)
    assert PairCosts.middle([fast]) == fast
    assert PairCosts.middle([fast, slow]) == costs(1.5, 3, 9)
    assert PairCosts.middle([fast, stalled, slow]) == costs(1.5, 4, 9)
    longer = CostCurve(((1, 1), (4, 2), (16, 8), (32, 20)))
    both = PairCosts.middle([fast, PairCosts(longer, longer, longer)])
    assert both.draft.points == ((1, 1), (4, 2), (16, 8), (32, 18))  # 20, and 16 by the slope


def test_costs_survive_json() -> None:
    costs = PairCosts(CURVE, CostCurve.guess(7), CostCurve(((3, 1.25),)))
    assert PairCosts.from_json(json.loads(json.dumps(costs.to_json()))) == costs


@given(measurements, st.lists(st.floats(-5, 2000), min_size=2, max_size=20))
def test_never_falls(measured: dict[int, float], sizes: list[float]) -> None:
    curve = CostCurve.through(measured)
    seconds = [curve.seconds(n) for n in sorted(sizes)]
    assert all(b >= a * (1 - 1e-12) for a, b in pairwise(seconds))
    least, most = min(measured.values()), max(measured.values())
    assert all(least * 0.999 <= s <= most * 1.001 for _, s in curve.points)


@given(measurements)
def test_pooling_leaves_the_sum_and_what_was_in_order(measured: dict[int, float]) -> None:
    curve = CostCurve.through(measured)
    assert sum(s for _, s in curve.points) == pytest.approx(sum(measured.values()))
    assert CostCurve.through(dict(curve.points)) == curve


# learning


def test_without_a_start_one_observation_sets_the_scale() -> None:
    curve = LearnedCurve()
    assert not curve.known
    guessed = curve.seconds(33) / curve.seconds(1)
    assert guessed == pytest.approx(17.0)  # half of a decode for each further token
    curve.observe(1, 0.02)
    assert curve.known
    assert curve.seconds(1) == pytest.approx(0.02)
    assert curve.seconds(33) == pytest.approx(0.34)


def test_a_measured_start_outweighs_a_stall_but_not_a_slower_machine() -> None:
    curve = LearnedCurve(CURVE)
    assert curve.known
    curve.observe(4, 5.0)
    assert curve.seconds(4) == pytest.approx(0.10)
    for _ in range(6):
        curve.observe(4, 0.15)
    assert curve.seconds(4) == pytest.approx(0.15)
    assert curve.seconds(16) == pytest.approx(0.51)  # 1.5 times the start, as at its neighbour


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_is_ignored(seconds: float) -> None:
    curve = LearnedCurve(CURVE)
    curve.observe(4, seconds)
    curve.observe(0, 1.0)
    assert curve.curve == CURVE


def test_old_observations_are_forgotten() -> None:
    curve = LearnedCurve()
    for seconds in [0.9] * 40 + [0.1] * 8:
        curve.observe(2, seconds)
    assert curve.seconds(2) == pytest.approx(0.1)  # 8 of the last 15


curves = st.builds(
    lambda base, slope, bend: CostCurve(
        ((1, base), (8, base + 7 * slope), (512, base + 7 * slope + 504 * slope * bend))
    ),
    st.floats(1e-3, 1.0),
    st.floats(1e-4, 0.5),
    st.floats(0.2, 2.0),
)


@settings(max_examples=50)
@given(
    truth=curves,
    start=st.none() | curves,
    noise=st.lists(st.floats(0.98, 1.02), min_size=15, max_size=15),
    stalls=st.sets(st.integers(0, 14), max_size=4),
)
def test_learning_converges_in_spite_of_noise_and_stalls(
    truth: CostCurve, start: CostCurve | None, noise: list[float], stalls: set[int]
) -> None:
    curve = LearnedCurve(start)
    sizes = (1, 2, 3, 5, 8, 16, 64, 512)
    for i, factor in enumerate(noise):
        for n in sizes:
            curve.observe(n, truth.seconds(n) * factor * (50 if i in stalls else 1))
    for n in sizes:
        assert curve.seconds(n) == pytest.approx(truth.seconds(n), rel=0.05)
