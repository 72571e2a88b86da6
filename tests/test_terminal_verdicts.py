import io
from dataclasses import replace

from rich.console import Console

from parse_local.events import Boundary, Round
from parse_local.terminal.verdicts import print_verdicts

TEXT = "First step.\nSecond step.\nA wrong end.\n"
ROUND = Round(
    n_draft=12,
    n_exact=3,
    n_accept=8,
    boundaries=(
        Boundary(4, 12, p_correct=0.981, label_mass=0.99),
        Boundary(8, 25, p_correct=0.953, label_mass=0.99),
        Boundary(12, 38, p_correct=0.311, label_mass=0.62, complete=True),
    ),
)


def verdicts(round: Round, text: str = TEXT, *, width: int = 60, **kwargs: object) -> list[str]:
    out = io.StringIO()
    print_verdicts(text, round, console=Console(file=out, width=width), **kwargs)
    return out.getvalue().splitlines()


def test_verdicts_stand_in_the_margin_and_the_cut_between() -> None:
    lines = verdicts(ROUND, tau_full=0.9, tau_prefix=0.92)
    assert lines[0].split() == ["P(Corr.)"]
    assert lines[1] == "│ First step." + " " * 38 + "   0.981"
    assert lines[2] == "│ Second step." + " " * 37 + "   0.953"
    assert lines[3].startswith("──── cut ────")
    assert lines[4] == "· A wrong end." + " " * 37 + "   0.311!"
    assert lines[5].split(" · ") == [
        "│ accepted: 8 of 12 tokens",
        "first 3 exactly the target's",
        "tau 0.9 whole",
        "tau 0.92 prefix",
    ]
    assert lines[6].startswith("! At 1 place the two labels together have little probability (0.62")
    assert len(lines) == 7


def test_whole_answer_accepted_has_no_cut() -> None:
    lines = verdicts(replace(ROUND, n_accept=12, whole=True))
    assert not any("cut" in line for line in lines)
    assert all(line.startswith("│ ") for line in lines[1:4])


def test_nothing_accepted_is_cut_at_the_top() -> None:
    lines = verdicts(replace(ROUND, n_accept=0))
    assert lines[1].startswith("──── cut")
    assert all(line.startswith("· ") for line in lines[2:5])


def test_cut_between_two_boundaries() -> None:
    lines = verdicts(replace(ROUND, n_accept=6))
    # Half of the second segment's 13 characters; its verdict stays at its end.
    assert lines[2:5] == [
        "│ Second",
        "──── cut " + "─" * 50,
        "·  step." + " " * 43 + "   0.953",
    ]


def test_long_segments_wrap_and_keep_the_verdict_on_the_last_row() -> None:
    text = "x" * 100
    round = Round(10, 0, 10, (Boundary(10, 100, p_correct=0.9),))
    lines = verdicts(round, text, width=63)
    assert lines[1] == "│ " + "x" * 50
    assert lines[2] == "│ " + "x" * 50 + "     0.900"


def test_wide_characters_keep_the_margin_straight() -> None:
    round = Round(2, 0, 2, (Boundary(1, 3, p_correct=0.5), Boundary(2, 6, p_correct=0.6)))
    lines = verdicts(round, "日本\nabc", width=40)
    assert lines[1] == "│ 日本" + " " * 23 + "     0.500"
    assert lines[2] == "│ abc" + " " * 24 + "     0.600"


def test_no_row_is_wider_than_the_screen() -> None:
    for width in (30, 40, 80):
        for line in verdicts(ROUND, width=width)[:5]:
            assert len(line) <= width


def test_sequential_verdicts_and_their_difference() -> None:
    plain = replace(
        ROUND,
        boundaries=tuple(replace(b, p_correct=b.p_correct - 0.01) for b in ROUND.boundaries),
    )
    lines = verdicts(ROUND, sequential=plain, width=70)
    assert lines[0].split() == ["forks", "plain", "diff"]
    assert lines[1].split()[-3:] == ["0.981", "0.971", "+0.010"]
    assert "forks against plain passes: at most 0.0100 apart" in lines


def test_control_characters_do_not_reach_the_terminal() -> None:
    round = Round(1, 0, 1, (Boundary(1, 5, p_correct=0.5),))
    assert verdicts(round, "\x1b[2Ja")[1].startswith("│ ␛[2Ja ")


def test_text_that_looks_like_markup_is_left_alone() -> None:
    round = Round(1, 0, 1, (Boundary(1, 8, p_correct=0.5),))
    assert verdicts(round, "[bold]x:")[1].startswith("│ [bold]x: ")
