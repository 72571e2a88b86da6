import io
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from terminal_screen import Terminal, wrapped
from wcwidth import wcwidth

from parse_local.events import (
    Accepted,
    Drafted,
    Event,
    Finished,
    Result,
    RolledBack,
    Round,
    Text,
    Verified,
)
from parse_local.terminal.cells import split, visible
from parse_local.terminal.live import AnswerView, can_draw
from parse_local.terminal.painter import PROVISIONAL, Painter, wraps_again


def view_on(terminal: Terminal, **kwargs: object) -> AnswerView:
    how = {"live": True, "reflows": False, "strikes": False, **kwargs}
    return AnswerView(terminal, size=terminal.size, **how)


def one_round(kept: str, dropped: str, target: str) -> list[Event]:
    n_draft = len(kept) + len(dropped)
    events: list[Event] = [Drafted(c, i) for i, c in enumerate(kept + dropped, 1)]
    events.append(Verified(Round(n_draft, 0, len(kept)), kept + dropped))
    if kept:
        events.append(Accepted(len(kept), kept))
    if dropped:
        events.append(RolledBack(len(dropped), dropped))
    if kept:
        events.append(Text(kept, "draft"))
    events += [Text(c, "target") for c in target]
    return events


def final_text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Text))


def test_draft_is_dim_until_it_is_final() -> None:
    terminal = Terminal(20, 5)
    view = view_on(terminal)
    view.show(Drafted("one two", 2))
    assert (terminal.screen.text(), terminal.screen.dim()) == ("one two", "one two")
    view.show(Verified(Round(2, 1, 1), "one two"))
    view.show(Accepted(1, "one"))
    view.show(RolledBack(1, " two"))
    assert (terminal.screen.text(), terminal.screen.dim()) == ("one", "one")
    view.show(Text("one", "draft"))
    assert (terminal.screen.text(), terminal.screen.dim()) == ("one", "")
    view.show(Text(" more", "target"))
    assert (terminal.screen.text(), terminal.screen.dim()) == ("one more", "")


def test_next_draft_is_dim_after_the_final_text() -> None:
    terminal = Terminal(20, 5)
    view = view_on(terminal)
    for event in [*one_round("abc", "", ""), Drafted("def", 1)]:
        view.show(event)
    assert (terminal.screen.text(), terminal.screen.dim()) == ("abcdef", "def")


def test_text_held_back_by_a_stop_string_stays_dim_and_goes_at_the_end() -> None:
    terminal = Terminal(20, 5)
    with view_on(terminal) as view:
        for event in (Drafted("abEN", 1), Accepted(2, "abEN"), Text("ab", "draft")):
            view.show(event)
        assert (terminal.screen.text(), terminal.screen.dim()) == ("abEN", "EN")
        view.show(Drafted("D", 1))
        assert terminal.screen.dim() == "END"
        view.show(Finished(Result("ab")))
        assert terminal.screen.text() == "ab"


def test_a_growing_draft_never_erases() -> None:
    terminal = Terminal(10, 8)
    view = view_on(terminal)
    for event in [Drafted(c, 1) for c in "a draft that\nwraps over rows"]:
        view.show(event)
    assert "\x1b[J" not in "".join(terminal.sent)
    assert terminal.screen.text() == "a draft th\nat\nwraps over\n rows"


def test_accepting_does_not_draw_before_the_text_is_final() -> None:
    terminal = Terminal(20, 5)
    view = view_on(terminal)
    view.show(Drafted("whole", 1))
    terminal.sent.clear()
    view.show(Verified(Round(1, 1, 1), "whole"))
    view.show(Accepted(1, "whole"))
    assert terminal.sent == []


def test_scrollback_holds_the_final_text_once() -> None:
    lines = [f"line {i:03}" for i in range(200)]
    events: list[Event] = []
    for i in range(0, 200, 10):
        kept = "\n".join(lines[i : i + 10]) + "\n"
        events += one_round(kept, "wrong\n" * 7, "")
    terminal = Terminal(30, 10)
    with view_on(terminal) as view:
        for event in events:
            view.show(event)
    assert terminal.screen.text() == "\n".join(lines)


def test_of_a_draft_taller_than_the_screen_only_the_end_is_shown() -> None:
    terminal = Terminal(20, 6)
    with view_on(terminal) as view:
        view.show(Text("final ", "target"))
        for i in range(50):
            view.show(Drafted(f"row {i}\n", i))
        assert terminal.screen.text() == "final row 0\n…\nrow 48\nrow 49"
        assert len(terminal.screen.history.top) == 0
        view.show(RolledBack(50, ""))
        assert terminal.screen.text() == "final"


def test_an_accepted_draft_taller_than_the_screen_is_printed_whole() -> None:
    text = "".join(f"row {i}\n" for i in range(50))
    terminal = Terminal(20, 6)
    with view_on(terminal) as view:
        for event in one_round(text, "and a wrong end\n" * 30, "end"):
            view.show(event)
    assert terminal.screen.text() == text + "end"


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_screens_of_few_lines(lines: int) -> None:
    terminal = Terminal(10, lines)
    with view_on(terminal) as view:
        for event in one_round("0123456789abc\n", "wrong\n" * 5, "end"):
            view.show(event)
    assert terminal.screen.text() == "0123456789\nabc\nend"


def test_a_row_that_is_exactly_full() -> None:
    terminal = Terminal(10, 6)
    with view_on(terminal) as view:
        for event in one_round("0123456789", "wrong", "\nnext"):
            view.show(event)
    assert terminal.screen.text() == "0123456789\nnext"


def test_wide_characters_at_the_edge() -> None:
    terminal = Terminal(5, 8)
    with view_on(terminal) as view:
        for event in one_round("日本語", "漢字", "x😀y"):
            view.show(event)
    assert terminal.screen.text() == "日本\n語x😀\ny"


def test_a_combining_character_that_comes_later() -> None:
    terminal = Terminal(4, 4)
    with view_on(terminal) as view:
        for event in [*one_round("abce", "", ""), Text("\u0301", "target"), Text("f", "target")]:
            view.show(event)
    assert terminal.screen.text() == "abce\u0301\nf"


def test_joined_emoji_in_pieces() -> None:
    terminal = Terminal(20, 4)
    with view_on(terminal) as view:
        for piece in ("👩", "\u200d", "👧", "!"):
            view.show(Text(piece, "target"))
    # pyte knows no joining and shows two women; the column is stated after them.
    assert terminal.sent[-2].endswith("!")
    assert "👩\u200d👧\x1b[3G" in "".join(terminal.sent)


def test_control_characters_are_shown_not_obeyed() -> None:
    terminal = Terminal(40, 5)
    with view_on(terminal) as view:
        view.show(Drafted("\x1b[2J", 1))
        view.show(RolledBack(1, "\x1b[2J"))
        view.show(Text("a\x1b[31mb\x07\x9b1Ac\r\nd\te\x7f", "target"))
    assert terminal.screen.text() == "a␛[31mb␇\ufffd1Ac\nd       e␡"


def test_an_error_removes_what_is_provisional_and_ends_the_line() -> None:
    terminal = Terminal(20, 5)
    view = view_on(terminal)
    view.show(Text("kept", "target"))
    view.show(Drafted(" gone", 1))
    view.__exit__(RuntimeError, RuntimeError(), None)
    assert terminal.screen.text() == "kept"
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 1)


def test_no_blank_line_after_text_that_ends_its_line() -> None:
    terminal = Terminal(20, 5)
    with view_on(terminal) as view:
        view.show(Text("kept\n", "target"))
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 1)


def test_pipe_gets_final_text_as_it_is() -> None:
    out = io.StringIO()
    with AnswerView(out) as view:
        for event in one_round("a\x1b[1m\t", "wrong", "b"):
            view.show(event)
    assert out.getvalue() == "a\x1b[1m\tb\n"


@pytest.mark.parametrize(
    "environ", [{"TERM": "dumb"}, {}, {"TERM": "xterm-256color", "NO_COLOR": "1"}]
)
def test_terminals_that_get_final_text_only(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    assert not can_draw(terminal)
    with AnswerView(terminal) as view:
        for event in one_round("a\x1b[1m", "wrong", "b"):
            view.show(event)
    assert "".join(terminal.sent) == "a␛[1mb\n"


def test_output_that_is_not_utf8() -> None:
    raw = io.BytesIO()
    with AnswerView(io.TextIOWrapper(raw, encoding="ascii", newline="")) as view:
        view.show(Text("né", "target"))
        assert raw.getvalue() == b"n?"


def test_wraps_again_by_terminal() -> None:
    assert wraps_again({"TERM": "xterm-256color"})
    assert not wraps_again({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"})
    assert not wraps_again({"TERM": "linux"})
    assert not wraps_again({"TERM": "screen-256color"})
    assert wraps_again({"TERM": "screen-256color", "TMUX": "/tmp/x"})


def test_resize_keeps_the_final_text_whole() -> None:
    terminal = Terminal(20, 10)
    with view_on(terminal) as view:
        for event in one_round("some words that wrap", "", " over rows"):
            view.show(event)
        view.show(Drafted(" and a draft that wraps as well", 1))
        terminal.screen.resize(10, 15)
        view.show(RolledBack(1, ""))
        view.show(Text(" end", "target"))
    text = terminal.screen.text().replace("\n", " ")
    assert text.endswith(" over rows end")
    assert "draft" not in text


def test_nothing_is_drawn_while_the_terminal_is_being_resized() -> None:
    terminal = Terminal(20, 10)
    now = 0.0
    painter = Painter(terminal.write, terminal.size, reflows=False, clock=lambda: now)

    def paint(final: str, tail: str) -> bool:
        return painter.paint(split(final), split(tail, PROVISIONAL))

    assert paint("one", " draft")
    terminal.screen.resize(10, 30)
    assert not paint(" two", "")
    now = 0.3
    terminal.screen.resize(10, 31)
    assert not paint(" three", " draft")
    now = 0.6
    assert not paint("", " more")
    assert terminal.screen.text() == "one draft"
    now = 0.8
    assert paint("", " more")
    assert terminal.screen.text() == "one two three more"
    assert terminal.screen.dim() == " more"


PIECES = st.text(alphabet="abc xyz\n\t日語é😀", max_size=40)
ROUNDS = st.lists(st.tuples(PIECES, PIECES, PIECES), max_size=6)


@settings(max_examples=300, deadline=None)
@given(rounds=ROUNDS, columns=st.integers(2, 40), lines=st.integers(1, 12))
@example(rounds=[("ab", "c", "\nd")], columns=2, lines=3)
def test_any_answer_ends_as_its_final_text(
    rounds: list[tuple[str, str, str]], columns: int, lines: int
) -> None:
    events = [event for r in rounds for event in one_round(*r)]
    terminal = Terminal(columns, lines)
    with view_on(terminal) as view:
        for event in events:
            view.show(event)
        view.show(Finished(Result(final_text(events))))
        plain = Terminal(columns, lines)
        for char in _tabs(final_text(events), columns):
            plain.write(char)
        assert terminal.screen.text() == plain.screen.text()
        assert terminal.screen.dim() == ""
    if not _has_tab(events):
        assert terminal.screen.text() == wrapped(final_text(events), columns)


def _has_tab(events: list[Event]) -> bool:
    return "\t" in final_text(events)


def _tabs(text: str, columns: int) -> str:
    """Tabs as the spaces that a terminal's tab stops make of them, at most to the edge."""
    out, used = "", 0
    for char in text:
        width = wcwidth(char) if char not in "\n\t" else 0
        if char == "\t":
            n = max(1, min(8 - used % 8, columns - used))
            out += " " * n
            used = used + n if used + n <= columns else n
            continue
        used = 0 if char == "\n" else used + width if used + width <= columns else width
        out += char
    return out


@settings(max_examples=200, deadline=None)
@given(
    events=st.lists(
        st.one_of(
            st.builds(Drafted, PIECES, st.just(1)),
            st.builds(Accepted, st.just(1), PIECES),
            st.builds(RolledBack, st.just(1), PIECES),
            st.builds(Text, PIECES, st.just("target")),
        ),
        max_size=30,
    ),
    columns=st.integers(2, 30),
)
def test_any_order_of_events_leaves_final_text_only(events: list[Event], columns: int) -> None:
    terminal = Terminal(columns, 6)
    with view_on(terminal) as view:
        for event in events:
            view.show(event)
    assert terminal.screen.dim() == ""
    expected = wrapped(_tabs(final_text(events), columns), columns)
    assert terminal.screen.text() == expected


@given(st.text())
def test_visible_text_holds_no_control_character(text: str) -> None:
    shown = visible(text)
    assert all(c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") for c in shown)


def test_size_of_a_stream_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from parse_local.terminal.live import terminal_size

    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "9")
    assert terminal_size(io.StringIO()) == os.terminal_size((50, 9))
