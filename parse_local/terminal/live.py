"""The answer while it is written: final text normal, the draft dim until it is judged."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TextIO

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
from parse_local.terminal.cells import visible
from parse_local.terminal.painter import Painter, wraps_again


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


class AnswerView:
    """Draws the events of one answer; a context manager.

    On a terminal the draft is shown dim and its rejected tail disappears. Elsewhere
    only final text is written: into a pipe as it is, on a dumb terminal with
    control characters replaced. Leaving the block removes what is provisional and
    ends the line, also after an error.

    Args:
        out: where to draw; the cursor must be at the start of a line.
        live: draw provisional text; None decides by `can_draw`.
        size: columns and lines at this moment; None asks the terminal.
        reflows: whether the terminal wraps old lines anew when resized; None guesses.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        live: bool | None = None,
        size: Callable[[], os.terminal_size] | None = None,
        reflows: bool | None = None,
    ) -> None:
        self._out = out = out or sys.stdout
        self._raw = not out.isatty() and not live
        self._painter: Painter | None = None
        if can_draw(out) if live is None else live:
            self._painter = Painter(
                self._write,
                size or (lambda: terminal_size(out)),
                reflows=wraps_again(os.environ) if reflows is None else reflows,
            )
        self._kept = ""  # accepted, but its Text has not come yet
        self._tail = ""  # all that is provisional: `_kept`, then the running draft
        self._channel: Channel = "answer"  # of the draft that is being decided on
        self._ends_line = True
        self.result: Result | None = None

    def __enter__(self) -> AnswerView:
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
        match event:
            case Drafted(channel="reasoning") | Text(channel="reasoning"):
                pass
            case Verified(round=round):
                self._channel = round.channel
            case Accepted() | RolledBack() if self._channel == "reasoning":
                pass
            case Drafted(text=text):
                self._tail += text
                self._paint("")
            case Accepted(text=text):
                self._kept += text
            case RolledBack():
                self._tail = self._kept
                self._paint("")
            case Text(text=text):
                # A stop string may hold back the end of what was accepted.
                rest = self._kept
                self._kept = rest[len(text) :] if rest.startswith(text) else ""
                self._tail = self._kept
                self._paint(text)
            case Finished(result=result):
                self.result = result
                self._clear()

    def close(self) -> None:
        """Remove what is provisional and end the line."""
        self._clear()
        if self._painter is not None:
            self._painter.finish()
        if not self._ends_line:
            self._ends_line = True
            self._write("\n")

    def _clear(self) -> None:
        self._kept = self._tail = ""
        self._paint("")

    def _paint(self, final: str) -> None:
        if final:
            self._ends_line = final.endswith("\n")
        if self._painter is not None:
            self._painter.paint(visible(final), visible(self._tail))
        elif final:
            self._write(final if self._raw else visible(final))

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
        except UnicodeEncodeError:  # a terminal or a pipe that isn't UTF-8
            encoding = self._out.encoding or "ascii"
            self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
