"""Figures of the running answer, in one row under it, and of the chat, under its prompt."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wcwidth import wcswidth

from parse_local.events import Progress
from parse_local.terminal.cells import Cell, split
from parse_local.terminal.stats import factor, percent

DIM, WARNING = "2", "31"
WARN_FROM = 0.8
"""Share of the context from which on it is shown in the warning colour."""

_SEPARATOR = " · "
_WINDOW_S = 3.0  # over which "now" is measured


@dataclass(frozen=True)
class Part:
    """One figure.

    Args:
        text: as it is shown.
        rank: where room is short, parts of the highest rank go first.
        style: SGR parameters.
    """

    text: str
    rank: int
    style: str = DIM


def fit(parts: Sequence[Part], columns: int) -> list[Part]:
    """The parts that one row has room for, in their order; the last column stays free."""
    kept = list(parts)
    while kept and _width(kept) > columns - 1:
        kept.remove(max(kept, key=lambda part: part.rank))
    return kept


def _width(parts: Sequence[Part]) -> int:
    return wcswidth(_SEPARATOR.join(part.text for part in parts))


def context_part(n_used: int, n_ctx: int, rank: int) -> Part:
    """How much of the context is in use."""
    warns = n_used >= WARN_FROM * n_ctx
    return Part(f"context {n_used:,}/{n_ctx:,}", rank, WARNING if warns else DIM)


def toolbar(
    pair: str, n_used: int, n_ctx: int, strategy: str, more: Sequence[str] = (), *, columns: int
) -> list[tuple[str, str]]:
    """What stands under the prompt, as prompt_toolkit's FormattedText takes it.

    Args:
        pair: name of the loaded models.
        n_used: tokens of context after the last answer.
        n_ctx: tokens of context there are.
        strategy: who writes.
        more: other things to know, kept longer than pair and strategy.
        columns: of the terminal.
    """
    parts = [Part(pair, 2), context_part(n_used, n_ctx, 0), Part(strategy, 3)]
    parts = [part for part in parts if part.text] + [Part(text, 1) for text in more]
    found: list[tuple[str, str]] = []
    for part in fit(parts, columns):
        warns = part.style == WARNING
        found += [("", _SEPARATOR if found else ""), ("ansired" if warns else "", part.text)]
    return found


class Status:
    """The figures of one answer while it runs.

    Args:
        progress: asked for the counts.
        n_ctx: tokens of context.
        strategy: who writes.
        clock: seconds.
    """

    EVERY_S = 0.5
    """The figures change no more often: they have to be read, and sent to where they are read."""

    def __init__(
        self,
        progress: Callable[[], Progress],
        n_ctx: int,
        strategy: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._n_ctx = n_ctx
        self._strategy = strategy
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._parts: list[Part] = [Part("reading the prompt", 0)]
        self._next = clock() + self.EVERY_S

    @property
    def n_tokens(self) -> int:
        """Final tokens so far, reasoning included."""
        return self._progress().completion_tokens

    def drafting(self) -> None:
        """The prompt is read, and a draft has begun; said until there are figures."""
        if not self._seen:
            self._parts = [Part("drafting", 0)]

    def due(self) -> bool:
        """Whether it is time for new figures."""
        return self._clock() >= self._next

    def refresh(self) -> None:
        """Take new figures."""
        now, progress = self._clock(), self._progress()
        self._next = now + self.EVERY_S
        if progress.completion_tokens:
            self._parts = list(self._figures(now, progress))

    def _figures(self, now: float, progress: Progress) -> Iterator[Part]:
        n = progress.completion_tokens
        self._seen.append((now, n))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_S:
            self._seen.popleft()
        then, n_then = self._seen[0]
        rate = (n - n_then) / (now - then) if now > then else 0.0
        if rate:
            yield Part(f"{rate:.1f} tok/s", 0)
        if progress.speedup is not None:
            yield Part(factor(progress.speedup), 1)
        if progress.n_accept:
            yield Part(f"{percent(progress.n_accept / n)} accepted", 3)
        yield context_part(progress.prompt_tokens + n, self._n_ctx, 2)
        yield Part(self._strategy, 4)

    def row(self, columns: int) -> list[Cell]:
        """The figures as a row of the screen."""
        cells: list[Cell] = []
        for part in fit(self._parts, columns):
            cells += [*(split(_SEPARATOR, DIM) if cells else ()), *split(part.text, part.style)]
        return cells
