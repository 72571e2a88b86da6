import io
from dataclasses import replace

import pytest
from rich.console import Console

from parse_local.events import Boundary, Result, Round, Timings, TokenCounts, Usage
from parse_local.terminal.rounds import print_rounds
from parse_local.terminal.stats import percent, print_stats, stats_line

ROUND = Round(16, 11, 13)
RESULT = Result(
    "text",
    usage=Usage(30, 128),
    rounds=(ROUND, ROUND, ROUND),
    tokens=TokenCounts(n_accept=91, draft_decoded=1500),
    timings=Timings(prompt_s=1.0, draft_s=2.0, verify_s=1.5, target_s=2.0, total_s=7.15),
)


def test_one_line() -> None:
    assert stats_line(RESULT) == "128 tokens · 17.9 tok/s · 71% from the draft · 3 rounds"


def test_singular() -> None:
    result = replace(RESULT, usage=Usage(30, 1), rounds=(ROUND,), tokens=TokenCounts(n_accept=1))
    assert stats_line(result) == "1 token · 0.1 tok/s · 100% from the draft · 1 round"


def test_target_alone_has_no_draft_and_no_rounds() -> None:
    result = replace(RESULT, rounds=(), tokens=TokenCounts())
    assert stats_line(result) == "128 tokens · 17.9 tok/s"


@pytest.mark.parametrize(
    ("speedup", "shown"), [(2.168, "2.2x"), (1.05, "1.1x"), (1.049, "1.05x"), (0.966, "0.97x")]
)
def test_a_measured_speedup(speedup: float, shown: str) -> None:
    line = stats_line(replace(RESULT, speedup=speedup))
    assert line.startswith(f"128 tokens · 17.9 tok/s · {shown} the target alone · 71% from")


def test_context_in_use() -> None:
    line = stats_line(replace(RESULT, usage=Usage(1000, 234)), n_ctx=4096)
    assert "context 1,234/4,096" in line


@pytest.mark.parametrize(
    ("reason", "n_ctx", "note"),
    [
        ("cancelled", None, "cancelled"),
        ("length", None, "stopped at --max-tokens"),
        ("length", 4096, "stopped at --max-tokens"),
        ("length", 158, "context full"),
    ],
)
def test_why_it_ended(reason: str, n_ctx: int | None, note: str) -> None:
    line = stats_line(replace(RESULT, finish_reason=reason), n_ctx=n_ctx)
    assert line.endswith(f" · {note}")


def test_nothing_at_all() -> None:
    assert stats_line(Result()) == "0 tokens"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.001, "<1%"), (0.5, "50%"), (0.999, ">99%"), (1, "100%")],
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def table(result: Result) -> str:
    out = io.StringIO()
    print_stats(result, Console(file=out, width=80))
    return out.getvalue()


def test_tables() -> None:
    judged = replace(
        ROUND, boundaries=(Boundary(8, 20, p_correct=0.91), Boundary(16, 40, p_correct=0.42))
    )
    rows = [line.split() for line in table(replace(RESULT, rounds=(ROUND, judged))).splitlines()]
    assert ["1", "16", "11", "13", "-", "-"] in rows
    assert ["2", "16", "11", "13", "2", "0.42", "to", "0.91"] in rows
    assert ["decoded", "by", "the", "draft", "1,500"] in rows
    assert ["prompt", "1.00", "14%"] in rows
    assert ["other", "0.65", "9%"] in rows
    assert ["total", "7.15", "100%"] in rows


def test_rounds_in_which_the_targets_rows_were_not_read() -> None:
    marked = Round(
        40, 0, 40, (Boundary(40, 90, score=8.0, label_mass=0.9),), whole=True, read=False
    )
    unseen = Round(20, 0, 20, confidence=0.934, read=False)
    dropped = Round(5, 0, 0, read=False)
    result = replace(RESULT, rounds=(ROUND, marked, unseen, dropped))
    out = io.StringIO()
    print_rounds(result, Console(file=out, width=200))
    assert out.getvalue().splitlines() == [
        "round 1: 16 tokens drafted, 11 exact, 13 accepted",
        "round 2: 40 tokens drafted, 40 accepted; mark 8 of 9",
        "round 3: 20 tokens drafted, 20 accepted; the draft is sure of it (0.93)",
        "round 4: 5 tokens drafted, 0 accepted",
    ]
    rows = [line.split() for line in table(result).splitlines()]
    assert ["3", "20", "-", "20", "-", "-"] in rows
    assert [marked.to_json()[k] for k in ("read", "score", "p_correct")] == [False, [8.0], [None]]
    assert unseen.to_json()["confidence"] == 0.934
    assert set(ROUND.to_json()) & {"read", "score", "confidence"} == set()


def test_many_rounds_without_verdicts_share_a_line() -> None:
    judged = replace(ROUND, boundaries=(Boundary(16, 40, p_correct=0.42, complete=True),))
    result = replace(RESULT, rounds=(*[ROUND] * 6, judged, ROUND))
    out = io.StringIO()
    print_rounds(result, Console(file=out, width=200))
    assert out.getvalue().splitlines() == [
        "7 rounds: 112 tokens drafted, 91 accepted",
        "round 7: 16 tokens drafted, 11 exact, 13 accepted; P(Correct) of the whole answer 0.420",
    ]


def test_tables_of_an_empty_answer() -> None:
    assert "Rounds" not in table(Result())


@pytest.mark.parametrize(
    ("n_proposed", "shown"), [(0, False), (12, False), (13, True), (128, True)]
)
def test_a_handful_of_proposed_tokens_is_no_figure(n_proposed: int, shown: bool) -> None:
    tokens = TokenCounts(spec_proposed=n_proposed, spec_accepted=0)
    line = stats_line(replace(RESULT, rounds=(), tokens=tokens))
    assert line.endswith(f" · 0 of {n_proposed} proposed tokens accepted") == shown
