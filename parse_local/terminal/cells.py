"""Text as terminal cells: what a model may show, and where a line wraps.

Pure functions. Widths follow `wcwidth`; where terminals disagree about a
character (`Cell.unsure`), the painter states the column after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from wcwidth import wcwidth

_TAB = 8
_JOINER = "\u200d"
_EMOJI_STYLE = "\ufe0f"

# ESC and the other control characters become their pictures, so that a model's
# text can neither move the cursor nor set a title. A carriage return is dropped:
# in answers it is half of a line end.
_VISIBLE: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20)},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    ord("\n"): "\n",
    ord("\t"): "\t",
    ord("\r"): None,
    0x2028: "\n",
    0x2029: "\n",
}


def visible(text: str) -> str:
    """Replace what a terminal would obey by something it only shows."""
    return text.translate(_VISIBLE)


@dataclass(frozen=True)
class Cell:
    """One character with everything that combines with it.

    Args:
        text: the base character and what joined it.
        width: columns it takes, 0 to 2.
        style: a name of the drawer's own; "" is normal.
        prose: `flow` breaks rows between words here.
    """

    text: str
    width: int
    style: str = ""
    prose: bool = dataclasses.field(default=False, compare=False)  # not seen on the screen

    @property
    def unsure(self) -> bool:
        """Whether terminals disagree about the width (joined and recent characters)."""
        code = ord(self.text[:1] or " ")
        return len(self.text) > 1 or 0x2300 <= code <= 0x2BFF or code >= 0x1F000


@dataclass(frozen=True)
class Row:
    """One row of the screen.

    Args:
        cells: from the left.
        newline: it ends with a line break; otherwise the next row continues it.
    """

    cells: tuple[Cell, ...] = ()
    newline: bool = False

    @property
    def width(self) -> int:
        """Columns in use."""
        return sum(cell.width for cell in self.cells)


SWALLOWED = Cell("", 0)
"""Blanks behind the last column: nothing on the screen, but the row takes no more."""


@lru_cache(maxsize=4096)
def _cell(char: str, style: str, prose: bool) -> Cell:
    width = wcwidth(char)
    # What wcwidth calls unprintable must not reach the terminal either.
    if width < 0 and char not in "\n\t":
        char, width = "\ufffd", 1
    return Cell(char, max(width, 0), style, prose)


def split(text: str, style: str = "", *, prose: bool = False) -> list[Cell]:
    """One cell a character, not joined yet; the text must be `visible` already."""
    return [_cell(char, style, prose) for char in text]


def as_prose(cells: Iterable[Cell]) -> list[Cell]:
    """Cells from `split`, to be wrapped at words."""
    return [_cell(cell.text, cell.style, True) for cell in cells]


def flow(
    cells: Iterable[Cell], width: int, rows: Sequence[Row] = (Row(),), *, words: bool = True
) -> list[Row]:
    """Lay cells out on a terminal, after what `rows` hold already.

    Prose is wrapped at words: a word that would cross the edge goes to the next row whole, one
    that is longer than a row is broken there, and blanks at the edge are swallowed. Next to
    wide characters (Chinese, Japanese) a row may always end. Other cells break where the
    terminal breaks them. It makes no difference in how many pieces a text comes.

    Args:
        cells: from `split`, or from rows that were laid out at another width.
        width: columns of the terminal.
        rows: never empty; the last one is continued, and its last word may leave it.
        words: False for all cells as the terminal itself breaks them.

    Returns:
        At least one row; the last never ends with a newline. A row that ends before a word does
        so with a line break, and also where terminals disagree about a character at the right
        edge, so that all of them go on in the same place.
    """
    done = list(rows[:-1])
    row = list(rows[-1].cells)
    used = rows[-1].width

    def place(cell: Cell) -> None:
        nonlocal row, used
        full = words and bool(row) and not row[-1].text
        if full or (used + cell.width > width and row):
            wraps = words and cell.prose
            if wraps and cell.text == " ":
                row += [] if full else [SWALLOWED]
                return
            start = _word_start(row) if wraps and cell.width == 1 else len(row)
            if start == 0:  # longer than a row
                start = len(row)
            unsure = row[-1].unsure or (cell.unsure and used < width)
            at_word = full or start < len(row) or (wraps and row[-1].text == " ")
            end = start
            # Some terminals count blanks in front of a line break when they are resized.
            while at_word and end and row[end - 1].text in ("", " "):
                end -= 1
            done.append(Row(tuple(row[:end]), newline=at_word or unsure))
            row = row[start:]
            used = sum(c.width for c in row)
        row.append(cell)
        used += cell.width

    for cell in cells:
        if not cell.text:
            if words:  # at another width it may be seen
                place(_cell(" ", "", True))
            else:
                row.append(cell)
        elif cell.text == "\n":
            done.append(Row(tuple(row), newline=True))
            row, used = [], 0
        elif cell.text == "\t":
            # Spaces: a tab moves the cursor over old text without erasing it.
            for _ in range(max(1, min(_TAB - used % _TAB, width - used))):
                place(_cell(" ", cell.style, cell.prose))
        elif row and row[-1].text and _joins(row[-1], cell):
            last = row.pop()
            used -= last.width
            place(_join(last, cell))
        else:
            place(cell)
    return [*done, Row(tuple(row))]


def _word_start(row: Sequence[Cell]) -> int:
    # Of the word at the end of a row; its length where no word can go on.
    start = len(row)
    while start and row[start - 1].width < 2 and row[start - 1].text not in ("", " "):
        start -= 1
    return start


def _joins(last: Cell, cell: Cell) -> bool:
    code = ord(cell.text[0])
    if cell.width == 0 or last.text.endswith(_JOINER):
        return True
    if 0x1F1E6 <= code <= 0x1F1FF:  # two regional indicators are one flag
        return len(last.text) == 1 and 0x1F1E6 <= ord(last.text) <= 0x1F1FF
    return 0x1F3FB <= code <= 0x1F3FF and last.width == 2 and len(last.text) == 1


def _join(last: Cell, cell: Cell) -> Cell:
    text = last.text + cell.text
    wide = text.endswith(_EMOJI_STYLE) or 0x1F1E6 <= ord(text[0]) <= 0x1F1FF
    return dataclasses.replace(cell, text=text, width=2 if wide else last.width)
