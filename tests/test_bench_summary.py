"""The figures of a summary, each worked out by hand."""

from __future__ import annotations

import pytest
from bench_records import boundary, record, round_

from parse_local.bench.intervals import mcnemar, rate_ratio, wilson
from parse_local.bench.report import markdown
from parse_local.bench.summary import complete, summarize
from parse_local.events import TokenCounts


@pytest.mark.parametrize(
    ("n_right", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (34, 40, 0.7093, 0.9294), (0, 0, 0.0, 1.0)],
)
def test_wilson(n_right: int, n: int, low: float, high: float) -> None:
    assert wilson(n_right, n) == pytest.approx((low, high), abs=1e-4)


def test_a_share_lies_in_its_own_interval() -> None:
    for n in range(1, 60):
        for n_right in range(n + 1):
            low, high = wilson(n_right, n)
            assert 0 <= low <= n_right / n <= high <= 1  # also of 6 of 6, whatever the rounding


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (3, 3, 1.0), (0, 6, 2 / 64), (1, 7, 2 * 9 / 256)],
)
def test_mcnemar(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)


def test_rate_ratio() -> None:
    # 30 tokens in 2 s against 30 in 6 s, whichever problems are drawn
    ratio, low, high = rate_ratio([(10, 1.0), (20, 1.0)], [(10, 3.0), (20, 3.0)])
    assert (ratio, low, high) == pytest.approx((3, 3, 3))
    # Twice as fast on one problem, as fast on the other: the interval spans both.
    ratio, low, high = rate_ratio([(10, 1.0), (10, 2.0)], [(10, 2.0), (10, 2.0)])
    assert ratio == pytest.approx(4 / 3)
    assert (low, high) == pytest.approx((1, 2))


UNASKED = {**boundary(7, 0.0), "p_correct": None, "confidence": 0.9}
JUDGED = round_(8, 3, 6, boundaries=[boundary(4, 0.9), boundary(6, 0.8), UNASKED])
RECORDS = [
    record("a", "target", seconds=4.0, text="same", peak_bytes=100_000_000),
    record("b", "target", seconds=4.0, correct=False, peak_bytes=300_000_000),
    record(
        "a",
        "parse",
        seconds=2.0,
        text="same",
        rounds=(JUDGED,),
        tokens=TokenCounts(n_accept=6, spec_proposed=4, spec_accepted=1),
        joules=10.0,
    ),
    record("b", "parse", seconds=2.0, n_tokens=20, text="other", joules=30.0),
]


def test_a_row() -> None:
    target, parse = summarize(RECORDS, ["target", "parse"])
    assert (target.n, target.n_right, target.p_value) == (2, 1, None)
    assert target.speedup == (1.0, 1.0, 1.0)
    assert target.tok_s == pytest.approx(20 / 8)
    assert target.peak_mb == pytest.approx(300)
    assert target.joules is None
    assert target.same_text == 2

    assert (parse.n_right, parse.gained, parse.lost, parse.p_value) == (2, 1, 0, 1.0)
    assert parse.tok_s == pytest.approx(30 / 4)
    assert parse.speedup[0] == pytest.approx(3)  # in tokens per second
    assert parse.time_ratio == pytest.approx(2)  # in seconds a problem
    assert parse.ttft_s == pytest.approx(1)
    assert parse.accepted == pytest.approx(6 / 30)
    assert parse.accepted_exact == pytest.approx(3 / 30)
    assert parse.accepted_semantic == pytest.approx(3 / 30)
    assert (parse.n_rounds, parse.n_forks) == (0.5, 1.0)
    assert parse.proposals == pytest.approx(1 / 4)
    assert parse.same_text == 1
    assert parse.peak_mb is None
    assert parse.joules == pytest.approx(20)
    assert parse.bound is None


def test_repeats_of_a_problem_are_one_problem() -> None:
    again = [*RECORDS]
    for r in RECORDS:
        again.append(record(r.problem, r.strategy, repeat=1, seconds=6.0, correct=True))
    target, _ = summarize(again, ["target", "parse"])
    assert target.n == 2
    assert target.n_right == 1.5
    assert target.accuracy[0] == pytest.approx(0.75)
    assert target.tok_s == pytest.approx(40 / 20)


def test_only_problems_that_all_have_answered_count() -> None:
    found = complete([*RECORDS, record("c", "target")], ["target", "parse"], repeat=1)
    assert {r.problem for r in found} == {"a", "b"}
    assert complete(RECORDS, ["target", "parse"], repeat=2) == []
    assert summarize([], ["target", "parse"]) == []


def test_markdown_leaves_out_what_nobody_has_and_keeps_its_columns() -> None:
    rows = summarize([r for r in RECORDS if r.strategy == "target"], ["target"])
    text = markdown(rows, {"pair": "a|b"})
    assert "- pair: a\\|b\n" in text
    assert "energy" not in text.split("Speed-up is")[0]
    assert "| target | 1/2 | 0.50 (0.09-0.91) | - | 2.50 | 1.00 (1.00-1.00) |" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables[:3]} == {11}
    assert markdown([], {}) == "No problem has been answered by every strategy yet.\n"
