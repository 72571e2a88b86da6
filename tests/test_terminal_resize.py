"""Arbitrary answers on terminals that are resized meanwhile: the final text stays whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from terminal_screen import Screen, Terminal, wrapped

from parse_local.events import (
    Accepted,
    Drafted,
    Event,
    Finished,
    Progress,
    Result,
    RolledBack,
    Text,
)
from parse_local.terminal.live import AnswerView
from parse_local.terminal.status import Status


@dataclass(frozen=True)
class Resize:
    columns: int
    lines: int


class Clock:
    """Time passes when somebody asks for it, so that nothing waits for long."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def draw(
    events: list[Event | Resize], columns: int, lines: int, *, markdown: bool, step: float
) -> Terminal:
    terminal = Terminal(columns, lines)
    clock = Clock(step)
    counts = Progress(50, 20, 10, 3.0, 1.8)
    status = Status(lambda: counts, 100, "auto", clock=clock)
    view = AnswerView(
        terminal,
        live=True,
        markdown=markdown,
        status=status,
        size=terminal.size,
        reflows=True,
        strikes=True,
        clock=clock,
    )
    with view:
        for event in events:
            if isinstance(event, Resize):
                terminal.screen.reflow(event.columns, event.lines)
            else:
                view.show(event)
            view.idle()
        view.show(Finished(Result()))
    return terminal


def answer_text(events: list[Event | Resize]) -> str:
    return "".join(e.text for e in events if isinstance(e, Text) and e.channel == "answer")


@pytest.fixture(autouse=True, scope="module")
def no_waiting() -> Iterator[None]:
    """Time is the test's own clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parse_local.terminal.painter.time.sleep", lambda seconds: None)
        yield


PIECES = st.text(alphabet="abc xyz\n日語é", max_size=30)
MARKDOWN = st.lists(
    st.sampled_from(
        [
            *"ab *_`#\n",
            "**",
            "\n\n",
            "- ",
            "1. ",
            "```",
            "~~~",
            "py",
            "| ",
            "|--|",
            "> ",
            "](u)",
            "[",
        ]
    ),
    max_size=12,
).map("".join)
SIZES = st.builds(Resize, st.integers(3, 30), st.integers(2, 14))


def answers(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[list[Event | Resize]]:
    return st.lists(
        st.one_of(
            st.builds(Drafted, pieces, st.just(1)),
            st.builds(Accepted, st.just(1), pieces),
            st.builds(RolledBack, st.just(1), pieces),
            st.builds(Text, pieces, st.just("target")),
            st.builds(Text, pieces, st.just("draft")),
            SIZES,
        ),
        max_size=16,
    )


@settings(max_examples=100, deadline=None)
@given(answers(PIECES), st.integers(3, 30), st.integers(2, 14), st.sampled_from([0.01, 0.1, 1.0]))
def test_the_final_text_is_there_in_order(
    events: list[Event | Resize], columns: int, lines: int, step: float
) -> None:
    screen = draw(events, columns, lines, markdown=False, step=step).screen
    provisional = any(isinstance(e, Drafted | RolledBack | Accepted) for e in events)
    resized = any(isinstance(e, Resize) for e in events)
    shown = screen.text().rstrip("\n ")
    expected = wrapped(answer_text(events), screen.columns)
    if not (provisional and resized):
        assert shown == expected
    else:  # what a resize has pushed off the screen cannot be taken back, but nothing is lost
        assert is_within(expected.replace("\n", ""), shown.replace("\n", ""))


def is_within(text: str, shown: str) -> bool:
    """Whether all characters of a text are shown, in their order."""
    rest = iter(shown)
    return all(char in rest for char in text if char != " ")


@settings(max_examples=100, deadline=None)
@given(answers(MARKDOWN), st.integers(3, 40), st.integers(2, 14), st.sampled_from([0.01, 1.0]))
@example([Text("a **b", "target"), Resize(5, 4), Text("** c\n\n- d\n", "target")], 20, 6, 1.0)
def test_rendering_keeps_every_word(
    events: list[Event | Resize], columns: int, lines: int, step: float
) -> None:
    screen = draw(events, columns, lines, markdown=True, step=step).screen
    words = [char for char in answer_text(events) if char.isalnum()]
    shown = [char for char in screen.text() if char.isalnum()]
    provisional = any(isinstance(e, Drafted) for e in events)
    if not provisional or not any(isinstance(e, Resize) for e in events):
        assert shown == words
    else:
        assert is_within("".join(words), "".join(shown))


def test_reasoning_leaves_one_line() -> None:
    events: list[Event | Resize] = [
        Drafted("think", 1, channel="reasoning"),
        Text("think hard", "target", channel="reasoning"),
        Resize(20, 10),
        Text("\nand harder\n" * 9, "target", channel="reasoning"),
        Text("The ", "target"),
        Text("answer", "target"),
    ]
    screen = draw(events, 30, 10, markdown=True, step=0.5).screen
    assert re.fullmatch(r"thought for \d+ s, 0 ?\ntokens\nThe answer", screen.text())


def test_a_screen_that_reflows_wraps_as_it_would_have() -> None:
    terminal = Terminal(10, 4)
    terminal.write("0123456789abcdef\nxyz\n")
    terminal.screen.reflow(6, 4)
    assert terminal.screen.text() == "012345\n6789ab\ncdef\nxyz"
    assert isinstance(terminal.screen, Screen)
    terminal.write("end")
    terminal.screen.reflow(20, 3)
    assert terminal.screen.text() == "0123456789abcdef\nxyz\nend"
