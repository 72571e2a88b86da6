"""Sequences that begin as the main one does: forks for a judge batch, and those that outlive one.

All are methods of `Context`, kept apart because they are one concern of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parse_local.errors import DecodeError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.conversations import n_common

if TYPE_CHECKING:
    from parse_local.llama.context import Context


def forkable(context: Context, cuts: Sequence[int]) -> list[int]:
    """Those of some cuts that `judge` can reach at little cost: all where a memory can be cut.

    Args:
        cuts: prefix lengths in tokens, ascending. They are to be handed to the
            `decode` that goes past them.
    """
    if context._checkpoints is None:
        return list(cuts)
    return context._checkpoints.forkable(cuts)


def fork_start(context: Context, cut: int) -> int:
    """Length at which a fork for a cut can begin; the rest is decoded again in the fork."""
    if context._checkpoints is None or cut == len(context.tokens):
        return cut
    return context._checkpoints.nearest(cut)


def fork(context: Context, seq: int, cut: int) -> int:
    """Make an empty sequence a fork of the main one; returns its length, `fork_start(cut)`.

    Raises:
        DecodeError: this memory has no fork there.
    """
    n = fork_start(context, cut)
    if context._checkpoints is not None:
        context._checkpoints.fork(seq, None if cut == len(context.tokens) else n)
        return n
    seq_fork = library.seq_fork()
    if seq_fork is None:
        lib.llama_memory_seq_cp(context._memory, 0, seq, 0, n)
        return n
    status = seq_fork(context._memory, 0, seq, n)
    if status != 0:
        raise DecodeError(
            f"{context.model.path.name} cannot fork its KV cache at {n} (code {status}); "
            "use --accept exact."
        )
    return n


def share(context: Context, seq: int, tokens: Sequence[int]) -> int:
    """Give another, empty sequence what the main one has of some tokens.

    Returns:
        How many tokens it now has: never all, and none where the memory cannot be cut.
    """
    if context._checkpoints is not None:
        return 0
    n = n_common(context.tokens, tokens, min(len(context.tokens), len(tokens) - 1))
    # Not a fork of `library.seq_fork`: that one sees its parent's cells only as long
    # as they are there, and this one outlives them.
    lib.llama_memory_seq_cp(context._memory, 0, seq, 0, n)
    return n
