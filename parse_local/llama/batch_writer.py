"""Greedy answers to many prompts at once, by one model in one KV cache.

Continuous batching: each llama_decode takes the next token of every answer that is
being written and, in the room that is left, the next piece of prompts that are to come.
A finished answer's place goes to the next prompt at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from parse_local.errors import ContextLengthError
from parse_local.llama import scores
from parse_local.llama._bindings import lib
from parse_local.llama.context import Context
from parse_local.llama.context_params import N_UBATCH
from parse_local.llama.rows import Rows

Ending = Literal["stop", "length"]


@dataclass(frozen=True)
class Job:
    """One answer to be written.

    Args:
        prompt: tokens, at least one.
        max_tokens: most tokens of the answer, at least 1.
    """

    prompt: Sequence[int]
    max_tokens: int


@dataclass(frozen=True)
class Written:
    """One finished answer.

    Args:
        job: its number, in the order in which the jobs came.
        tokens: without the token that ended it.
        finish_reason: "stop", or "length" at `max_tokens`.
        logprobs: log-probability (nats) of each token under the model itself; empty unless
            asked for.
    """

    job: int
    tokens: list[int]
    finish_reason: Ending
    logprobs: list[float]


@dataclass
class _Slot:
    # An answer that is being written, in a sequence of the cache that is its own.
    job: int
    seq: int
    prompt: list[int]
    max_tokens: int
    pending: list[int]  # that have to be decoded before anything else can be chosen
    n_cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class BatchWriter:
    """Writes many greedy answers at once.

    It takes the context's last `n_sequences` forks. The main sequence and the forks before them
    stay free for other work whenever `write` takes a job or has yielded an answer.

    Args:
        context: its model writes; `max_forks` of at least `n_sequences`.
        n_sequences: most answers at once.
        n_cells: most cells of the cache for all of them; None for the context's length.
    """

    def __init__(self, context: Context, *, n_sequences: int, n_cells: int | None = None) -> None:
        assert 1 <= n_sequences <= context.max_forks
        self._context = context
        self._n_cells = context.n_ctx if n_cells is None else n_cells
        end = 1 + context.max_forks
        self._free = deque(range(end - n_sequences, end))
        self._active: list[_Slot] = []

    def write(self, jobs: Iterable[Job], *, logprobs: bool = False) -> Iterator[Written]:
        """Write an answer to every prompt.

        What a prompt has in common with the main sequence, as that is when the job is taken,
        is shared with it and not decoded again.

        Args:
            jobs: taken one by one, whenever there is room for another.
            logprobs: also score the tokens.

        Yields:
            Answers as they are finished, in no fixed order.

        Raises:
            ContextLengthError: a prompt that does not fit, even alone; `max_tokens` is lowered
                where only that does not fit.
            Cancelled, DecodeError: as `Context.decode`.
        """
        assert not self._active, "write is running already"
        numbered = enumerate(jobs)
        waiting: tuple[int, Job] | None = None
        exhausted = False
        try:
            while True:
                while self._free and not exhausted:
                    waiting = waiting or next(numbered, None)
                    exhausted = waiting is None
                    if waiting is None or not self._start(*waiting):
                        break
                    waiting = None
                if not self._active:
                    return
                for slot in self._step(logprobs):
                    self._drop(slot)
                    reason: Ending = "length" if slot.pending else "stop"
                    yield Written(slot.job, slot.tokens, reason, slot.logprobs)
        finally:
            for slot in list(self._active):
                self._drop(slot)

    def _start(self, number: int, job: Job) -> bool:
        # Whether there was room for it.
        prompt = list(job.prompt)
        assert prompt
        if len(prompt) >= self._n_cells:
            raise ContextLengthError(
                f"A prompt of {len(prompt):,} tokens does not fit into the context of "
                f"{self._n_cells:,}; shorten it, or raise --ctx."
            )
        max_tokens = min(job.max_tokens, self._n_cells - len(prompt))
        reserved = sum(len(slot.prompt) + slot.max_tokens for slot in self._active)
        if reserved + len(prompt) + max_tokens > self._n_cells:
            return False
        seq = self._free.popleft()
        n_shared = self._context.share(seq, prompt)
        slot = _Slot(number, seq, prompt, max_tokens, prompt[n_shared:], n_shared)
        self._active.append(slot)
        return True

    def _drop(self, slot: _Slot) -> None:
        if self._context.handle:  # an abandoned `write` may end after its context
            lib.llama_memory_seq_rm(self._context._memory, slot.seq, -1, -1)
        self._active.remove(slot)
        self._free.append(slot.seq)

    def _step(self, logprobs: bool) -> list[_Slot]:
        """Decode one batch; returns the answers that it finished."""
        context, batch = self._context, self._context._batch
        batch.clear()
        read: list[_Slot] = []  # whose next token the batch decides, in the order of its rows
        room = max(N_UBATCH, len(self._active))
        # Running answers first: one token each, which must not wait for prompts.
        for slot in sorted(self._active, key=lambda s: len(s.pending) > 1):
            chunk = slot.pending[:room]
            if not chunk:
                continue
            slot.pending = slot.pending[len(chunk) :]
            batch.add(slot.seq, slot.n_cached, chunk, n_rows=0 if slot.pending else 1)
            slot.n_cached += len(chunk)
            room -= len(chunk)
            if not slot.pending:
                read.append(slot)
        context._run()
        n_tokens = int(batch.native.n_tokens)
        context.n_decoded += n_tokens
        context.passes[n_tokens, len(read)] += 1
        return self._choose(read, context._rows(len(read)), logprobs) if read else []

    def _choose(self, slots: list[_Slot], rows: Rows, logprobs: bool) -> list[_Slot]:
        context = self._context
        chosen = scores.argmax(rows, n_threads=context.n_threads)
        if (chosen < 0).any():
            raise scores.no_distribution()
        found = np.zeros(0, np.float32)
        if logprobs:
            found = scores.token_scores(rows, chosen.tolist(), n_threads=context.n_threads).logprob
        finished = []
        for i, (slot, token) in enumerate(zip(slots, chosen.tolist(), strict=True)):
            if context.model.is_eog(token):
                finished.append(slot)
                continue
            slot.tokens.append(token)
            slot.logprobs += found[i : i + 1].tolist()
            slot.pending = [token]
            if len(slot.tokens) == slot.max_tokens:
                finished.append(slot)
        return finished
