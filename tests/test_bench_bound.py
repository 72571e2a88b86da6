"""What a strategy's own decodes would cost, on curves with round numbers."""

from __future__ import annotations

import pytest
from bench_records import record

from parse_local.bench.bound import bound, decode_seconds, passes_seconds
from parse_local.costs import CostCurve, PairCosts
from parse_local.events import Pass, TokenCounts

# A decode of n tokens: the draft 1 + 1*n, the target 9 + 1*n, with every row 8 + 2*n seconds;
# so a single token costs 2 and 10.
COSTS = PairCosts(
    draft=CostCurve(((1, 2.0), (101, 102.0))),
    target=CostCurve(((1, 10.0), (101, 210.0))),
    target_bare=CostCurve(((1, 10.0), (101, 110.0))),
)


@pytest.mark.parametrize(
    ("passes", "seconds"),
    [
        ([], 0),
        ([Pass(1, 1, 7)], 70),
        ([Pass(50, 0, 1)], 59),  # a prompt
        ([Pass(50, 1, 1)], 59),  # its last row is always there
        ([Pass(16, 16, 2)], 2 * 40),  # verify passes
        ([Pass(101, 51, 1)], 160),  # half of the rows: half-way between 110 and 210
        ([Pass(201, 0, 1)], 210),  # beyond the last point with its slope
    ],
)
def test_passes(passes: list[Pass], seconds: float) -> None:
    assert passes_seconds(passes, COSTS.target_bare, COSTS.target) == pytest.approx(seconds)


TARGET = record("a", "target", n_tokens=20, target_passes=(Pass(50, 0, 1), Pass(1, 1, 20)))
# T = 59 + 20 * 10 = 259
PARSE = record(
    "a",
    "parse",
    n_tokens=20,
    draft_passes=(Pass(50, 0, 1), Pass(1, 1, 20)),  # 51 + 20 * 2
    target_passes=(
        Pass(50, 0, 1),  # prompt: 59
        Pass(21, 21, 1),  # the draft is read: 50
        Pass(101, 51, 1),  # forks: 160
        Pass(1, 1, 4),  # the target's own: 40
    ),
)
# S = 91 + 309 = 400


def test_a_judged_draft_that_the_target_finishes() -> None:
    assert decode_seconds(TARGET, COSTS) == pytest.approx(259)
    assert decode_seconds(PARSE, COSTS) == pytest.approx(400)
    assert bound([PARSE], [TARGET], COSTS) == pytest.approx(259 / 400)


def test_the_target_is_its_own_bound() -> None:
    assert bound([TARGET], [TARGET], COSTS) == pytest.approx(1)


def test_answers_of_another_length_compare_by_rate() -> None:
    # Half as long, at half the rate: 59 + 10 * 10 = 159 seconds for 10 tokens.
    short = record("a", "draft", n_tokens=10, target_passes=(Pass(50, 0, 1), Pass(1, 1, 10)))
    assert bound([short], [TARGET], COSTS) == pytest.approx((10 / 159) / (20 / 259))


def test_proposals_of_the_draft_cost_its_decodes() -> None:
    proposing = record(
        "a",
        "speculative",
        n_tokens=20,
        target_passes=(Pass(50, 0, 1), Pass(5, 5, 4)),  # 59 + 4 * 18
        tokens=TokenCounts(spec_proposed=16),
    )
    assert decode_seconds(proposing, COSTS) == pytest.approx(131)
    assert decode_seconds(proposing, COSTS, draft_proposes=True) == pytest.approx(131 + 16 * 2)


def test_who_counts_no_decodes_has_no_bound() -> None:
    assert bound([record("a", "peer")], [TARGET], COSTS) is None
