"""Prose breaks between words, code where the terminal breaks it; nothing else changes."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal_screen import Terminal, wrapped, wrapped_at_words
from test_terminal_live import one_round
from test_terminal_resize import Clock, Resize, draw, no_waiting

from parse_local.events import Drafted, Event, Finished, Result, RolledBack, Text
from parse_local.terminal.cells import Cell, flow, split
from parse_local.terminal.lines import as_written
from parse_local.terminal.live import AnswerView

__all__ = ["no_waiting"]  # a fixture of this module too


def view_on(terminal: Terminal, *, strikes: bool = False) -> AnswerView:
    return AnswerView(
        terminal, live=True, markdown=True, size=terminal.size, reflows=True, strikes=strikes
    )


def show(columns: int, *events: Event, lines: int = 12) -> Terminal:
    terminal = Terminal(columns, lines)
    view = view_on(terminal, strikes=True)
    view.__enter__()
    for event in events:
        view.show(event)
    return terminal


@pytest.mark.parametrize(
    ("text", "columns", "rows"),
    [
        ("one two three", 9, ["one two", "three"]),
        ("one two three", 7, ["one two", "three"]),
        ("one two   three", 7, ["one two", "three"]),
        ("one  two", 4, ["one", "two"]),
        ("a longerword b", 6, ["a", "longer", "word b"]),
        ("abcdef ghi", 6, ["abcdef", "ghi"]),
        ("abcdef\nghi", 6, ["abcdef", "ghi"]),
        ("abcdef  \n ghi", 6, ["abcdef", " ghi"]),
        ("  - an item", 6, ["  - an", "item"]),
        ("日本語 and日本", 5, ["日本", "語", "and日", "本"]),
        ("ab日cd", 5, ["ab日", "cd"]),
        ("cafe\u0301s are", 5, ["cafe\u0301s", "are"]),
        ("a no\u00a0break", 9, ["a", "no\u00a0break"]),
    ],
)
def test_where_prose_breaks(text: str, columns: int, rows: list[str]) -> None:
    assert wrapped_at_words(text, columns).split("\n") == rows
    laid_out = flow(split(text, prose=True), columns)
    assert ["".join(c.text for c in row.cells).rstrip() for row in laid_out] == rows


def test_a_word_that_grows_over_the_edge_moves_as_it_crosses() -> None:
    shown = []
    for n in range(8, 13):
        shown.append(show(10, *(Text(c, "target") for c in "one two three"[:n])).screen.text())
    assert shown == ["one two", "one two t", "one two th", "one two\nthr", "one two\nthre"]


def test_a_draft_wraps_alike_and_a_rejected_one_is_struck_where_it_was() -> None:
    events = [Text("one tw", "target"), Drafted("o three", 1)]
    assert show(10, *events).screen.text() == "one two\nthree"
    screen = show(10, *events, RolledBack(1, "o three")).screen
    assert screen.text() == "one two\nthree"
    struck = "".join(c.data for row in screen.rows() for c in row if c.strikethrough)
    assert struck == "othree"


def test_a_word_of_which_only_a_part_is_final_survives_a_resize() -> None:
    # Its final part has gone to the next row with the draft; there it stays.
    for columns in range(3, 20):
        terminal, clock = Terminal(12, 10), Clock(0.0)
        view = AnswerView(
            terminal, live=True, markdown=True, size=terminal.size, reflows=True, clock=clock
        )
        view.show(Text("abcdefgh wor", "target"))
        view.show(Drafted("ldly", 1))
        assert terminal.screen.text() == "abcdefgh\nworldly"
        terminal.screen.reflow(columns, 10)
        view.show(RolledBack(1, "ldly"))
        clock.now += 1
        view.show(Text("k", "target"))
        view.close()
        assert terminal.screen.copied().split() == ["abcdefgh", "work"]


def test_code_tables_and_grammar_keep_the_wrapping_of_the_terminal() -> None:
    text = "a word\n```\nx = some code\n```\n| a table | too wide |\n|--|--|\n\n    in dented"
    screen = show(10, Text(text, "target"), Finished(Result()), lines=20).screen
    assert screen.copied() == text
    terminal = Terminal(10, 10)
    with AnswerView(terminal, live=True, size=terminal.size) as view:
        view.show(Text('{"some": "words"}', "target"))
    assert terminal.screen.copied() == '{"some": "words"}'


@pytest.mark.parametrize(
    ("before", "text", "prose"),
    [
        ("", "words", "words"),
        ("```py\n", "x = 1\n```\nwords", "words"),
        ("", "~~~\n```\n~~~\nwords", "words"),
        ("- item\n", "    goes on", "    goes on"),
        ("- item\n\ntext\n", "    code", ""),
        ("", "1. ```\n   code\n   ```\n   more", "   more"),
        ("", "| a | b |\n> said", "> said"),
        ("a ``` b", " ``` c", " ``` c"),
    ],
)
def test_which_lines_are_prose_before_the_block_is_complete(
    before: str, text: str, prose: str
) -> None:
    cells = as_written(before, text)
    assert "".join(c.text for c in cells) == text
    assert "".join(c.text for c in cells if c.prose) == prose


PROSE = st.text(alphabet="abc xyz é\u0301日語\n", max_size=60)


@settings(max_examples=200, deadline=None)
@given(st.lists(PROSE, max_size=6), st.integers(2, 24))
def test_any_cut_of_prose_wraps_alike(pieces: list[str], columns: int) -> None:
    rows = flow((), columns)
    for piece in pieces:
        rows = flow(split(piece, prose=True), columns, rows)
    assert rows == flow(split("".join(pieces), prose=True), columns)
    assert all(row.width <= columns for row in rows)
    shown = [c for row in rows for c in row.cells if c.text.strip()]
    assert "".join(c.text for c in shown).replace(" ", "") == "".join("".join(pieces).split())


WORD = st.text(alphabet="abcdefgé日😀", min_size=1, max_size=14)
PROSE_LINE = st.tuples(
    st.sampled_from(["", "", "  "]),
    st.lists(WORD, min_size=1, max_size=8),
    st.sampled_from([" ", " ", "   "]),
).map(lambda line: line[0] + line[2].join(line[1]))
CODE_LINE = st.text(alphabet="ab =日", max_size=40).map(str.rstrip)
BLOCK = st.one_of(
    st.lists(PROSE_LINE, min_size=1, max_size=3),
    st.lists(CODE_LINE, max_size=3).map(lambda lines: ["```", *lines, "```"]),
    st.just([""]),
)
ANSWER = st.lists(BLOCK, min_size=1, max_size=5)
WRONG = st.lists(st.sampled_from(["a", "word", " ", "  ", "日", "\n", "```\n", "- "]), max_size=8)
CUTS = st.lists(st.tuples(st.integers(1, 30), WRONG.map("".join)), min_size=1, max_size=8)


def laid_out(blocks: list[list[str]], columns: int) -> str:
    parts = []
    for block in blocks:
        wrap = wrapped if block[0] == "```" else wrapped_at_words
        parts += [wrap(line, columns) for line in block]
    return "\n".join(parts).rstrip("\n")


def rounds(text: str, cuts: list[tuple[int, str]]) -> list[Event]:
    events: list[Event] = []
    at = 0
    while at < len(text):
        for n, wrong in cuts:
            events += one_round(text[at : at + n], wrong, text[at + n : at + n + 2])
            at += n + 2
    return events


@settings(max_examples=150, deadline=None)
@given(ANSWER, CUTS, st.integers(3, 40), st.integers(1, 14), st.booleans())
def test_no_word_that_fits_a_row_is_split_and_code_stays(
    blocks: list[list[str]], cuts: list[tuple[int, str]], columns: int, lines: int, strikes: bool
) -> None:
    text = "\n".join(line for block in blocks for line in block)
    terminal = Terminal(columns, lines)
    with view_on(terminal, strikes=strikes) as view:
        for event in rounds(text, cuts):
            view.show(event)
        view.show(Finished(Result()))
    assert terminal.screen.text() == laid_out(blocks, columns)


@settings(max_examples=100, deadline=None)
@given(st.lists(PROSE_LINE, min_size=1, max_size=3), CUTS, st.integers(4, 30))
def test_at_every_moment_final_text_and_draft_are_wrapped_as_one(
    prose: list[str], cuts: list[tuple[int, str]], columns: int
) -> None:
    terminal = Terminal(columns, 80)
    view = view_on(terminal)
    final = draft = ""
    for event in rounds("\n".join(prose), cuts):
        view.show(event)
        if isinstance(event, Drafted):
            draft += event.text
        elif isinstance(event, RolledBack):
            draft = draft[: len(draft) - len(event.text)]
        elif isinstance(event, Text):
            final, draft = final + event.text, draft.removeprefix(event.text)
        if not re.search("`|-|^    ", final + draft, re.MULTILINE):
            assert terminal.screen.text() == wrapped_at_words(final + draft, columns)


MARKED = st.sampled_from(["**bold**", "*it*"])  # rendered, or as it was written
SIZES = st.builds(Resize, st.integers(3, 40), st.integers(2, 14))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.text("abcdefg", min_size=1, max_size=9) | MARKED, max_size=9), max_size=4),
    st.lists(st.text("ab =", max_size=30).map(str.rstrip), max_size=3),
    st.lists(st.tuples(st.integers(1, 40), st.none() | SIZES), max_size=8),
    st.integers(3, 40),
    st.sampled_from([0.01, 1.0]),
)
def test_copying_gives_the_words_and_the_code_at_any_sizes(
    prose: list[list[str]],
    code: list[str],
    steps: list[tuple[int, Resize | None]],
    columns: int,
    step: float,
) -> None:
    text = "\n".join([*map(" ".join, prose), "```", *code, "```", "the end"])
    events: list[Event | Resize] = []
    at = 0
    for n, size in [*steps, (len(text), None)]:
        events += [Text(text[at : at + n], "target"), *([size] if size else [])]
        at += n
    copied = draw(events, columns, 10, markdown=True, step=step).screen.copied()
    assert copied.replace("*", "").split() == text.replace("*", "").split()
    lines = copied.split("\n")
    start = lines.index("```")
    assert lines[start : start + len(code) + 2] == ["```", *code, "```"]


def test_a_word_that_moves_costs_little() -> None:
    text = "Every token is sent as it is, and a word that crosses the edge is sent again once. " * 4
    terminal = Terminal(40, 24)
    with view_on(terminal) as view:
        for a, b in pairwise(range(0, len(text) + 3, 3)):
            view.show(Text(text[a:b], "target"))
    assert sum(map(len, terminal.sent)) < 2 * len(text)


def test_the_marks_of_layout_are_not_seen() -> None:
    assert Cell("a", 1, prose=True) == Cell("a", 1)
