"""A terminal for tests: pyte, made to wrap wide and combining characters as real ones do."""

from __future__ import annotations

import io
import os
import re

import pyte
from pyte.screens import Char
from wcwidth import wcwidth


class Screen(pyte.HistoryScreen):
    """Rows that scroll off the top are kept; dim text shows up as `italics` of a cell.

    `reflow` resizes as most terminals do: rows that were wrapped are wrapped anew.
    """

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines, history=100_000, ratio=0.5)

    def draw(self, data: str) -> None:
        for char in data:
            width = wcwidth(char)
            used = self.cursor.x
            if width == 2 and used == self.columns - 1:
                self.cursor.x = self.columns  # a wide character wraps whole
            if width and self.cursor.x == self.columns:
                self.buffer[self.cursor.y].wrapped = used
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

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        super().erase_in_line(how, private)
        if how != 1:
            self.buffer[self.cursor.y].wrapped = 0

    def erase_in_display(self, how: int = 0, *args: object, **kwargs: object) -> None:
        super().erase_in_display(how, *args, **kwargs)
        for y in range(self.cursor.y if how == 0 else 0, self.lines):
            self.buffer[y].wrapped = 0

    def reflow(self, columns: int, lines: int) -> None:
        """Another size; the cursor stays at its character."""
        lines_of_text: list[list[Char]] = [[]]
        at = (0, 0)  # of the cursor: line of text, cell in it
        top = list(self.history.top)
        screen = [self.buffer[y] for y in range(self.lines)]
        for y, row in enumerate([*top, *screen]):
            cells = [row.get(x, self.default_char) for x in range(self.columns)]
            wrapped = getattr(row, "wrapped", 0)  # so many columns of it, and on in the next row
            if y == len(top) + self.cursor.y:
                at = (len(lines_of_text) - 1, len(lines_of_text[-1]) + self.cursor.x)
            if not wrapped:
                least = self.cursor.x if y == len(top) + self.cursor.y else 0
                while len(cells) > least and cells[-1] == self.default_char:
                    cells.pop()
            else:
                del cells[wrapped:]
            lines_of_text[-1] += cells
            if not wrapped:
                lines_of_text.append([])
        while len(lines_of_text) - 1 > at[0] and not lines_of_text[-1]:
            lines_of_text.pop()
        rows, cursor = self._lay_out(lines_of_text, at, columns)
        self._restore(rows, cursor, columns, lines)

    def _lay_out(
        self, texts: list[list[Char]], at: tuple[int, int], columns: int
    ) -> tuple[list[tuple[list[Char], bool]], tuple[int, int]]:
        rows: list[tuple[list[Char], bool]] = []
        cursor = (0, 0)
        for number, text in enumerate(texts):
            row: list[Char] = []
            for i, cell in enumerate(text):
                wide = i + 1 < len(text) and text[i + 1].data == ""
                if cell.data != "" and len(row) + 1 + wide > columns:
                    rows.append((row, True))
                    row = []
                if (number, i) == at:
                    cursor = (len(rows), len(row))
                row.append(cell)
            if number == at[0] and at[1] >= len(text):
                cursor = (len(rows), min(len(row) + at[1] - len(text), columns))
            rows.append((row, False))
        return rows, cursor

    def _restore(
        self,
        rows: list[tuple[list[Char], bool]],
        cursor: tuple[int, int],
        columns: int,
        lines: int,
    ) -> None:
        self.resize(lines, columns)
        self.reset()  # empties the history as well
        # What is below the cursor goes rather than the cursor's row.
        first = min(max(0, len(rows) - lines), cursor[0])
        for y, (row, wrapped) in enumerate(rows[: first + lines]):
            line = self.buffer[max(0, y - first)]
            line.clear()
            line.update(enumerate(row))
            line.wrapped = len(row) if wrapped else 0
            if y < first:
                self.history.top.append(line)
                del self.buffer[0]
        self.cursor.y, self.cursor.x = cursor[0] - first, cursor[1]

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

    def copied(self) -> str:
        """What selecting all of it copies: rows that the terminal wrapped are one line."""
        lines = [*self.history.top, *(self.buffer[y] for y in range(self.lines))]
        out = ""
        for line in lines:
            n = getattr(line, "wrapped", 0)
            row = "".join(line.get(x, self.default_char).data for x in range(n or self.columns))
            out += row if n else row.rstrip(" ") + "\n"
        return out.rstrip("\n")

    def dim(self) -> str:
        """All dim text."""
        return "".join(c.data for row in self.rows() for c in row if c.italics)


def wrapped(text: str, columns: int) -> str:
    """What a terminal shows of `text`, worked out character by character."""
    rows, row, used = [], "", 0
    for char in text:
        width = wcwidth(char)
        if char == "\n":
            rows.append(row)
            row, used = "", 0
            continue
        if used + width > columns:
            rows.append(row)
            row, used = "", 0
        row, used = row + char, used + width
    return _joined([*rows, row])


def wrapped_at_words(text: str, columns: int) -> str:
    """`text` with its words, blanks and wide characters on as few rows as hold them in order.

    A word that is longer than a row has the first one for itself. The rest is as `wrapped`.
    """
    rows = []
    for line in text.split("\n"):
        row, used = "", 0
        # A wide character is a word of its own.
        wide = "".join({char for char in line if wcwidth(char) == 2}) or "\n"
        for part in re.findall(f" +|[{wide}]|[^ {wide}]+", line):
            width = sum(wcwidth(char) for char in part)
            if part[0] == " ":
                part = part[: columns - used]
            elif used + width > columns:
                rows += [row] if row else []
                *full, part = wrapped(part, columns).split("\n")
                rows += full
                row, used = "", 0
            row += part
            used += sum(wcwidth(char) for char in part)
        rows.append(row)
    return _joined(rows)


def _joined(rows: list[str]) -> str:
    return "\n".join(row.rstrip(" ") for row in rows).rstrip("\n")


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
