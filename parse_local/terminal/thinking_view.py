"""What the model thinks before it answers: a few dim rows while it does, then one line."""

from __future__ import annotations

import time
from collections.abc import Callable

from parse_local.terminal.cells import Cell, Row, flow, split, visible
from parse_local.terminal.stats import count

STYLE = "2;3"
"""Dim and italic."""
N_ROWS = 3
"""Rows of the reasoning that are shown while it grows."""


class ThinkingPanel:
    """Reasoning that is being written.

    Args:
        n_tokens: asked for the final tokens of the answer so far; None where nobody knows.
        clock: seconds.
    """

    def __init__(
        self,
        n_tokens: Callable[[], int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._n_tokens = n_tokens
        self._clock = clock
        self._started = clock()
        self._n_before = n_tokens() if n_tokens else 0
        self._text = ""
        self._columns = 0
        self._rows = [Row()]  # the last ones of it
        self.draft = ""
        """What of it is provisional; it is shown too."""

    def add(self, text: str) -> None:
        """More of it, final."""
        self._text += text
        if self._columns:
            rows = flow(_cells(text), self._columns, self._rows)
            self._rows = rows[-2 * N_ROWS :]

    def cells(self, columns: int, lines: int) -> list[Cell]:
        """Counter and last rows, ending with a line break."""
        cells = [*split(f"thinking · {self._figures()}", STYLE), Cell("\n", 0)]
        n_rows = min(N_ROWS, lines - 8)
        if n_rows <= 0:
            return cells
        if columns != self._columns:
            self._columns = columns
            self._rows = flow(_cells(self._text), columns)
        rows = flow(_cells(self.draft), columns, self._rows)
        for row in [row for row in rows if _inked(row)][-n_rows:]:
            cells += [*row.cells, Cell("\n", 0)]
        return cells

    @property
    def empty(self) -> bool:
        """Whether nothing of it became final: all that was drafted has been rejected."""
        return not self._text

    def summary(self) -> str:
        """The line that is left of it."""
        return f"thought for {self._figures()}"

    def _figures(self) -> str:
        seconds = f"{self._clock() - self._started:.0f} s"
        if self._n_tokens is None:
            return seconds
        return f"{seconds}, {count(max(0, self._n_tokens() - self._n_before), 'token')}"


def _cells(text: str) -> list[Cell]:
    return split(visible(text), STYLE, prose=True)


def _inked(row: Row) -> bool:
    return any(not cell.text.isspace() for cell in row.cells)
