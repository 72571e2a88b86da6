"""The two channels of what a model writes, told apart as the bytes arrive: the interface (pure).

A parser starts in the state that the end of the rendered prompt implies. Markers may be
split over any number of tokens; they are in neither channel. A block that nothing closes is
reasoning, whatever follows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from parse_local.events import Channel

Run = tuple[Channel, bytes]
"""Bytes of one channel."""

Written = tuple[str, bool]
"""Text, and whether control tokens spelled out in it are meant."""


class Parser:
    """Splits one answer; this one, of a model without marks, takes all of it for the answer."""

    channel: Channel = "answer"
    """The channel of what came last."""
    undecided = False
    """Whether reasoning may begin here, so that the answer has not begun for certain."""
    marks = False
    """Whether there is anything to tell apart."""
    n_closed = 0
    """Blocks of either channel that a marker has ended."""
    tells_calls = False
    """Whether a call that only a header tells from an answer is marked in it, for `tool_calls`."""

    @property
    def in_reasoning(self) -> bool:
        """Whether a block of reasoning is open."""
        return self.channel == "reasoning" and not self.undecided

    @property
    def thinks(self) -> bool:
        """Whether what comes next is reasoning, as far as can be expected."""
        return self.in_reasoning or self.undecided

    @property
    def in_marker(self) -> bool:
        """Whether bytes are held back that may turn out to be a marker, or belong to one."""
        return False

    def push(self, data: bytes, control: bytes = b"") -> list[Run]:
        """Take one token.

        Args:
            data: its bytes.
            control: the marker that it is, where it is a control token, which has no bytes.

        Returns:
            What is certain now, in order; neighbours may be of the same channel.
        """
        return [(self.channel, data)] if data else []

    def finish(self) -> list[Run]:
        """Nothing follows: what was held back is what it looks like."""
        return []

    def copy(self) -> Parser:
        """Another parser in this state."""
        return copy.copy(self)


class Marks(Protocol):
    """How a family of models marks its reasoning."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of their own."""
        ...

    @property
    def closing_text(self) -> str:
        """What ends a block of reasoning in front of the end of a turn."""
        ...

    def parser(self, prompt: str, *, control_only: bool) -> Parser:
        """A parser for what follows `prompt`, of which the end suffices.

        Args:
            prompt: the rendered prompt, control tokens written out.
            control_only: the markers are control tokens, so that their text means nothing.
        """
        ...

    def writes(self, parser: Parser, runs: Sequence[tuple[Channel, str]]) -> Iterator[Written]:
        """What a model with these marks would write to say `runs` in a parser's state."""
        ...


class AnswerStart:
    """Finds where, in a model's own tokens, the answer begins behind what was thought before it.

    Where a model may think but has not been told to, the answer begins at once.

    Args:
        parser: in the state that the prompt implies.
        read: a token → what `Parser.push` takes.
    """

    def __init__(self, parser: Parser, read: Callable[[int], tuple[bytes, bytes]]) -> None:
        self._origin = parser.copy()
        self._read = read
        self._restart()

    def _restart(self) -> None:
        self._parser = self._origin.copy()
        self._seen: list[int] = []

    def __call__(self, tokens: Sequence[int]) -> int | None:
        """How many of the tokens behind the prompt come before it; None: it has not begun."""
        if self._seen != tokens[: len(self._seen)]:
            self._restart()
        for token in tokens[len(self._seen) :]:
            if self._begun:
                break
            self._parser.push(*self._read(token))
            self._seen.append(token)
        return len(self._seen) if self._begun else None

    @property
    def _begun(self) -> bool:
        parser = self._parser
        between = parser.undecided and parser.n_closed > 0  # two messages of gpt-oss
        return not (parser.in_reasoning or parser.in_marker or between)


def joined(runs: Sequence[Run]) -> list[Run]:
    """Neighbours of one channel put together."""
    return [(c, b"".join(d for _, d in group)) for c, group in groupby(runs, key=itemgetter(0))]


def overlap(data: bytes, marker: bytes) -> int:
    """Bytes at the end of `data` that begin `marker`."""
    for n in range(min(len(marker) - 1, len(data)), 0, -1):
        if data.endswith(marker[:n]):
            return n
    return 0


@dataclass(frozen=True)
class Shown:
    """What may be seen of the tokens of a draft.

    Args:
        channel: of the draft.
        pieces: bytes that each token adds to it.
        in_marker: whether each token ends within a marker, or behind the one that closes a
            block of reasoning. Nothing is judged there: when to answer is the target's choice.
        closed: the draft ends a block.
    """

    channel: Channel
    pieces: list[bytes] = field(repr=False)
    in_marker: list[bool] = field(repr=False)
    closed: bool

    def head(self, n: int) -> Shown:
        """Of the first `n` tokens."""
        return replace(self, pieces=self.pieces[:n], in_marker=self.in_marker[:n], closed=False)


def show(parser: Parser, pieces: Sequence[tuple[bytes, bytes]]) -> Shown:
    """Read the tokens of a draft.

    Args:
        parser: in the state before them; it is left as it is.
        pieces: `data` and `control` of each token, as `Parser.push` takes them.
    """
    parser = parser.copy()
    before, n_closed = parser.channel, parser.n_closed
    seen: list[list[Run]] = []
    in_marker: list[bool] = []
    behind = len(pieces)  # the first token that closes a block
    for i, piece in enumerate(pieces):
        seen.append(parser.push(*piece))
        in_marker.append(parser.in_marker)
        if parser.n_closed > n_closed:
            behind = min(behind, i)
    said = [channel for runs in seen for channel, _ in runs]
    closed = behind < len(pieces)
    channel = said[0] if said else before if closed else parser.channel
    shown = [b"".join(data for c, data in runs if c == channel) for runs in seen]
    if channel == "reasoning":
        in_marker[behind:] = [True] * (len(pieces) - behind)
    return Shown(channel, shown, in_marker, closed)
