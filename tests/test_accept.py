"""Evidence → accepted length, and the step of speculative sampling."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parse_local.accept import (
    accepted_length,
    accepts,
    confidence,
    loose_length,
    speculative_step,
    sure_stretches,
)
from parse_local.distribution import Distribution
from parse_local.events import Boundary
from parse_local.policy import Options, Policy, resolve
from parse_local.profile import Fusion, Profile, Weight

FUSION = Fusion(
    {"log_odds": Weight(2.0, 1.0, 1.0), "mean_logprob": Weight(-0.5, 0.5, 1.0)},
    intercept=0.0,
    threshold_full=1.0,
    threshold_prefix=0.0,
)


def policy(**options: object) -> Policy:
    return resolve(Options(**{"accept": "semantic", **options}), Profile(fusion=FUSION))  # type: ignore[arg-type]


def prefixes(*p_correct: float) -> list[Boundary]:
    return [Boundary(10 * (i + 1), 0, p, 1.0) for i, p in enumerate(p_correct)]


def whole(p: float, n: int = 100) -> Boundary:
    return Boundary(n, 0, p, 1.0, complete=True)


def test_exact_keeps_the_exact_prefix_whatever_the_verdicts_say() -> None:
    assert accepted_length(7, [*prefixes(0.99, 0.99), whole(0.99)], policy(accept="exact")) == 7


def test_a_finished_answer_that_passes_is_kept_whole() -> None:
    assert accepted_length(0, [*prefixes(0.1), whole(0.95)], policy(tau_full=0.9)) == 100


def test_the_threshold_itself_does_not_pass() -> None:
    assert accepted_length(3, [whole(0.9)], policy(tau_full=0.9)) == 3


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("first-failure", 20), ("longest", 40)],
)
def test_rules(rule: str, expected: int) -> None:
    verdicts = prefixes(0.95, 0.92, 0.5, 0.95)
    assert (
        accepted_length(0, [*verdicts, whole(0.2)], policy(rule=rule, tau_prefix=0.9)) == expected
    )


def test_a_whole_that_fails_leaves_the_prefixes_to_decide() -> None:
    assert accepted_length(0, [*prefixes(0.95, 0.95), whole(0.2)], policy()) == 20


def test_the_exact_prefix_is_a_floor() -> None:
    assert accepted_length(15, prefixes(0.1, 0.99), policy()) == 20
    assert accepted_length(25, prefixes(0.1, 0.2), policy()) == 25


def test_a_failure_inside_the_exact_prefix_stops_nothing() -> None:
    # The target would have written those tokens itself; its doubt about them is moot.
    assert accepted_length(12, prefixes(0.1, 0.95, 0.95), policy()) == 30


def test_boundaries_without_a_verdict_fail() -> None:
    assert not accepts(Boundary(5, 0), policy())
    assert accepted_length(0, [Boundary(5, 0)], policy()) == 0
    assert accepted_length(4, [], policy()) == 4


def test_fused_adds_both_kinds_of_evidence() -> None:
    fused = policy(accept="fused")
    sure = {"log_odds": 3.0, "mean_logprob": -0.25}  # 1.0 + 0.5
    unsure = {"log_odds": 3.0, "mean_logprob": -0.75}  # 1.0 - 0.5
    assert FUSION.score(sure) == pytest.approx(1.5)
    assert accepts(Boundary(50, 0, complete=True, terms=sure), fused)
    assert not accepts(Boundary(50, 0, complete=True, terms=unsure), fused)
    assert accepts(Boundary(50, 0, terms=unsure), fused)  # a prefix: its threshold is 0
    assert not accepts(Boundary(50, 0, terms={"log_odds": 9.0}), fused)  # no likelihood
    assert not accepts(Boundary(50, 0, terms={"mean_logprob": 0.0}), fused)  # no verdict


# the draft's own confidence


def test_confidence_is_a_probability() -> None:
    logprobs = [np.log(0.9), np.log(0.4), np.log(0.6)]
    assert confidence(logprobs) == pytest.approx((0.9 * 0.4 * 0.6) ** (1 / 3))
    assert confidence(logprobs, by="min") == pytest.approx(0.4)
    assert confidence([]) == 0.0  # nothing is known


def test_stretches_that_need_no_evidence() -> None:
    logprobs = np.log([0.9, 0.9, 0.5, 0.9, 1.0, 1.0, 0.8])
    # Stretches of the tokens 1-2, 3-4 and 5-7; the first token is exact anyway.
    found = sure_stretches([2, 4, 7], logprobs, start=1, least=0.7)
    assert found == {2: pytest.approx(0.9), 7: pytest.approx(0.8 ** (1 / 3))}
    assert set(sure_stretches([2, 4, 7], logprobs, start=0, least=0.8, by="min")) == {2}
    assert sure_stretches([2, 4, 7], logprobs, start=0, least=1.0) == {}
    assert sure_stretches([], logprobs, start=0, least=0.0) == {}


@pytest.mark.parametrize(
    ("passes", "first_failure", "longest"),
    [
        ("s", 10, 10),  # nothing precedes it that could be wrong
        ("ps", 20, 20),
        ("fs", 0, 0),  # sure of its own words, which follow a mistake
        ("pfs", 10, 10),
        ("pfsp", 10, 40),
        ("spfsps", 20, 60),
    ],
)
def test_a_sure_stretch_stands_with_what_precedes_it(
    passes: str, first_failure: int, longest: int
) -> None:
    kinds = {
        "p": {"p_correct": 0.95, "label_mass": 1.0},
        "f": {"p_correct": 0.1, "label_mass": 1.0},
        "s": {"confidence": 0.99},
    }
    boundaries = [Boundary(10 * (i + 1), 0, **kinds[kind]) for i, kind in enumerate(passes)]
    assert accepted_length(0, boundaries, policy()) == first_failure
    assert accepted_length(0, boundaries, policy(rule="longest")) == longest


def test_a_mark_passes_from_its_threshold_on() -> None:
    marked = Boundary(10, 0, score=7.0, label_mass=1.0)
    for min_score, passes in ((6.5, True), (7.0, True), (7.01, False)):
        how = policy(strategy="specreason", min_score=min_score)
        assert accepts(marked, how) == passes
    assert not accepts(Boundary(10, 0, score=float("nan")), policy(strategy="specreason"))


# loose


def loose(
    ranks: list[int],
    entropies: list[float] | None = None,
    *,
    n_exact: int | None = None,
    min_entropy: float = 0.8,
    window: int = 2,
) -> int:
    exact = next((i for i, r in enumerate(ranks) if r), len(ranks))
    return loose_length(
        exact if n_exact is None else n_exact,
        np.array(ranks, np.int32),
        np.array(entropies or [1.0] * len(ranks), np.float32),
        min_entropy=min_entropy,
        window=window,
    )


@pytest.mark.parametrize(
    ("ranks", "window", "expected"),
    [
        ([0, 0, 0, 0], 2, 4),
        ([], 2, 0),
        ([0, 3, 0, 0], 2, 4),  # two agree behind it
        ([0, 3, 0, 0], 3, 1),  # undecided: the draft ends before the window does
        ([0, 0, 0, 3], 2, 3),
        ([0, 0, 0, 3], 0, 4),  # no window: the entropy alone decides
        ([0, 3, 0, 2, 0, 0, 0], 2, 1),  # it differs again within the window
        ([0, 3, 0, 0, 2, 0, 0], 2, 7),  # and again behind it
        ([0, 3, 0, 0, 2, 0], 2, 4),  # of two, the second is undecided
        ([1, 0, 0, 1, 0, 0], 2, 6),
    ],
)
def test_a_differing_token_passes_where_the_window_agrees(
    ranks: list[int], window: int, expected: int
) -> None:
    assert loose(ranks, window=window) == expected


def test_a_differing_token_passes_only_where_the_target_is_undecided() -> None:
    ranks = [0, 3, 0, 0, 2, 0, 0]
    assert loose(ranks, [0, 0.8, 0, 0, 0.9, 0, 0]) == 7  # the threshold itself passes
    assert loose(ranks, [0, 0.9, 0, 0, 0.79, 0, 0]) == 4
    assert loose(ranks, [9, 0.79, 9, 9, 9, 9, 9]) == 1
    assert loose(ranks, [0, float("nan"), 0, 0, 0, 0, 0], min_entropy=0.0) == 1


def test_where_nothing_may_pass_the_exact_prefix_is_left() -> None:
    ranks = [0, 0, 3, 0, 0, 0]
    assert loose(ranks, min_entropy=float("inf")) == 2
    assert loose(ranks, min_entropy=0.0, window=0) == 6


def test_a_token_that_only_the_sampler_rejected_has_to_pass_as_well() -> None:
    # With a repeat penalty the target's choice is another than its largest logit.
    assert loose([0, 0, 0, 0], [0, 0, 0, 0], n_exact=1) == 1
    assert loose([0, 0, 0, 0], [0, 0.8, 0, 0], n_exact=1) == 4


def literal_loose_length(
    ranks: list[int], entropies: list[float], min_entropy: float, window: int
) -> int:
    """FLy's rule, token by token, as its paper words it."""
    for i, rank in enumerate(ranks):
        if rank == 0:
            continue
        if entropies[i] < min_entropy:
            return i
        following = ranks[i + 1 : i + 1 + window]
        if len(following) < window or any(r != 0 for r in following):
            return i
    return len(ranks)


@given(
    tokens=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 7]), st.integers(0, 4)), max_size=30),
    min_entropy=st.integers(0, 5),
    window=st.integers(0, 5),
)
def test_loose_acceptance_is_the_papers_rule(
    tokens: list[tuple[int, int]], min_entropy: int, window: int
) -> None:
    ranks = [rank for rank, _ in tokens]
    entropies = [float(h) for _, h in tokens]
    expected = literal_loose_length(ranks, entropies, min_entropy, window)
    assert loose(ranks, entropies, min_entropy=min_entropy, window=window) == expected


def distribution(weights: dict[int, float]) -> Distribution:
    total = sum(weights.values())
    ids = np.array(list(weights), np.int32)
    return Distribution(ids, np.array([w / total for w in weights.values()]))


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ({1: 5, 2: 3, 3: 2}, {1: 2, 2: 3, 3: 5}),
        ({1: 5, 2: 3, 3: 2}, {1: 5, 2: 3, 3: 2}),
        ({1: 1, 2: 1}, {3: 1, 4: 1}),
        ({1: 1, 2: 3}, {2: 1, 3: 1}),
        ({4: 1}, {1: 1, 4: 9}),
        ({1: 1, 4: 9}, {4: 1}),
    ],
)
def test_speculative_sampling_is_distributed_as_the_target(
    p: dict[int, float], q: dict[int, float]
) -> None:
    target, draft = distribution(p), distribution(q)
    drafting, deciding = np.random.default_rng(1), np.random.default_rng(2)
    n = 6000
    found: Counter[int] = Counter()
    n_kept = 0
    for _ in range(n):
        token = draft.sample(drafting)
        kept, chosen = speculative_step(target, draft, token, deciding)
        assert not kept or chosen == token
        n_kept += kept
        found[chosen] += 1
    assert set(found) <= set(p)
    if len(p) > 1:
        expected = [n * target.probability(t) for t in p]
        assert stats.chisquare([found[t] for t in p], expected).pvalue > 1e-3
    # The rate of acceptance is the overlap of both distributions.
    overlap = sum(min(target.probability(t), draft.probability(t)) for t in {*p, *q})
    assert n_kept / n == pytest.approx(overlap, abs=0.03)


def test_probabilities_of_many_tokens_agree_with_one_at_a_time() -> None:
    some = distribution({7: 1, 2: 5, 11: 4})
    tokens = np.array([11, 3, 2, 99, 7, 0], np.int32)
    assert some.probabilities(tokens).tolist() == pytest.approx([0.4, 0, 0.5, 0, 0.1, 0])
    assert [some.probability(int(t)) for t in tokens] == some.probabilities(tokens).tolist()


def test_a_rejection_in_a_whole_vocabulary_is_quick() -> None:
    n = 150_000  # with top-k, top-p and min-p off, nothing is removed
    ids = np.arange(n, dtype=np.int32)
    target = Distribution(ids, np.eye(1, n, 5)[0])
    draft = Distribution(ids[::-1].copy(), np.full(n, 1 / n))
    started = time.perf_counter()
    assert speculative_step(target, draft, 9, np.random.default_rng(0)) == (False, 5)
    assert time.perf_counter() - started < 1  # a look-up in a loop takes seconds


def test_a_token_that_the_target_rules_out_is_never_kept() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        assert speculative_step(distribution({1: 1}), distribution({2: 1}), 2, rng) == (False, 1)
