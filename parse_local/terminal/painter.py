"""A text that grows at its end on a terminal, the last part of it provisional.

Final text goes to the terminal plainly, so it scrolls and copies like any other
output. Prose has line breaks between words, which a later resize keeps; all else is
wrapped by the terminal itself. Only the rows from the one on
which the final text ends are ever drawn again, and of these only from the first
cell that changed: text that just grows costs no erasing, so nothing flickers. The
cursor stays at the end of the text; a row of figures may stand below it.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile

from parse_local.terminal.cells import SWALLOWED, Cell, Row, flow

PROVISIONAL = "2"
"""The style of what may still be taken back: dim. Styles are SGR parameters, "" is none."""

Below = Callable[[int], Sequence[Cell]]
"""Gives the row under the text, for so many columns; nothing for no such row."""

# Terminals that know synchronised output show the update at once; others ignore it.
_BEGIN_UPDATE, _END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"

# While a window is dragged, terminals wrap old lines anew before they tell the new
# size (tmux up to 0.25 s before). Moving the cursor up in that time would hit the wrong row.
_SETTLE_S = 0.4

_LEAST_LINES = 6
"""On lower screens there is no row below the text."""


def wraps_again(environ: Mapping[str, str]) -> bool:
    """Whether the terminal wraps old lines anew when it is resized.

    Nearly all do. xterm, the Linux console, st and GNU screen leave every row as it is.
    """
    term = environ.get("TERM", "")
    if "TMUX" in environ:
        return True
    return "XTERM_VERSION" not in environ and not term.startswith(("linux", "st-", "screen"))


class Painter:
    """Draws final text and a provisional tail; takes only the tail back.

    Args:
        write: takes a string with ANSI sequences and shows it at once.
        size: gives the terminal's current columns and lines.
        reflows: whether old lines wrap anew after a resize, see `wraps_again`.
        clock: seconds.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        size: Callable[[], os.terminal_size],
        *,
        reflows: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._size = size
        self._reflows = reflows
        self._clock = clock
        self._width = 0  # of what is drawn
        self._lines = 0
        self._seen = 0  # of the terminal when last asked
        self._quiet_until = 0.0
        self._final_waiting: list[Cell] = []
        self._head: list[Cell] = []  # the final text's last line, rows above `_final`
        self._final = Row()  # the row on which the final text ends
        self._rows = [Row()]  # `_final` and the tail, all of it
        self._drawn = [Row()]  # what of `_rows` is on the screen; the cursor is in its last row
        self._below: Row | None = None  # on the screen under `_drawn`
        self._at_edge = False  # the cursor is on the last cell of a full row, not behind it
        self._moved = False  # a resize has left the rows below in disorder
        self._tail: list[Cell] = []

    def room(self) -> tuple[int, int]:
        """Columns of the terminal, and rows that a tail can take without losing its beginning."""
        columns, lines = self._size()
        return max(columns, 2), max(lines - 2, 1)

    def paint(
        self, final: Sequence[Cell], tail: Sequence[Cell], below: Below | None = None
    ) -> bool:
        """Add final text and show `tail` after it instead of the last tail.

        Args:
            final: cells that stay, made of `visible` text.
            tail: all cells that may still be changed or taken back.
            below: the row under the text; None for none, which removes the last one.

        Returns:
            Whether it was drawn; while the terminal is being resized it waits for a later call.
        """
        self._final_waiting += final
        columns, lines = self._size()
        columns = max(columns, 2)  # a wide character needs two
        if columns != self._seen:
            if self._seen:
                self._quiet_until = self._clock() + _SETTLE_S
            self._seen = columns
        if self._clock() < self._quiet_until:
            return False
        final, self._final_waiting = self._final_waiting, []
        self._lines = lines
        under = Row(tuple(below(columns))) if below is not None and lines >= _LEAST_LINES else None
        self._draw(final, tail, columns, under if under and under.cells else None)
        return True

    def finish(self) -> None:
        """Remove the tail and draw all final text, once the terminal keeps its size."""
        while not self.paint([], []):
            time.sleep(_SETTLE_S / 8)

    def _draw(
        self, final: Sequence[Cell], tail: Sequence[Cell], columns: int, below: Row | None
    ) -> None:
        if columns != self._width:
            final = self._resize(columns, final)
        n_old = len(self._tail)
        if final or list(tail[:n_old]) != self._tail:
            rows = flow(final, columns, [self._final])
            self._final = rows[-1]
            self._rows = flow(tail, columns, [self._final])
        else:
            rows = [self._final]
            self._rows = flow(tail[n_old:], columns, self._rows)
        self._tail = list(tail)
        settled = rows[:-1]
        shown = self._fit(self._lines - 1 - (below is not None))
        self._update([*settled, *shown], below)
        self._drawn = shown
        for row in settled:
            self._head = [] if row.newline else [*self._head, *row.cells]

    def _fit(self, limit: int) -> list[Row]:
        # What leaves the screen at its top cannot be taken back, so of a tail
        # taller than the screen only the end is shown.
        if len(self._rows) <= limit:
            return self._rows
        if limit < 3:
            return [self._final]
        # Without what a word of the tail has moved to the next row.
        whole = len(self._rows[0].cells) >= len(self._final.cells)
        first = dataclasses.replace(self._rows[0] if whole else self._final, newline=True)
        gap = Row((Cell("…", 1, PROVISIONAL),), newline=True)
        return [first, gap, *self._rows[2 - limit :]]

    def _resize(self, columns: int, final: Sequence[Cell]) -> Sequence[Cell]:
        """Find out where the rows are now; returns the final cells that must be drawn."""
        width, self._width, drawn = self._width, columns, self._drawn
        self._moved = self._below is not None
        if self._reflows:
            n, text = self._in_place(final, width)
            *above, self._final = flow([*self._head, *text], columns, words=False)
            rows = flow([*self._head, *_flatten(drawn)], columns, words=False)
            self._head = []
            for row in above:
                self._head = [] if row.newline else [*self._head, *row.cells]
            self._drawn = rows[len(above) :]
            self._tail, self._rows = [], [self._final]
            return final[n:]
        carried = list(self._final.cells)
        if len(drawn) > 1 or drawn[0].cells or self._moved:
            n_below = len(drawn) - 1 + self._moved
            self._write(_move(len(drawn) - 1, 0) + _erase(n_below, 0))
            self._below, self._moved, self._at_edge = None, False, False
        self._head, self._final = [], Row()
        self._rows, self._drawn, self._tail = [Row()], [Row()], []
        return [*carried, *final]

    def _in_place(self, final: Sequence[Cell], width: int) -> tuple[int, list[Cell]]:
        """What has just become final and stood there already, as the beginning of the tail.

        It keeps its line breaks: to wrap it anew could take rows that have left the screen.

        Returns:
            Its cells; and all text from the row on which the final text ended, to its end.
        """
        pairs = zip(final, self._tail, strict=False)
        n = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(final), len(self._tail)))
        *above, last = flow(final[:n], width, [self._final]) if n else [self._final]
        if self._drawn is not self._rows or above != self._drawn[: len(above)]:
            n, above, last = 0, [], self._final
        here = self._drawn[len(above)]
        cells = list(last.cells)
        n_here = len(here.cells)
        if here.newline and n_here < len(cells):
            # The last word runs on into the tail and has gone to the next row: there it stays.
            word = list(dropwhile(lambda cell: cell.text in ("", " "), cells[n_here:]))
            cells[n_here:] = [Cell("\n", 0), *word] if word else [SWALLOWED]
        return n, [*_flatten(above), *cells]

    # writing

    def _update(self, new: Sequence[Row], below: Row | None) -> None:
        """Turn `_drawn` into `new` on the screen, from the first difference on."""
        old = self._drawn
        row = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
        if row is None:
            row = min(len(old), len(new))
            if len(old) > len(new) or self._moved:  # the end of what stays is drawn anew
                row -= 1
            elif len(old) == len(new):
                self._update_below(new[-1], below)
                return
        column = 0
        appends = row == len(old)
        if not appends and row < len(new):
            cells = zip(old[row].cells, new[row].cells, strict=False)
            same = [a == b for a, b in cells]
            column = same.index(False) if False in same else len(same)
            appends = row == len(old) - 1 and column == len(old[row].cells)
        in_place = not (self._moved or self._at_edge)
        if appends and in_place and (self._below is None or len(new) == len(old)):
            self._write("".join(_styled(new[row:], column, self._width)))
            self._update_below(new[-1], below)
            return
        if row < len(new) and not self._moved and self._fits_over(new, row):
            self._overwrite(new, row, column)
            self._update_below(new[-1], below)
            return
        self._redraw(new, row, column, below)

    def _fits_over(self, new: Sequence[Row], row: int) -> bool:
        # Whether rows can be written over the old ones without erasing what is below.
        old = self._drawn
        if len(old) != len(new) or len(old) - 1 - row > self._lines - 2:
            return False
        pairs = list(zip(old, new, strict=True))[row:-1]
        return all(a.newline == b.newline and (b.newline or a.width <= b.width) for a, b in pairs)

    def _overwrite(self, new: Sequence[Row], row: int, column: int) -> None:
        column, at = self._place(new[row], 0 if self._shrinks(new, row) else column)
        self._at_edge = False
        parts = [_BEGIN_UPDATE, _move(len(new) - 1 - row, at)]
        for i in range(row, len(new)):
            # The end of the row is drawn first, its line break when the rest is erased.
            cells = _styled([Row(new[i].cells)], column if i == row else 0, self._width)
            if self._shrinks(new, i):
                parts += ["\x1b[K", *cells]
            else:
                parts += [*cells, *(["\x1b[K"] if new[i].width < self._drawn[i].width else [])]
            parts += ["\r\n"] if new[i].newline else []
        self._write("".join((*parts, _END_UPDATE)))

    def _shrinks(self, new: Sequence[Row], row: int) -> bool:
        # Whether a row loses its end for good. It is erased from its first column on: what is
        # erased from another one still counts as text where tmux wraps the row anew.
        return row < len(new) - 1 and new[row].width < self._drawn[row].width

    def _place(self, row: Row, column: int) -> tuple[int, int]:
        # A cell from which a row can be drawn, and where on the screen it is.
        at = sum(cell.width for cell in row.cells[:column])
        while at >= self._width:
            # No sequence moves the cursor behind the last column: draw the last cell again.
            column -= 1
            at -= row.cells[column].width
        return column, at

    def _redraw(self, new: Sequence[Row], row: int, column: int, below: Row | None) -> None:
        # Everything from a cell on, and what is below.
        up = len(self._drawn) - 1 - row
        most = max(self._lines - 1 - (self._below is not None), 0)
        if row > len(self._drawn) - 1:  # behind the last row: from its end
            row, up = row - 1, 0
            column = len(new[row].cells)
        if up > most:  # a resize has pushed it off the screen
            up, column = most, 0
        elif row < len(self._drawn) and self._shrinks(new, row):
            column = 0
        column, at = self._place(new[row], column)
        n_below = up + (self._below is not None)
        self._at_edge = self._moved = False
        self._below = below
        self._write(
            "".join(
                (
                    _BEGIN_UPDATE,
                    _move(up, at),
                    _erase(n_below, at),
                    *_styled(new[row:], column, self._width),
                    *(self._under(new[-1], below) if below else ()),
                    _END_UPDATE,
                )
            )
        )

    def _update_below(self, last: Row, below: Row | None) -> None:
        if below == self._below:
            return
        if below is not None and self._below is None:
            self._write("".join(self._under(last, below)))
        else:
            cells = _styled([below], 0, self._width) if below else ()
            back = "".join(self._back(last))
            self._write("".join(("\r\x1b[B", *cells, "\x1b[K", back)))
        self._below = below

    def _under(self, last: Row, below: Row) -> Iterator[str]:
        yield "\r\n"
        yield from _styled([below], 0, self._width)
        yield from self._back(last)

    def _back(self, last: Row) -> Iterator[str]:
        # From the row below to the end of the text.
        self._at_edge = last.width >= self._width
        yield "\x1b[A" + _move(0, min(last.width, self._width - 1))


def _flatten(rows: Sequence[Row]) -> Iterator[Cell]:
    for row in rows:
        yield from row.cells
        if row.newline:
            yield Cell("\n", 0)


def _move(up: int, column: int) -> str:
    return "\r" + (f"\x1b[{up}A" if up else "") + (f"\x1b[{column}C" if column else "")


def _erase(n_below: int, column: int) -> str:
    """Erase from the cursor, at `column`, to the end of the `n_below` rows under it."""
    if column:
        return "\x1b[J"
    # tmux takes "erase below" in the top left corner for a cleared screen and saves
    # what was on it to its scrollback, so never from there.
    return "\x1b[K" + ("\x1b[B\x1b[J\x1b[A" if n_below else "")


def _styled(rows: Sequence[Row], column: int, width: int) -> Iterator[str]:
    """Rows as a string for the terminal, the first from its cell `column` on."""
    style = ""
    for i, row in enumerate(rows):
        used = 0
        for j, cell in enumerate(row.cells):
            used += cell.width
            if i == 0 and j < column:
                continue
            if cell.style != style:
                yield _change(style, cell.style)
                style = cell.style
            yield cell.text
            if cell.unsure and used < width:
                yield f"\x1b[{used + 1}G"
        if row.newline:
            yield "\r\n"
    yield _change(style, "")


def _change(old: str, new: str) -> str:
    if old == new:
        return ""
    return "\x1b[m" if not new else f"\x1b[0;{new}m" if old else f"\x1b[{new}m"
