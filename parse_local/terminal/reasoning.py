"""What a model thinks, on stderr where the answer goes elsewhere."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from parse_local.events import Event, Finished, Text
from parse_local.terminal.cells import visible

_DIM, _NORMAL = "\x1b[2m", "\x1b[22m"


class ReasoningView:
    """Writes reasoning dim, as it becomes final; nothing of the answer.

    Only where `err` is a terminal and `out`, which has the answer, is none: at a terminal
    reasoning belongs above the answer, and in a log nobody wants it.

    Args:
        out: where the answer goes.
        err: where reasoning goes, stderr unless given.
    """

    def __init__(self, out: TextIO, err: TextIO | None = None) -> None:
        self._err = err = err or sys.stderr
        self._shows = err.isatty() and not out.isatty()
        self._styled = not os.environ.get("NO_COLOR")
        self._open = False  # a line of reasoning is unfinished

    def show(self, event: Event) -> None:
        """Take any event."""
        match event:
            case Text(text=text, channel="reasoning") if self._shows and text:
                text = visible(text)
                self._write(f"{_DIM}{text}{_NORMAL}" if self._styled else text)
                self._open = not text.endswith("\n")
            case Text() | Finished():
                self.close()

    def close(self) -> None:
        """End the line."""
        if self._open:
            self._write("\n")
        self._open = False

    def _write(self, text: str) -> None:
        encoding = self._err.encoding or "utf-8"
        self._err.write(text.encode(encoding, "replace").decode(encoding))
        self._err.flush()
