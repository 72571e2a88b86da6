"""Whole copies of a sequence, for memories that no prefix can be cut from.

A recurrent state is overwritten by every token. What can be had of it is a copy
while it is current: `llama_memory_seq_cp` over everything, which is copy-on-write
(the copy shares the state until either side decodes on). So where a sequence may later
be forked or rolled back, a copy is taken as it is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parse_local.boundaries import spread
from parse_local.llama._bindings import lib

STRIDE = 16
"""Tokens between two checkpoints at least. A decode that is split more often costs more than
decoding the few tokens between the checkpoint and the cut again."""
MIN_CHECKPOINTS = 2
_RESERVED = 3  # the ends of two prompts, and the start of the draft


@dataclass(frozen=True)
class Checkpoint:
    """A copy of the main sequence.

    Args:
        n: its length in tokens.
        seq: the sequence id that holds it.
        keep: the end of a prompt, where the next turn of a conversation may go on from.
    """

    n: int
    seq: int
    keep: bool


class Checkpoints:
    """The copies of sequence 0 of one context, each shorter than the next.

    Args:
        memory: llama_memory_t.
        first_seq: first sequence id that is theirs.
        n: how many there may be, at least `MIN_CHECKPOINTS`.
    """

    def __init__(self, memory: Any, first_seq: int, n: int) -> None:
        self._memory = memory
        self._seqs = range(first_seq, first_seq + n)
        self._taken: list[Checkpoint] = []
        self._n_keep = 1 if n <= _RESERVED else 2

    @property
    def lengths(self) -> list[int]:
        """Lengths in tokens, ascending."""
        return [c.n for c in self._taken]

    def last_prompt(self) -> list[tuple[int, int]]:
        """Length and sequence id of the copy at the end of the last prompt, as a list of one."""
        return [(c.n, c.seq) for c in self._taken if c.keep][-1:]

    def nearest(self, n: int) -> int:
        """Length of the longest checkpoint of at most `n` tokens, 0 for none."""
        return max((c.n for c in self._taken if c.n <= n), default=0)

    def forkable(self, cuts: Sequence[int]) -> list[int]:
        """Those of some cuts for which the checkpoints that may be taken suffice, evenly spread."""
        room = max(1, len(self._seqs) - _RESERVED)
        n_needed = len(_strided(cuts, 0))
        return list(cuts) if n_needed <= room else spread(cuts, room)

    def stops(self, n_past: int, cuts: Sequence[int]) -> list[int]:
        """Where a decode that begins at `n_past` and may be cut at `cuts` takes a checkpoint."""
        last = self.nearest(n_past)
        ahead = sorted(c for c in cuts if c >= n_past)
        if ahead[:1] == [n_past] and n_past > last:  # costs nothing
            return [n_past, *_strided(ahead, n_past)]
        return _strided(ahead, last)

    def take(self, n: int, *, keep: bool = False) -> None:
        """Copy the main sequence, which has `n` tokens."""
        if n == 0 or self.nearest(n) == n:
            return
        seq = self._free_seq(keep)
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        lib.llama_memory_seq_cp(self._memory, 0, seq, -1, -1)
        self._taken.append(Checkpoint(n, seq, keep))

    def _free_seq(self, keep: bool) -> int:
        prompts = [c for c in self._taken if c.keep]
        if len(self._taken) == len(self._seqs) or (keep and len(prompts) == self._n_keep):
            others = [c for c in self._taken if not c.keep]
            full = keep and len(prompts) == self._n_keep
            self._taken.remove(prompts[0] if full or not others else others[0])
        used = {c.seq for c in self._taken}
        return next(s for s in self._seqs if s not in used)

    def restore(self, n: int) -> int:
        """Make the main sequence the longest checkpoint of at most `n` tokens.

        Returns:
            Its length; 0 if there is none, and the main sequence is empty.
        """
        found = self.nearest(n)
        lib.llama_memory_seq_rm(self._memory, 0, -1, -1)
        self.fork(0, found)
        self.forget_beyond(found)
        return found

    def fork(self, seq: int, n: int | None) -> None:
        """Make an empty sequence a copy of the checkpoint of `n` tokens.

        Args:
            seq: the sequence.
            n: length of a checkpoint; 0 leaves it empty, None copies the main sequence.
        """
        source = 0 if n is None else next((c.seq for c in self._taken if c.n == n), None)
        if source is not None:
            lib.llama_memory_seq_cp(self._memory, source, seq, -1, -1)

    def forget_beyond(self, n: int) -> None:
        """Drop the checkpoints of more than `n` tokens."""
        for checkpoint in [c for c in self._taken if c.n > n]:
            self._taken.remove(checkpoint)
            lib.llama_memory_seq_rm(self._memory, checkpoint.seq, -1, -1)


def _strided(cuts: Sequence[int], last: int) -> list[int]:
    # The cuts that are far enough from the one before.
    found = []
    for cut in cuts:
        if cut - last >= STRIDE:
            found.append(cut)
            last = cut
    return found
