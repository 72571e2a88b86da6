"""Struck tails, the row of figures, reasoning, and what all of it costs to send."""

from __future__ import annotations

import os

import pytest
from terminal_screen import Terminal

from parse_local.events import (
    Accepted,
    Drafted,
    Event,
    Finished,
    Progress,
    Result,
    RolledBack,
    Round,
    Text,
    Verified,
)
from parse_local.terminal.live import BEAT_S, AnswerView, strikes_through
from parse_local.terminal.status import Part, Status, fit, toolbar


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """An answer on a screen, at the test's own time."""

    def __init__(self, columns: int = 40, lines: int = 12, **kwargs: object) -> None:
        self.terminal = Terminal(columns, lines)
        self.clock = Clock()
        self.progress = Progress(50, 0)
        status = Status(lambda: self.progress, 100, "auto", clock=self.clock)
        how = {"live": True, "status": status, "strikes": True, "reflows": True, **kwargs}
        self.view = AnswerView(self.terminal, size=self.terminal.size, clock=self.clock, **how)
        self.view.__enter__()

    def show(self, *events: Event, after: float = 0.0) -> str:
        self.clock.now += after
        for event in events:
            self.view.show(event)
        self.view.idle()
        return self.terminal.screen.text()

    def struck(self) -> str:
        rows = self.terminal.screen.rows()
        return "".join(c.data for row in rows for c in row if c.strikethrough)

    def sent(self) -> str:
        sent = "".join(self.terminal.sent)
        self.terminal.sent.clear()
        return sent


REJECTED = (
    Drafted("one two three", 3),
    Verified(Round(3, 1, 1), "one two three"),
    Accepted(1, "one"),
    RolledBack(2, " two three"),
    Text("one", "draft"),
)


def test_a_rejected_tail_is_struck_until_text_has_replaced_it() -> None:
    run = Run(status=None)
    assert run.show(*REJECTED) == "one two three"
    assert run.struck() == " two three"
    # Half a word of it would look like the end of the new one.
    assert run.show(Text(" or", "target"), after=BEAT_S / 2) == "one or three"
    assert run.struck() == " three"
    assert run.show(Drafted(" x", 1)) == "one or x"
    assert run.struck() == ""


def test_a_struck_tail_goes_after_a_moment_even_if_nothing_happens() -> None:
    run = Run(status=None)
    run.show(*REJECTED)
    assert run.show(Text(" or", "target"), after=BEAT_S + 0.01) == "one or"


def test_a_terminal_without_strike_through_drops_the_tail_at_once() -> None:
    assert Run(status=None, strikes=False).show(*REJECTED) == "one"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "linux"}, False),
        ({"TERM": "screen"}, False),
        ({"TERM": "screen-256color", "TMUX": "/tmp/x"}, True),
    ],
)
def test_which_terminals_strike_through(environ: dict[str, str], expected: bool) -> None:
    assert strikes_through(environ) == expected


def test_figures_stand_below_and_go_at_the_end() -> None:
    run = Run(60)
    assert run.terminal.screen.text() == "\nreading the prompt"
    assert run.show(Text("Hello", "target")) == "Hello\nreading the prompt"
    run.progress = Progress(50, 10, 5, 1.0, 1.83)
    run.show(after=0.6)
    run.progress = Progress(50, 20, 5, 2.0, 1.83)
    # Ten tokens within half a second; 70 of 100 tokens of context are used.
    assert run.show(Text("\nyou", "target"), after=0.5) == (
        "Hello\nyou\n20.0 tok/s · 1.8x · 25% accepted · context 70/100 · auto"
    )
    cursor = run.terminal.screen.cursor
    assert (cursor.y, cursor.x) == (1, 3)
    assert run.show(Finished(Result())) == "Hello\nyou"


def test_a_first_draft_says_that_the_prompt_is_read() -> None:
    run = Run(60)
    assert run.show(Drafted("Hel", 1)) == "Hel\ndrafting"
    run.show(RolledBack(1, "Hel"))
    run.progress = Progress(50, 10, 0, 1.0)
    run.show(Text("Hi", "target"), after=0.6)
    assert run.show(Drafted(" you", 2)) == "Hi you\ncontext 60/100 · auto"


@pytest.mark.parametrize("how", [{}, {"live": False}])
def test_rejected_reasoning_leaves_no_line(how: dict[str, bool]) -> None:
    run = Run(60, status=None, **how)
    run.show(Drafted("Hm, six", 2, "reasoning"))
    run.show(Verified(Round(2, 0, 0, channel="reasoning"), "Hm, six"), RolledBack(2, "Hm, six"))
    assert run.show(Text("Six.", "target")) == "Six."
    assert run.show(Finished(Result())) == "Six."


def test_a_full_context_is_shown_in_the_warning_colour() -> None:
    run = Run(60)
    for n, colour in ((29, "default"), (30, "red")):
        run.progress = Progress(50, n, 0, 1.0)
        run.show(after=1.0)
        (row,) = [r for r in run.terminal.screen.rows() if "".join(c.data for c in r) != ""]
        cells = {c.fg for c in row[-22:-7]}
        assert (colour in cells) == (colour == "red" or n < 30)
    assert [style for style, _ in toolbar("pair", 80, 100, "auto", columns=80)][3] == "ansired"


def test_in_a_narrow_row_the_least_important_figures_go_first() -> None:
    parts = [Part("12.0 tok/s", 0), Part("1.8x", 1), Part("context 70/100", 2), Part("auto", 4)]
    assert [p.text for p in fit(parts, 80)] == [p.text for p in parts]
    assert [p.text for p in fit(parts, 20)] == ["12.0 tok/s", "1.8x"]
    assert fit(parts, 5) == []


def test_no_figures_on_a_low_screen() -> None:
    assert Run(40, 5).terminal.screen.text() == ""


def test_reasoning_is_dim_italic_in_three_rows_and_then_one_line() -> None:
    run = Run(30, 14)
    run.progress = Progress(50, 40)
    thought = [Text(f"line {i}\n", "target", channel="reasoning") for i in range(20)]
    shown = run.show(Drafted("let", 1, channel="reasoning"), *thought, after=1.0).split("\n")
    assert shown[:4] == ["thinking · 0 s, 0 tokens", "line 17", "line 18", "line 19"]
    assert run.terminal.screen.rows()[1][0].italics
    run.progress = Progress(50, 380)
    shown = run.show(Text("Yes", "target"), after=12.0).split("\n")
    assert shown[:2] == ["thought for 12 s, 340 tokens", "Yes"]


def test_a_rejected_draft_of_reasoning_leaves_the_panel() -> None:
    run = Run(30, 14, status=None)
    run.show(Text("so ", "target", channel="reasoning"), Drafted("no way", 2, channel="reasoning"))
    assert run.terminal.screen.text().endswith("\nso no way")
    round = Round(2, 1, 1, channel="reasoning")
    run.show(Verified(round, "no way"), Accepted(1, "no"), RolledBack(1, " way"))
    assert run.terminal.screen.text().endswith("\nso no")


def test_an_answer_that_is_stopped_while_it_thinks() -> None:
    run = Run(status=None)
    run.show(Text("hm", "target", channel="reasoning"), Finished(Result()))
    run.view.close()
    assert run.terminal.screen.text() == "thought for 0 s"


def test_a_paragraph_without_marks_costs_nothing_to_render() -> None:
    run = Run(status=None, markdown=True)
    run.show(Text("Just some words.\n", "target"))
    run.sent()
    run.show(Text("\n", "target"))
    assert run.sent() == "\r\n"


def test_a_token_sends_little_more_than_itself() -> None:
    run = Run(80, 24)
    run.progress = Progress(50, 1, 0, 1.0)
    run.show(Text("One", "target"), after=0.6)
    run.sent()
    run.show(Text(" two", "target"))
    assert run.sent() == " two"
    run.show(Drafted(" three", 1))
    assert run.sent() == "\x1b[2m three\x1b[m"


def test_a_block_is_rendered_in_place() -> None:
    run = Run(20, 8, status=None, markdown=True)
    run.show(Text("A **bold** word and `code` here", "target"))
    assert run.terminal.screen.text() == "A **bold** word and\n`code` here"
    assert run.show(Text("\n\nnext", "target")) == "A bold word and code\nhere\n\nnext"
    assert [c.data for row in run.terminal.screen.rows() for c in row if c.bold] == list("bold")


def test_a_block_that_is_taller_than_the_screen_stays_as_it_was_written() -> None:
    run = Run(20, 8, markdown=True)
    text = "\n".join(f"**row {i}**" for i in range(12))
    for piece in text.split(" "):
        run.show(Text(piece + " ", "target"))
    run.show(Text("\n\n**end**", "target"), Finished(Result()))
    shown = run.terminal.screen.text().split("\n")
    assert shown[0] == "**row 0**"
    assert shown[-2:] == ["", "end"]
    assert len(shown) == 14


def test_an_emoji_of_disputed_width_is_shown_once_at_the_edge() -> None:
    # pyte gives this heart one column where others give it two: it would stay on its row.
    for columns in range(3, 8):
        run = Run(columns, 10, status=None)
        for piece in ("ab", "❤", "\ufe0f", "cd", "ef"):
            run.show(Text(piece, "target"))
        run.show(Finished(Result()))
        text = run.terminal.screen.text().replace("\n", "").replace("\ufe0f", "")
        assert text.replace(" ", "") == "ab❤cdef"


def test_output_that_is_not_utf8_gets_plain_signs() -> None:
    class Latin(Terminal):
        encoding = "ascii"

        def write(self, text: str) -> int:
            text.encode("ascii")
            return super().write(text)

    terminal = Latin(40, 10)
    with AnswerView(
        terminal, live=True, markdown=True, size=lambda: os.terminal_size((40, 10))
    ) as v:
        v.show(Text("- one\n> two\n", "target"))
    assert terminal.screen.text() == "- one\n| two"
