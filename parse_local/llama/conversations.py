"""Earlier conversations that stay cached beside the running one.

The main sequence is the running conversation. When a prompt goes on from another one, or
leaves much of the running one behind, that is kept under a handle of its own, and the cached
conversation that shares most with the prompt becomes the main sequence. The one that has not
been running for longest goes first, when there are too many and when cells run short.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parse_local.llama._bindings import lib

MIN_TOKENS = 32
"""Fewer tokens than this are decoded again rather than kept or fetched."""


def n_common(a: Sequence[int], b: Sequence[int], limit: int | None = None) -> int:
    """Tokens that two sequences share from the start, at most `limit`."""
    limit = min(len(a), len(b)) if limit is None else limit
    a, b = (s if isinstance(s, list) else list(s) for s in (a, b))
    n = 0
    step = limit  # mostly it is all, and slices compare faster than single tokens
    while step > 0:
        while n + step <= limit and a[n : n + step] == b[n : n + step]:
            n += step
        step //= 2
    return n


class Shelf(Protocol):
    """Where conversations are kept while others run."""

    def put(self, length: int, used: Sequence[Any]) -> Any:
        """Keep the main sequence, which has `length` tokens, beside the `used` handles."""

    def n_within(self, handle: Any, n: int) -> int:
        """Longest prefix of at most `n` tokens that `fetch` can give, 0 for none."""

    def fetch(self, handle: Any, n: int) -> bool:
        """Make the main sequence the first `n` tokens; the handle stays valid.

        Returns:
            False where that failed; the main sequence then holds nothing of use.
        """

    def drop(self, handle: Any) -> None:
        """Free what the handle stands for."""

    def sweep(self, used: Sequence[Any]) -> bool:
        """Free what none of the `used` handles stands for; True if there was anything."""


class SequenceShelf:
    """Conversations as sequences of the same unified KV cache.

    A copy shares its cells and computes nothing (`llama_memory_seq_cp`, and not the fork of
    `library.seq_fork`: that one sees its parent's cells only as long as the parent keeps them).

    Args:
        memory: llama_memory_t.
        first_seq: first sequence id that is theirs.
        n: how many.
    """

    def __init__(self, memory: Any, first_seq: int, n: int) -> None:
        self._memory = memory
        self._seqs = range(first_seq, first_seq + n)

    def put(self, length: int, used: Sequence[int]) -> int:
        """As `Shelf`."""
        seq = next(s for s in self._seqs if s not in used)
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)  # an interrupt may have left something
        lib.llama_memory_seq_cp(self._memory, 0, seq, -1, -1)
        return seq

    def n_within(self, handle: int, n: int) -> int:
        """As `Shelf`: every prefix can be had."""
        return n

    def fetch(self, handle: int, n: int) -> bool:
        """As `Shelf`."""
        if not lib.llama_memory_seq_rm(self._memory, 0, -1, -1):
            return False
        lib.llama_memory_seq_cp(self._memory, handle, 0, 0, n)
        return True

    def drop(self, handle: int) -> None:
        """As `Shelf`."""
        lib.llama_memory_seq_rm(self._memory, handle, -1, -1)

    def sweep(self, used: Sequence[int]) -> bool:
        """As `Shelf`."""
        left = [
            s
            for s in self._seqs
            if s not in used and lib.llama_memory_seq_pos_max(self._memory, s) >= 0
        ]
        for seq in left:
            lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return bool(left)


@dataclass(frozen=True)
class _Copy:
    # The state of a sequence of `n` tokens.
    n: int
    data: Any


class CopyShelf:
    """Conversations as whole copies outside the cache, in the machine's own memory.

    For memories that more than one conversation cannot share: a recurrent state belongs to one
    sequence, and a cache with a sliding window takes cells back that lie behind the window of
    the only sequence that owns them.

    Args:
        handle: llama_context.
        can_cut: whether the main sequence can be cut anywhere once it is fetched.
        places: what else of the main sequence can be copied, as (length, sequence id),
            for memories that cannot be cut; called when a conversation is put here.

    Source: llama_state_seq_get_data, llama_state_seq_set_data.
    """

    def __init__(self, handle: Any, *, can_cut: bool, places: Any = None) -> None:
        self._handle = handle
        self._can_cut = can_cut
        self._places = places

    def put(self, length: int, used: Sequence[list[_Copy]]) -> list[_Copy]:
        """As `Shelf`."""
        places = [*(self._places() if self._places else ()), (length, 0)]
        return [self._copy(n, seq) for n, seq in places]

    def _copy(self, n: int, seq: int) -> _Copy:
        size = int(lib.llama_state_seq_get_size(self._handle, seq))
        data = (ctypes.c_uint8 * size)()
        written = int(lib.llama_state_seq_get_data(self._handle, data, size, seq))
        return _Copy(n if written == size else 0, data)

    def n_within(self, handle: list[_Copy], n: int) -> int:
        """As `Shelf`: the length of a copy, or every prefix of the longest."""
        if self._can_cut:
            return min(n, handle[-1].n)
        return max((c.n for c in handle if c.n <= n), default=0)

    def fetch(self, handle: list[_Copy], n: int) -> bool:
        """As `Shelf`."""
        copy = next(c for c in handle if c.n >= n)
        memory = lib.llama_get_memory(self._handle)
        if not lib.llama_memory_seq_rm(memory, 0, -1, -1):
            return False
        if not lib.llama_state_seq_set_data(self._handle, copy.data, len(copy.data), 0):
            return False
        return copy.n == n or bool(lib.llama_memory_seq_rm(memory, 0, n, -1))

    def drop(self, handle: list[_Copy]) -> None:
        """As `Shelf`."""
        handle.clear()

    def sweep(self, used: Sequence[list[_Copy]]) -> bool:
        """As `Shelf`: copies take no cells."""
        return False


@dataclass(eq=False)
class Cached:
    """A conversation that is not running.

    Args:
        tokens: of it.
        handle: of the shelf.
    """

    tokens: list[int]
    handle: Any


class Conversations:
    """The cached conversations of one context.

    Args:
        shelf: where they are kept.
        n_max: most of them.
    """

    def __init__(self, shelf: Shelf, n_max: int) -> None:
        self._shelf = shelf
        self._n_max = n_max
        self.cached: list[Cached] = []
        """Least recently running first."""

    def open(self, main: list[int], n_main: int, wanted: Sequence[int]) -> list[int]:
        """Make the conversation that shares most with a prompt the main sequence.

        Args:
            main: tokens of the main sequence, with nothing behind them.
            n_main: how many of them the prompt can go on from.
            wanted: the prompt.

        Returns:
            The tokens of the main sequence now: `main` itself where nothing cached shares
            more, and it is then still whole; empty where a copy could not be fetched.
        """
        best, n_best = None, n_main + MIN_TOKENS - 1
        for cached in self.cached:
            n = self._n_usable(cached, wanted, len(wanted) - 1)
            if n > n_best:
                best, n_best = cached, n
        self._keep(main, n_main if best is None else 0, best)
        tokens = main if best is None else self._fetch(best, n_best)
        while len(self.cached) > self._n_max:
            self._drop(self.cached[0])
        return tokens

    def _fetch(self, cached: Cached, n: int) -> list[int]:
        fetched = self._shelf.fetch(cached.handle, n)
        if not fetched or len(cached.tokens) - n < MIN_TOKENS:
            self._drop(cached)
        return cached.tokens[:n] if fetched else []

    def _keep(self, main: list[int], n_kept: int, best: Cached | None) -> None:
        # What neither the prompt nor another cached conversation has of it would be lost.
        if len(main) - n_kept < MIN_TOKENS:
            return
        for cached in self.cached:
            if len(main) - self._n_usable(cached, main, len(main)) < MIN_TOKENS:
                self._running_last(cached)
                return
        for cached in [c for c in self.cached if c is not best]:  # it has grown out of these
            if len(cached.tokens) - n_common(cached.tokens, main) < MIN_TOKENS:
                self._drop(cached)
        self.cached.append(Cached(list(main), self._put(len(main))))

    def _put(self, length: int) -> Any:
        return self._shelf.put(length, [c.handle for c in self.cached])

    def _running_last(self, cached: Cached) -> None:
        self.cached = [*(c for c in self.cached if c is not cached), cached]

    def _n_usable(self, cached: Cached, wanted: Sequence[int], limit: int) -> int:
        limit = min(limit, len(cached.tokens))
        return self._shelf.n_within(cached.handle, n_common(cached.tokens, wanted, limit))

    def _drop(self, cached: Cached) -> None:
        self.cached.remove(cached)
        self._shelf.drop(cached.handle)

    def make_room(self) -> bool:
        """Free cells that only cached conversations hold: those of the least recent one.

        Returns:
            False where there was none.
        """
        if self._shelf.sweep([c.handle for c in self.cached]):
            return True
        if not self.cached:
            return False
        self._drop(self.cached[0])
        return True

    def clear(self) -> None:
        """Drop all."""
        while self.cached:
            self._drop(self.cached[0])
        self._shelf.sweep([])
