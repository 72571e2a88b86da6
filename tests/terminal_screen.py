"""A terminal for tests: pyte, made to wrap wide and combining characters as real ones do."""

from __future__ import annotations

import io
import os

import pyte
from pyte.screens import Char
from wcwidth import wcwidth


class Screen(pyte.HistoryScreen):
    """Rows that scroll off the top are kept; dim text shows up as `italics` of a cell."""

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines, history=100_000, ratio=0.5)

    def draw(self, data: str) -> None:
        for char in data:
            width = wcwidth(char)
            if width == 2 and self.cursor.x == self.columns - 1:
                self.cursor.x = self.columns  # a wide character wraps whole
            if width == 0:
                self._combine(char)
            else:
                super().draw(char)

    def _combine(self, char: str) -> None:
        line = self.buffer[self.cursor.y]
        x = self.cursor.x - 1
        while x > 0 and line[x].data == "":
            x -= 1
        if x >= 0:
            line[x] = line[x]._replace(data=line[x].data + char)

    def select_graphic_rendition(self, *attrs: int, private: bool = False) -> None:
        names = {2: 3, 22: 23}  # pyte knows no dim
        super().select_graphic_rendition(*(names.get(a, a) for a in attrs))

    def rows(self) -> list[list[Char]]:
        """Scrollback and screen, from the top, each row to its last used cell."""
        top = [dict(line) for line in self.history.top]
        screen = [self.buffer[y] for y in range(self.lines)]
        blank = self.default_char
        rows = []
        for line in (*top, *screen):
            row = [line.get(x, blank) for x in range(self.columns)]
            while row and row[-1].data == " ":
                row.pop()
            rows.append(row)
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def text(self) -> str:
        """Scrollback and screen as text, without blanks at the ends of rows."""
        return "\n".join("".join(c.data for c in row) for row in self.rows())

    def dim(self) -> str:
        """All dim text."""
        return "".join(c.data for row in self.rows() for c in row if c.italics)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal and draws on a `Screen`."""

    encoding = "utf-8"

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        super().__init__()
        self.screen = Screen(columns, lines)
        self.stream = pyte.Stream(self.screen)
        self.sent: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.sent.append(text)
        # A real terminal driver adds a carriage return to a line feed.
        self.stream.feed(text.replace("\r\n", "\n").replace("\n", "\r\n"))
        return len(text)

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.screen.columns, self.screen.lines))
