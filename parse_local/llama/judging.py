"""Verdicts at many cuts: by forks in one batch, and by plain passes to compare with.

Both are methods of `Context`, kept apart because each is a piece of its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from parse_local.errors import ContextLengthError
from parse_local.llama._bindings import lib
from parse_local.llama.batch import N_BATCH

if TYPE_CHECKING:
    from parse_local.llama.context import Context


def judge(
    context: Context, cuts: Sequence[int], suffix: Sequence[int], labels: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Ask the same question behind several prefixes of the main sequence in one batch.

    Args:
        cuts: prefix lengths in tokens, each at most the sequence's length.
        suffix: tokens of the question, decoded once for each cut. Where the memory
            cannot be cut, the tokens between the last checkpoint and the cut go before.
        labels: token ids whose log-probability behind the suffix is wanted.

    Returns:
        Log-probabilities (nats), shape (n_cuts, n_labels).

    Raises:
        ContextLengthError: not even one suffix fits behind the sequence.
        Cancelled, DecodeError: as `decode`; no fork is left behind.

    Source: PARSE, section 3 (parallel prefix verification).
    """
    return judge_each(context, [(cut, suffix) for cut in cuts], labels)


def judge_each(
    context: Context, asked: Sequence[tuple[int, Sequence[int]]], labels: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Ask a question of its own behind each of several prefixes in one batch.

    Args:
        asked: (prefix length, tokens of the question); otherwise as `judge`.
        labels: token ids; all of them are looked up behind every question.

    Returns:
        Log-probabilities (nats), shape (n_asked, n_labels).

    Raises:
        ContextLengthError, Cancelled, DecodeError: as `judge`.
    """
    out = np.empty((len(asked), len(labels)), np.float32)
    n_free = min(N_BATCH, context.n_cells - len(context.tokens))
    start = n_taken = 0
    for i, (cut, suffix) in enumerate(asked):
        n = cut - context.fork_start(cut) + len(suffix)
        if n > n_free or not context.max_forks:
            raise ContextLengthError(
                f"The verdict question of {n:,} tokens does not fit into the KV cache "
                f"of {context.model.path.name} ({n_free:,} tokens free); raise --ctx, or use "
                "--accept exact."
            )
        if i - start == context.max_forks or n_taken + n > n_free:
            out[start:i] = _judge_batch(context, asked[start:i], labels)
            start, n_taken = i, 0
        n_taken += n
    if asked:
        out[start:] = _judge_batch(context, asked[start:], labels)
    return out


def _judge_batch(
    context: Context, asked: Sequence[tuple[int, Sequence[int]]], labels: Sequence[int]
) -> npt.NDArray[np.float32]:
    forks = range(1, len(asked) + 1)
    try:
        started = time.perf_counter()
        context._batch.clear()
        for seq, (cut, suffix) in zip(forks, asked, strict=True):
            n = context.fork(seq, cut)
            context._batch.add(seq, n, [*context.tokens[n:cut], *suffix], n_rows=1)
        context.fork_s += time.perf_counter() - started
        context._run()
        n_tokens = int(context._batch.native.n_tokens)
        context.n_suffix_decoded += n_tokens
        context.passes[n_tokens, len(asked)] += 1
        return context.label_logprobs(context._rows(len(asked)), labels)
    finally:
        started = time.perf_counter()
        for seq in forks:
            lib.llama_memory_seq_rm(context._memory, seq, -1, -1)
        context.fork_s += time.perf_counter() - started


def judge_sequentially(
    context: Context,
    tokens: Sequence[int],
    cuts: Sequence[int],
    suffix: Sequence[int],
    labels: Sequence[int],
    *,
    n_batch: int = N_BATCH,
) -> npt.NDArray[np.float32]:
    """What `judge` computes, each cut by a plain pass over an emptied sequence.

    Args:
        tokens: the sequence that is cut.
        cuts, suffix, labels: as `judge`.
        n_batch: tokens decoded at once; other values give other rounding.

    Returns:
        Log-probabilities (nats), shape (n_cuts, n_labels). The main sequence is empty afterwards.
    """
    out = np.empty((len(cuts), len(labels)), np.float32)
    for i, cut in enumerate(cuts):
        context.truncate(0)
        asked = [*tokens[:cut], *suffix]
        context._require_room(len(asked), context.n_cells)  # a fork's cells are there for it too
        for start in range(0, len(asked), n_batch):
            for _, rows in context._decode(asked[start : start + n_batch], 1):  # noqa: B007
                pass
        out[i] = context.label_logprobs(rows, labels)[0]
    context.truncate(0)
    return out
