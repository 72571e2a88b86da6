"""The planner against enumerations of everything that it could have done."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_local.costs import CostCurve, PairCosts
from parse_local.planner import (
    MAX_WINDOW,
    ForkPlan,
    WholeAnswer,
    WindowPlan,
    places,
    plan_forks,
    plan_free,
    plan_windows,
    prefixes_pay,
    reads_rows_first,
    search_seconds,
    whole_answer_pays,
    whole_answer_seconds,
)

FLAT = CostCurve(((1, 1.0), (512, 1.0)))  # a batch costs what one token costs
LINEAR = CostCurve(((1, 1.0), (512, 512.0)))


def pair(draft_s: float, target: CostCurve, bare: CostCurve | None = None) -> PairCosts:
    """Costs of a pair whose draft decodes take `draft_s` each."""
    draft = CostCurve(((1, draft_s), (512, 512 * draft_s)))
    return PairCosts(draft, target, bare or target)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    """Curves with steps, flat stretches and steep ones."""
    seconds, points = 0.0, []
    for n in (1, 2, 3, 4, 6, 8, 16, 64):
        seconds += draw(st.floats(0.0, 3.0)) if points else 1.0
        points.append((n, seconds))
    return CostCurve(tuple(points))


pairs = st.builds(pair, st.floats(0.02, 1.5), curves())
chances = st.floats(0.0, 1.0)


# windows


def rate_of_window(costs: PairCosts, chance: float, n: int) -> float:
    """Seconds a token with windows of `n` tokens, all equally likely to hold."""
    gain = 1 + sum(chance**i for i in range(1, n + 1))
    return (draft_seconds(costs, n) + costs.target.seconds(n + 1)) / gain


def draft_seconds(costs: PairCosts, n: int) -> float:
    """Of drafting `n` tokens; the first decode also reads the token that the target has added."""
    return costs.draft.seconds(2) + (n - 1) * costs.draft.seconds(1) if n else 0.0


@settings(max_examples=60, deadline=None)
@given(costs=pairs, chance=chances)
def test_with_equal_tokens_it_finds_the_best_fixed_window(costs: PairCosts, chance: float) -> None:
    plan = plan_windows(costs, [(1.0, chance)], n_max=24)
    best = min(rate_of_window(costs, chance, n) for n in range(25))
    n, survival = 0, 1.0
    while plan.goes_on(n, survival):
        n, survival = n + 1, survival * chance
    assert rate_of_window(costs, chance, n) <= 1.05 * best
    assert plan.seconds_per_token == pytest.approx(best, rel=0.05)


def rate_of_policy(costs: PairCosts, classes: list[tuple[float, float]], go: dict) -> float:
    """Seconds a token of a policy: class history -> whether to draft another token."""

    def walk(history: tuple[int, ...], survival: float) -> tuple[float, float]:
        # expected (seconds, tokens) from here on
        if not go[history]:
            return costs.target.seconds(len(history) + 1), 1.0
        n = len(history)
        seconds, tokens = draft_seconds(costs, n + 1) - draft_seconds(costs, n), 0.0
        for i, (share, chance) in enumerate(classes):
            more_s, more = walk((*history, i), survival * chance)
            seconds += share * more_s
            tokens += share * (more + survival * chance)
        return seconds, tokens

    seconds, tokens = walk((), 1.0)
    return seconds / tokens


N_DEEP = 3
HISTORIES = [h for n in range(N_DEEP) for h in product(range(2), repeat=n)]
LEAVES = dict.fromkeys(product(range(2), repeat=N_DEEP), False)


@settings(max_examples=40, deadline=None)
@given(costs=pairs, share=st.floats(0.05, 0.95), sure=chances, unsure=chances)
def test_with_sure_and_unsure_tokens_it_is_near_the_best_of_all_policies(
    costs: PairCosts, share: float, sure: float, unsure: float
) -> None:
    classes = [(share, sure), (1 - share, unsure)]
    best = min(
        rate_of_policy(costs, classes, {**dict(zip(HISTORIES, bits, strict=True)), **LEAVES})
        for bits in product([False, True], repeat=len(HISTORIES))
    )
    plan = plan_windows(costs, classes, n_max=N_DEEP)
    planned = {h: plan.goes_on(len(h), math.prod((sure, unsure)[i] for i in h)) for h in HISTORIES}
    assert rate_of_policy(costs, classes, {**planned, **LEAVES}) <= 1.05 * best


@settings(max_examples=60, deadline=None)
@given(costs=pairs, share=st.floats(0.0, 1.0), sure=chances, unsure=chances)
def test_nothing_is_planned_that_loses(
    costs: PairCosts, share: float, sure: float, unsure: float
) -> None:
    plan = plan_windows(costs, [(share, sure), (1 - share, unsure)])
    plain_s = costs.target.seconds(1)
    assert plan.seconds_per_token <= plain_s
    if plan.drafts:
        assert plan.saved_per_token > 0
        assert plan.mean_window >= 1
    else:
        assert plan.mean_window == 0
    # A token more than certain to be rejected never pays.
    assert not plan.goes_on(1, 0.0)
    # However sure it is, another token takes a decode: never for more than a token is worth.
    if costs.draft.seconds(1) > plain_s:
        assert not plan.drafts


@settings(max_examples=50, deadline=None)
@given(costs=pairs, chance=chances, survivals=st.tuples(chances, chances))
def test_less_confidence_never_means_a_longer_window(
    costs: PairCosts, chance: float, survivals: tuple[float, float]
) -> None:
    plan = plan_windows(costs, [(0.5, chance), (0.5, 1.0)])
    low, high = sorted(survivals)
    for n in (0, 1, 5, 20):
        assert plan.goes_on(n, high) or not plan.goes_on(n, low)


def test_a_window_stops_where_confidence_falls() -> None:
    # A verify pass costs as much as a step, a draft token a tenth of it.
    plan = plan_windows(pair(0.1, FLAT), [(0.9, 0.99), (0.1, 0.3)])
    assert plan.goes_on(4, 0.99**4)
    assert not plan.goes_on(4, 0.99 * 0.3**3)


def test_worked_example() -> None:
    # The draft is free of doubt and costs nothing to speak of: the longest window, and a token
    # more a pass.
    plan = plan_windows(pair(1e-6, FLAT), [(1.0, 1.0)])
    assert plan.mean_window == MAX_WINDOW
    assert plan.seconds_per_token == pytest.approx(1 / (MAX_WINDOW + 1), rel=1e-2)
    # Every token costs a decode in the verify pass as well: no draft can gain.
    plan = plan_windows(pair(0.01, LINEAR), [(1.0, 1.0)])
    assert not plan.drafts
    assert plan.seconds_per_token == 1.0


def test_it_looks_over_a_step_of_the_curve() -> None:
    # The second token costs as much as sixteen: one alone never pays, fifteen do.
    steps = CostCurve(((1, 1.0), (2, 4.0), (16, 4.0), (17, 9.0), (64, 60.0)))
    costs = pair(0.05, steps)
    assert rate_of_window(costs, 0.95, 1) > 1.0
    plan = plan_windows(costs, [(1.0, 0.95)])
    assert plan.drafts
    assert plan.mean_window == 15


def test_a_draft_in_longer_tokens_gains_more() -> None:
    costs = pair(0.3, CostCurve(((1, 1.0), (64, 2.0))))
    same = plan_windows(costs, [(1.0, 0.8)])
    longer = plan_windows(costs, [(1.0, 0.8)], n_per_token=1.5)
    assert longer.seconds_per_token < same.seconds_per_token


def test_the_guess_changes_only_the_time_it_takes() -> None:
    costs = pair(0.2, CostCurve(((1, 1.0), (8, 2.0), (64, 12.0))))
    plans = [plan_windows(costs, [(1.0, 0.9)], guess=g) for g in (None, 0.01, 0.5, 7.0)]
    for plan in plans[1:]:
        assert plan.seconds_per_token == pytest.approx(plans[0].seconds_per_token, rel=1e-2)
        assert plan.mean_window == plans[0].mean_window


# what no decode has made


@given(
    costs=pairs,
    first=chances,
    others=chances,
    price=st.floats(0.01, 1.0),
    n_max=st.integers(0, 20),
)
def test_a_free_proposal_is_read_as_far_as_it_gains(
    costs: PairCosts, first: float, others: float, price: float, n_max: int
) -> None:
    def value(k: int) -> float:
        expected = 1 + sum(first * others**i for i in range(k))
        return price * expected - costs.target.seconds(k + 1)

    plan = plan_free(costs, first, others, price, n_max)
    assert 0 <= plan.n_tokens <= n_max
    best = max((value(k) for k in range(1, n_max + 1)), default=0.0)
    assert plan.value == pytest.approx(max(best, 0.0))
    assert plan.n_tokens == 0 or value(plan.n_tokens) == pytest.approx(plan.value)


# whole answers


def test_a_whole_answer_pays_if_its_verdict_is_likely_enough() -> None:
    costs = pair(0.2, CostCurve(((1, 1.0), (101, 20.0))))
    # Drafting 20, reading 20, the question 1 + 9 * 0.19 = 2.71; rejected, 60 tokens are written.
    whole = WholeAnswer(n_tokens=100, chance=0.5, n_kept=40, n_suffix=10)
    assert whole_answer_seconds(costs, whole, price=1.0) == pytest.approx(42.71 + 30)
    assert whole_answer_pays(costs, whole, price=1.0)
    # Against windows at 0.6 seconds a token (60): 42.71 + 18 is too much.
    assert not whole_answer_pays(costs, whole, price=0.6)
    surer = WholeAnswer(n_tokens=100, chance=0.9, n_kept=40, n_suffix=10)
    assert whole_answer_pays(costs, surer, price=0.6)


def test_rows_are_read_only_where_they_are_likely_to_be_needed() -> None:
    costs = pair(0.2, CostCurve(((1, 1.0), (100, 20.0))), CostCurve(((1, 1.0), (100, 12.0))))
    # Without rows 12, and 20 again if rejected: 12 + 20 (1 - q) < 20 from q = 0.6 on.
    likely = WholeAnswer(n_tokens=100, chance=0.61, n_kept=0, n_suffix=1)
    unlikely = WholeAnswer(n_tokens=100, chance=0.59, n_kept=0, n_suffix=1)
    assert not reads_rows_first(costs, likely)
    assert reads_rows_first(costs, unlikely)


# forks


def simulate(n: int, first_failing: int, k: int, seconds) -> tuple[int, float]:
    """Search as the verifier does; returns (first failing found, cost)."""
    low, high, cost = 0, n, 0.0
    while low < high:
        asked = [low + i for i in places(high - low, k)]
        cost += seconds(len(asked))
        failed = [i for i in asked if i >= first_failing]
        passed = [i for i in asked if i < first_failing]
        low = passed[-1] + 1 if passed else low
        high = failed[0] if failed else high
    return high, cost


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 24), k=st.integers(1, 24), suffix=st.integers(1, 30), curve=curves())
def test_a_search_finds_every_boundary_at_the_expected_cost(
    n: int, k: int, suffix: int, curve: CostCurve
) -> None:
    costs = pair(0.1, curve)
    outcomes = [simulate(n, f, k, lambda m: curve.seconds(m * suffix)) for f in range(n + 1)]
    assert [found for found, _ in outcomes] == list(range(n + 1))
    mean = sum(cost for _, cost in outcomes) / (n + 1)
    assert search_seconds(costs, n, suffix, k) == pytest.approx(mean)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 16), suffix=st.integers(1, 30), curve=curves(), n_max=st.integers(1, 20))
def test_the_number_of_forks_is_the_best_one(
    n: int, suffix: int, curve: CostCurve, n_max: int
) -> None:
    plan = plan_forks(pair(0.1, curve), n, suffix, n_max=n_max)
    means = []
    for k in range(1, min(n, n_max) + 1):
        costs = [simulate(n, f, k, lambda m: curve.seconds(m * suffix))[1] for f in range(n + 1)]
        means.append(sum(costs) / (n + 1))
    assert plan.seconds == pytest.approx(min(means))
    assert 1 <= plan.n_forks <= min(n, n_max)


def test_all_at_once_where_forks_are_free_and_one_by_one_where_each_costs() -> None:
    assert plan_forks(pair(0.1, FLAT), 15, 20, n_max=32) == ForkPlan(15, 1.0)
    # A fork costs 20: halving takes log2(16) = 4 of them, all at once 15.
    plan = plan_forks(pair(0.1, LINEAR), 15, 20, n_max=32)
    assert plan == ForkPlan(1, 80.0)
    assert plan_forks(pair(0.1, LINEAR), 0, 20, n_max=32).n_forks == 0


def test_prefix_verdicts_are_bought_where_they_gain() -> None:
    plan = ForkPlan(n_forks=1, seconds=10.0)
    assert prefixes_pay(plan, chance=0.5, n_tokens=50, price=0.5)  # 12.5 for 10
    assert not prefixes_pay(plan, chance=0.3, n_tokens=50, price=0.5)  # 7.5
    assert not prefixes_pay(ForkPlan(0, 0.0), chance=1.0, n_tokens=50, price=1.0)


def test_a_plan_that_never_drafts_goes_on_nowhere() -> None:
    plan = WindowPlan(1.0, 1.0, (math.inf, math.inf), 0.0)
    assert not plan.goes_on(0, 1.0)
    assert not plan.goes_on(2, 1.0)
