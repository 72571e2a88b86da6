"""Earlier conversations that stay cached beside the running one.

The main sequence is the running conversation. When a prompt goes on from another one, or
leaves much of the running one behind, that is kept under a handle of its own, and the cached
conversation that shares most with the prompt becomes the main sequence. The one that has not
been running for longest goes first, when there are too many and when cells run short.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parse_local.llama._bindings import lib
from parse_local.llama.checkpoints import Checkpoints

MIN_TOKENS = 32
"""Fewer tokens than this are decoded again rather than kept or fetched."""
TURN_TOKENS = 4
"""Tokens at a prompt's end, a thought that it opens or closes, that the next turn leaves out.
With many more, one short question after a system prompt would pass for the turn after another."""


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

    takes_cells: bool
    """Whether dropping one frees cells of the cache."""

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

    takes_cells = True

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
    """Conversations as copies outside the cache, in the machine's own memory.

    For memories that conversations cannot share: a recurrent state belongs to one sequence,
    and a cache with a sliding window takes cells back that lie behind the window of the only
    sequence that owns them. And for caches that would pay for sharing: without flash attention
    every decode computes with all cells, and masks those of other sequences afterwards.

    Args:
        handle: llama_context.
        checkpoints: of the main sequence, None where it has none.
        can_cut: whether a copy can be cut; else one is taken at the end of the last prompt too.
        spare_seq: a sequence id that is free, for that.
        n_prompt: says how many tokens of the main sequence were a prompt, 0 for unknown.

    Source: llama_state_seq_get_data, llama_state_seq_set_data.
    """

    takes_cells = False

    def __init__(
        self,
        handle: Any,
        checkpoints: Checkpoints | None,
        *,
        can_cut: bool,
        spare_seq: int,
        n_prompt: Callable[[], int],
    ) -> None:
        self._can_cut = can_cut
        self._handle = handle
        self._memory = lib.llama_get_memory(handle)
        self._checkpoints = checkpoints
        self._spare_seq = spare_seq
        self._n_prompt = n_prompt

    def put(self, length: int, used: Sequence[list[_Copy]]) -> list[_Copy]:
        """As `Shelf`: the sequence as it is, and as it was at the end of its last prompt."""
        whole = self._copy(length, 0)
        if self._can_cut:
            return [whole]
        if self._checkpoints is not None:
            places = self._checkpoints.last_prompt()
            return [*(self._copy(n, seq) for n, seq in places if n < length), whole]
        n = self._n_prompt()
        if not 0 < n < length:
            return [whole]
        lib.llama_memory_seq_rm(self._memory, self._spare_seq, -1, -1)
        lib.llama_memory_seq_cp(self._memory, 0, self._spare_seq, 0, n)
        at_prompt = self._copy(n, self._spare_seq)
        lib.llama_memory_seq_rm(self._memory, self._spare_seq, -1, -1)
        return [at_prompt, whole]

    def _copy(self, n: int, seq: int) -> _Copy:
        size = int(lib.llama_state_seq_get_size(self._handle, seq))
        try:
            data = (ctypes.c_uint8 * size)()
        except MemoryError:  # the answer matters more than the next one's prompt
            return _Copy(0, b"")
        written = int(lib.llama_state_seq_get_data(self._handle, data, size, seq))
        return _Copy(n if written == size else 0, data)

    def n_within(self, handle: list[_Copy], n: int) -> int:
        """As `Shelf`: the length of a copy, where it cannot be cut."""
        if self._can_cut:
            return min(n, handle[-1].n)
        return max((c.n for c in handle if c.n <= n), default=0)

    def fetch(self, handle: list[_Copy], n: int) -> bool:
        """As `Shelf`."""
        copy = next(c for c in handle if c.n >= n)
        if self._checkpoints is not None:
            self._checkpoints.forget_beyond(0)  # their cells are needed
        if not lib.llama_memory_seq_rm(self._memory, 0, -1, -1):
            return False
        if not lib.llama_state_seq_set_data(self._handle, copy.data, len(copy.data), 0):
            return False
        return copy.n == n or bool(lib.llama_memory_seq_rm(self._memory, 0, n, -1))

    def drop(self, handle: list[_Copy]) -> None:
        """As `Shelf`."""
        handle.clear()

    def sweep(self, used: Sequence[list[_Copy]]) -> bool:
        """As `Shelf`: only an interrupt leaves cells behind."""
        if self._can_cut or self._checkpoints is not None:
            return False
        if lib.llama_memory_seq_pos_max(self._memory, self._spare_seq) < 0:
            return False
        return bool(lib.llama_memory_seq_rm(self._memory, self._spare_seq, -1, -1))


@dataclass(eq=False)
class Cached:
    """A conversation that is not running.

    Args:
        tokens: of it.
        n_prompt: how many of them were read as its last prompt, 0 for unknown.
        handle: of the shelf.
    """

    tokens: list[int]
    n_prompt: int
    handle: Any


def _goes_on(one: Cached, n_shared: int, wanted: Sequence[int]) -> bool:
    # Whether a prompt is the next turn of this very conversation, which it shares so much with.
    # What it does not share is then the last answer as it was written (with its reasoning,
    # perhaps), which no turn will go on from; for the same prompt again it is another answer.
    return bool(one.n_prompt) and one.n_prompt - TURN_TOKENS <= n_shared < len(wanted) - 1


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

    def open(
        self, main: list[int], n_main: int, wanted: Sequence[int], *, n_prompt: int = 0
    ) -> list[int]:
        """Make the conversation that shares most with a prompt the main sequence.

        Args:
            main: tokens of the main sequence, with nothing behind them.
            n_main: how many of them the prompt can go on from.
            wanted: the prompt.
            n_prompt: how many of `main` were read as a prompt, 0 for unknown.

        Returns:
            The tokens of the main sequence now: `main` itself where nothing cached shares
            more, and it is then still whole; empty where a copy could not be fetched.
        """
        best, n_best = None, n_main + MIN_TOKENS - 1
        for cached in self.cached:
            n = self._n_usable(cached, wanted, len(wanted) - 1)
            if n > n_best:
                best, n_best = cached, n
        running = Cached(main, n_prompt, None)
        if best is None:
            if len(main) - n_main >= MIN_TOKENS and not _goes_on(running, n_main, wanted):
                self._keep(running, None)
        elif len(main) >= MIN_TOKENS:
            self._keep(running, best)
        tokens = main if best is None else self._fetch(best, n_best, wanted)
        while len(self.cached) > self._n_max:
            self._drop(self.cached[0])
        return tokens

    def _fetch(self, cached: Cached, n: int, wanted: Sequence[int]) -> list[int]:
        fetched = self._shelf.fetch(cached.handle, n)
        n_left = len(cached.tokens) - n
        if not fetched or n_left < MIN_TOKENS or _goes_on(cached, n, wanted):
            self._drop(cached)
        return cached.tokens[:n] if fetched else []

    def _keep(self, main: Cached, best: Cached | None) -> None:
        for cached in self.cached:  # one of them may have it already
            n = self._n_usable(cached, main.tokens, len(main.tokens))
            if len(main.tokens) - n < MIN_TOKENS:
                self.cached = [*(c for c in self.cached if c is not cached), cached]
                return
        for cached in [c for c in self.cached if c is not best]:  # it has grown out of these
            if len(cached.tokens) - n_common(cached.tokens, main.tokens) < MIN_TOKENS:
                self._drop(cached)
        handle = self._put(len(main.tokens))
        self.cached.append(Cached(list(main.tokens), main.n_prompt, handle))

    def _put(self, length: int) -> Any:
        return self._shelf.put(length, [c.handle for c in self.cached])

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
        if not self.cached or not self._shelf.takes_cells:
            return False
        self._drop(self.cached[0])
        return True

    def clear(self) -> None:
        """Drop all."""
        while self.cached:
            self._drop(self.cached[0])
        self._shelf.sweep([])
