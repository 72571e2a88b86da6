"""The answer while it is written.

The draft is dim until it is judged; what is accepted turns normal, what is rejected is struck
through for a moment. Final text is rendered, reasoning shrinks to a line, figures stand below.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from parse_local.events import (
    Accepted,
    Channel,
    Drafted,
    Event,
    Finished,
    Result,
    RolledBack,
    Text,
    Verified,
)
from parse_local.terminal.cells import Cell, flow, split, visible
from parse_local.terminal.painter import PROVISIONAL, Painter, wraps_again
from parse_local.terminal.status import Status
from parse_local.terminal.thinking_view import STYLE as THINKING
from parse_local.terminal.thinking_view import ThinkingPanel

if TYPE_CHECKING:
    from parse_local.terminal.markdown import MarkdownStream

STRUCK = f"{PROVISIONAL};9"
BEAT_S = 0.15
"""How long a rejected tail is seen."""

# For terminals and pipes that aren't UTF-8.
_ASCII = str.maketrans({"·": "-", "…": "~", "•": "-", "│": "|", "─": "-", "┼": "+"})


def can_draw(out: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `out` is a terminal on which text may be taken back.

    Not with NO_COLOR: without a style of its own a draft looks like the answer.
    """
    if not out.isatty() or environ.get("NO_COLOR"):
        return False
    if sys.platform == "win32":
        return not Console(file=out).legacy_windows
    return environ.get("TERM", "") not in ("", "dumb", "unknown")


def terminal_size(out: TextIO) -> os.terminal_size:
    """Columns and lines of the terminal behind `out`, 80 by 24 where it does not say."""
    try:
        size = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()
    return size if size.columns and size.lines else os.terminal_size((80, 24))


def strikes_through(environ: Mapping[str, str]) -> bool:
    """Whether the terminal can strike text through; the others only drop it."""
    term = environ.get("TERM", "")
    return "TMUX" in environ or not term.startswith(("linux", "screen", "vt", "ansi", "cygwin"))


class PlainStream:
    """Text as it is, final at once; `MarkdownStream` without Markdown."""

    pending: Sequence[Cell] = ()

    def push(self, text: str) -> list[Cell]:
        """Take final text; returns the cells that stay."""
        return split(text)

    def written(self, text: str, style: str = "") -> list[Cell]:
        """What may follow: a draft."""
        return split(text, style)

    def give_up(self) -> list[Cell]:
        """Nothing is held back."""
        return []

    def finish(self) -> list[Cell]:
        """Nothing is held back."""
        return []


class AnswerView:
    """Draws the events of one answer; a context manager.

    On a terminal the draft is shown dim, and its rejected tail struck through until text
    is written over it, for a moment at most. Elsewhere only final text is written: into a
    pipe as it is and without reasoning, on a dumb terminal with control characters replaced.
    Leaving the block removes what is provisional and ends the line, also after an error.

    Args:
        out: where to draw; the cursor must be at the start of a line.
        live: draw provisional text; None decides by `can_draw`.
        markdown: render final text and wrap prose at words, where text is drawn live.
        status: figures for the row below, where text is drawn live; None for no such row.
        size: columns and lines at this moment; None asks the terminal.
        reflows: whether the terminal wraps old lines anew when resized; None guesses.
        strikes: whether the terminal can strike text through; None guesses.
        clock: seconds.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        live: bool | None = None,
        markdown: bool = False,
        status: Status | None = None,
        size: Callable[[], os.terminal_size] | None = None,
        reflows: bool | None = None,
        strikes: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out = out or sys.stdout
        self._raw = not out.isatty() and not live
        self._clock = clock
        self._status = status
        self._painter: Painter | None = None
        self._blocks: MarkdownStream | PlainStream = PlainStream()
        if can_draw(out) if live is None else live:
            self._painter = painter = Painter(
                self._write,
                size or (lambda: terminal_size(out)),
                reflows=wraps_again(os.environ) if reflows is None else reflows,
                clock=clock,
            )
            if markdown:
                # Here, because a pipe need not wait for a parser and a highlighter.
                from parse_local.terminal.markdown import MarkdownStream

                self._blocks = MarkdownStream(lambda: painter.room()[0])
        self._strikes = strikes_through(os.environ) if strikes is None else strikes
        self._room = (0, 0)
        self._panel: ThinkingPanel | None = None
        self._kept = ""  # accepted, but its Text has not come yet
        self._tail = ""  # all that is provisional: `_kept`, then the running draft
        self._channel: Channel = "answer"  # of the draft that is being decided on
        self._struck: list[Cell] = []  # what was rejected just now
        self._struck_until = 0.0
        self._ends_line = True
        self.result: Result | None = None

    def __enter__(self) -> AnswerView:
        self._paint([])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, BrokenPipeError):
            return  # whoever read us has left; another write would only raise again
        self.close()

    def show(self, event: Event) -> None:
        """Draw what one event changes."""
        if isinstance(event, Drafted) and self._status is not None:
            self._status.drafting()
        match event:
            case Drafted(text=text, channel="reasoning"):
                cells = self._open_panel()
                self._thinking().draft += text
                self._paint(cells)
            case Drafted(text=text):
                self._tail += text
                self._write_over(text)
                self._paint([])
            case Verified(round=round):
                self._channel = round.channel
            case Accepted() if self._channel == "reasoning":
                pass
            case RolledBack(text=text) if self._channel == "reasoning":
                panel = self._thinking()
                panel.draft = panel.draft.removesuffix(text)
                self._paint([])
            case Accepted(text=text):
                self._kept += text
            case RolledBack():
                self._strike()
                self._tail = self._kept
                self._paint([])
            case Text(text=text, channel="reasoning"):
                cells = self._open_panel()
                panel = self._thinking()
                panel.add(text)
                panel.draft = panel.draft[len(text) :] if panel.draft.startswith(text) else ""
                self._paint(cells)
            case Text(text=text):
                self._final(text)
            case Finished(result=result):
                self.result = result
                self._clear()

    def idle(self) -> None:
        """Nothing has happened for a moment: what depends on the time may change."""
        timed = self._struck or (self._status and self._status.due())
        if self._painter is not None and timed:
            self._paint([])

    def close(self) -> None:
        """Remove what is provisional and end the line."""
        self._clear()
        if self._painter is not None:
            self._painter.finish()
        if not self._ends_line:
            self._ends_line = True
            self._write("\n")

    # parts of the answer

    def _final(self, text: str) -> None:
        cells = self._close_panel()
        # A stop string may hold back the end of what was accepted.
        rest = self._kept
        shown = rest.startswith(text)
        self._kept = rest[len(text) :] if shown else ""
        self._tail = self._kept
        if not shown:
            self._write_over(text)
        if text:
            self._ends_line = text.endswith("\n")
        if self._painter is not None:
            stays = self._give_up()
            self._paint([*cells, *stays, *self._blocks.push(visible(text))])
        elif text:
            self._write(text if self._raw else visible(text))

    def _strike(self) -> None:
        if self._strikes and len(self._tail) > len(self._kept):
            cells = self._blocks.written(visible(self._tail), STRUCK)
            self._struck = cells[len(visible(self._kept)) :]
            self._struck_until = self._clock() + BEAT_S

    def _write_over(self, text: str) -> None:
        n = len(visible(text))
        while n < len(self._struck) and not self._struck[n].text.isspace():
            n += 1  # half a word would look like the end of the new one
        del self._struck[:n]

    def _thinking(self) -> ThinkingPanel:
        if self._panel is None:
            n_tokens = (lambda: status.n_tokens) if (status := self._status) else None
            self._panel = ThinkingPanel(n_tokens, clock=self._clock)
        return self._panel

    def _open_panel(self) -> list[Cell]:
        # Reasoning may come again, behind a part of the answer.
        if self._panel is not None or self._painter is None:
            return []
        cells = [*self._give_up(), *self._blocks.finish()]
        if not self._ends_line:
            cells.append(Cell("\n", 0))
            self._ends_line = True
        return cells

    def _close_panel(self) -> list[Cell]:
        """The line that is left of the reasoning, once."""
        panel, self._panel = self._panel, None
        if panel is None or panel.empty:
            return []
        line = f"{panel.summary()}\n"
        if self._painter is None and not self._raw:
            self._write(line)
        return split(line, THINKING, prose=True)

    def _clear(self) -> None:
        self._kept = self._tail = ""
        self._struck.clear()
        self._status = None
        cells = [*self._close_panel(), *self._give_up()]
        self._paint([*cells, *self._blocks.finish()])

    # drawing

    def _paint(self, final: list[Cell]) -> None:
        if self._painter is None:
            return
        if self._status is not None and self._status.due():
            self._status.refresh()
        if self._struck and self._clock() >= self._struck_until:
            self._struck.clear()
        final = [*final, *self._give_up()]
        panel = self._panel.cells(*self._room) if self._panel else ()
        provisional = self._blocks.written(visible(self._tail), PROVISIONAL)
        tail = [*panel, *self._blocks.pending, *provisional, *self._struck]
        self._painter.paint(final, tail, self._status.row if self._status else None)

    def _give_up(self) -> list[Cell]:
        # What has left the screen, or was wrapped anew, stays as it was written.
        if self._painter is None:
            return []
        last, self._room = self._room, self._painter.room()
        if self._room == last and not self._too_tall(*last):
            return []
        return self._blocks.give_up()

    def _too_tall(self, columns: int, n_rows: int) -> bool:
        pending = self._blocks.pending
        n_lines = sum(cell.text == "\n" for cell in pending)
        # Even if all were wide; two rows that are wrapped at words hold more than one full one.
        if 4 * len(pending) / columns + n_lines < n_rows - 1:
            return False
        return len(flow(pending, columns)) >= n_rows - 1

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
        except UnicodeEncodeError:  # a terminal or a pipe that isn't UTF-8
            encoding = self._out.encoding or "ascii"
            text = text.translate(_ASCII)
            self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
