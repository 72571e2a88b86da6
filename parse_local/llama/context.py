"""One KV cache: decode, roll back, fork, judge.

Sequence 0 is the main sequence; sequences 1… are forks of it that live for one
judge batch. The cache is unified, so that a fork shares the cells of its prefix
and llama.cpp builds PARSE's attention mask from the sequence ids (PARSE, section 3).
Memories that cannot be cut (recurrent, hybrid) fork and roll back from copies that
are taken while decoding (`checkpoints`); nothing above this module knows the difference.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parse_local.errors import Cancelled, ContextLengthError
from parse_local.llama import decode_call, forks, judging, library, scores
from parse_local.llama._bindings import lib
from parse_local.llama.batch import N_BATCH, Batch
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.checkpoints import Checkpoints
from parse_local.llama.context_params import Layout, create, default_threads, lay_out, max_rows
from parse_local.llama.conversations import Conversations, CopyShelf, SequenceShelf, Shelf, n_common
from parse_local.llama.model import Model
from parse_local.llama.rows import Rows


class Follower(Protocol):
    """Whoever has to see what the target decodes on its main sequence (never judge batches)."""

    def process(self, tokens: Sequence[int], position: int) -> None:
        """These tokens have just been decoded, the first at `position`."""

    def truncate(self, n: int) -> None:
        """The sequence has been cut to its first `n` tokens."""


class Context:
    """A KV cache over one model.

    Args:
        model: the weights.
        n_ctx: tokens of the main sequence.
        n_fork_cells: further cells for the suffixes of one judge batch.
        max_forks: most forks alive at once; fewer where the rows of so many would
            not fit into OUTPUT_BYTES.
        n_checkpoints: most copies of the main sequence, at least 2; taken only where the
            memory cannot be cut.
        n_cached: most conversations that stay cached beside the main sequence (`resume`).
        n_cached_cells: further cells for them; what the main sequence leaves free is theirs
            too, and is taken back when it needs it.
        copies: keep them as copies outside the cache; some memories do so in any case.
        n_threads: CPU threads.
        kv_type: "f16", "q8_0", "q4_0" or "f32".
        flash_attn: "auto", "on" or "off". On CPUs its two code paths (fewer than 64
            rows, and more) round differently; "off" is the reproducible choice.
        cancel: polled before and during every decode.

    Raises:
        OutOfMemoryError: the cache or the compute buffers could not be allocated.
        UsageError: this model cannot have a cache of that type.

    Source: llama_init_from_model, with kv_unified and a full-size SWA cache
    (a partial llama_memory_seq_cp needs both).
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_fork_cells: int = 0,
        max_forks: int = 1,
        n_checkpoints: int = 4,
        n_cached: int = 0,
        n_cached_cells: int = 0,
        copies: bool = False,
        n_threads: int | None = None,
        kv_type: str = "f16",
        flash_attn: str = "auto",
        cancel: CancelFlag | None = None,
    ) -> None:
        self.handle: Any = None
        self.model = model
        self.n_ctx = n_ctx
        self._max_rows = max_rows(model.n_vocab)
        self.n_threads = n_threads or default_threads()
        self.cancel = CancelFlag() if cancel is None else cancel  # an unset flag is falsy
        self.tokens: list[int] = []
        """Tokens of the main sequence whose cells are in the cache."""
        self.follower: Follower | None = None
        self.start_count()
        self._argmax = ctypes.c_int32(-1)

        layout = lay_out(
            model,
            n_ctx=n_ctx,
            n_fork_cells=n_fork_cells,
            max_forks=max_forks,
            n_checkpoints=n_checkpoints,
            n_cached=n_cached,
            n_cached_cells=n_cached_cells,
            copies=copies,
        )
        self.max_forks = layout.max_forks
        self.handle = create(
            model,
            layout,
            n_ctx=n_ctx,
            n_threads=self.n_threads,
            kv_type=kv_type,
            flash_attn=flash_attn,
        )
        # Rounded up by llama.cpp.
        self.n_cells = int(lib.llama_n_ctx(self.handle)) - layout.n_cached_cells
        self._memory = lib.llama_get_memory(self.handle)
        self._checkpoints: Checkpoints | None = None
        if layout.n_checkpoints:
            first = layout.first_checkpoint
            self._checkpoints = Checkpoints(self._memory, first, layout.n_checkpoints)
        self._conversations: Conversations | None = None
        if n_cached:
            self._conversations = Conversations(self._shelf(layout), n_cached)
        self._n_prompt = 0  # tokens that were read as a prompt
        self._n_whole = 0  # tokens that came as a copy, which cannot be cut
        self._batch = Batch()
        self.abort_callback = decode_call.poll(self.handle, self.cancel)

    def _shelf(self, layout: Layout) -> Shelf:
        if layout.shares_cache:
            return SequenceShelf(self._memory, layout.first_kept, layout.n_kept)
        return CopyShelf(
            self.handle,
            self._checkpoints,
            can_cut=self.model.memory_kind.path == "unified",
            spare_seq=layout.first_kept,
            n_prompt=lambda: self._cuttable(self._n_prompt),
        )

    def set_threads(self, n: int) -> None:
        """Compute on `n` CPU threads from now on."""
        lib.llama_set_n_threads(self.handle, n, n)
        self.n_threads = n

    def start_count(self) -> None:
        """Reset the counters below; an answer's figures are what they have reached at its end."""
        self.n_decoded = 0
        self.n_suffix_decoded = 0
        self.n_reused: int | None = None
        self.fork_s = 0.0
        self.passes: Counter[tuple[int, int]] = Counter()
        """Calls of llama_decode by shape: (tokens, output rows)."""

    # the main sequence

    @property
    def n_cached(self) -> int:
        """Conversations that are cached beside the main sequence."""
        return len(self._conversations.cached) if self._conversations else 0

    def resume(self, tokens: Sequence[int]) -> None:
        """Make the cached conversation that shares most with a prompt the main sequence.

        What of the main sequence would be lost by that, or by cutting it back to what the prompt
        shares with it, stays cached in turn. Nothing is decoded. Without `n_cached` nothing is
        done.

        Args:
            tokens: the prompt.
        """
        if self._conversations is None:
            return
        self.truncate(len(self.tokens))  # an interrupt may have left cells behind it
        main, self.tokens = self.tokens, []  # what is claimed if this is interrupted
        n_main = self._cuttable(n_common(main, tokens, min(len(main), len(tokens) - 1)))
        if self._checkpoints is not None and n_main < len(main):
            n_main = self._checkpoints.nearest(n_main)
        found = self._conversations.open(main, n_main, tokens, n_prompt=self._n_prompt)
        if found is main:
            self.tokens = main
            return
        if not found:
            self.clear()
            return
        if self._checkpoints is not None:
            self._checkpoints.take(len(found), keep=True)
        elif self.model.memory_kind.path == "sliding window":
            self._n_whole = len(found)
        self._n_prompt = len(found)
        if self.follower is not None:  # it has seen no more than what the two share
            self.follower.truncate(n_common(main, found))
        self.tokens = found

    def sync(self, tokens: Sequence[int]) -> int:
        """Roll back to what the cache shares with `tokens`.

        Returns:
            How many tokens are kept: the common prefix (or what `truncate` leaves of
            it), and never all of `tokens`, because the last one has to be decoded for
            its output row.
        """
        self.truncate(self.n_shared(tokens))
        return len(self.tokens)

    def n_shared(self, tokens: Sequence[int]) -> int:
        """Tokens of the cache that are the first ones of `tokens`, never all of these."""
        n = n_common(self.tokens, tokens, min(len(self.tokens), len(tokens) - 1))
        return self._cuttable(n)

    def _cuttable(self, n: int) -> int:
        return n if n >= self._n_whole else 0

    def prefill(self, tokens: Sequence[int]) -> None:
        """Make the main sequence `tokens` without its last, decoding only what is missing.

        The last token is left for the decode that needs its output row. The
        first call after `start_count` sets `n_reused`. A memory that cannot be cut
        can come back to where this ends.
        """
        n_kept = self.sync(tokens)
        is_prompt = self.n_reused is None
        if self.n_reused is None:
            self.n_reused = n_kept
        for _ in self.decode(tokens[n_kept:-1], n_rows=0):
            pass
        if is_prompt:
            self._n_prompt = len(self.tokens)
        if self._checkpoints is not None:
            self._checkpoints.take(len(self.tokens), keep=is_prompt)

    def truncate(self, n: int) -> int:
        """Drop the main sequence's tokens from position `n` on.

        A memory that cannot be cut goes back to its last checkpoint at or before
        `n`. The tokens between the two are for the caller to decode again, best
        together with what follows; `rewind` does it at once.

        Returns:
            How many tokens are left.
        """
        n = self._cuttable(n)
        # Asked of llama.cpp even when nothing should be there: an exception
        # between a decode and our own bookkeeping may have left cells behind.
        if lib.llama_memory_seq_rm(self._memory, 0, n, -1):
            del self.tokens[n:]
            if self._checkpoints is not None:
                self._checkpoints.forget_beyond(n)
        elif self._checkpoints is None:
            self.clear()
        else:
            tokens, self.tokens = self.tokens, []  # what is claimed if this is interrupted
            self.tokens = tokens[: self._checkpoints.restore(n)]
        if not self.tokens:
            self._n_whole = 0
        if self.follower is not None:
            self.follower.truncate(len(self.tokens))
        return len(self.tokens)

    def rewind(self, n: int) -> None:
        """Make the main sequence its own first `n` tokens, whatever the memory.

        Raises:
            Cancelled, DecodeError: as `decode`, where tokens had to be decoded again.
        """
        wanted = self.tokens[:n]
        for _ in self.decode(wanted[self.truncate(n) :], n_rows=0):
            pass

    def clear(self) -> None:
        """Drop everything, cached conversations too."""
        lib.llama_memory_clear(self._memory, False)
        if self._conversations is not None:
            self._conversations.clear()
        if self._checkpoints is not None:
            self._checkpoints.forget_beyond(0)
        self.tokens.clear()
        self._n_whole = 0
        if self.follower is not None:
            self.follower.truncate(0)

    def decode(
        self, tokens: Sequence[int], *, n_rows: int = 1, cuts: Sequence[int] = ()
    ) -> Iterator[tuple[int, Rows]]:
        """Append tokens to the main sequence.

        Args:
            tokens: what to append.
            n_rows: output rows wanted, counted from the end.
            cuts: lengths of the main sequence that it may later be forked at or rolled
                back to; a memory that cannot be cut takes its checkpoints there.

        Yields:
            (index of the first row's token in `tokens`, rows) chunk by chunk; the
            rows are valid only until the next decode.

        Raises:
            ContextLengthError: the tokens do not fit.
            Cancelled: stopped from outside; the sequence ends at a chunk's border.
            DecodeError: llama.cpp failed.
        """
        self._require_room(len(tokens), self.n_ctx)
        yield from self._decode(tokens, n_rows, cuts)

    def _require_room(self, n: int, limit: int) -> None:
        if len(self.tokens) + n > limit:
            raise ContextLengthError(
                f"{len(self.tokens) + n:,} tokens do not fit into the context of "
                f"{limit:,}; raise --ctx or shorten the conversation."
            )

    def _decode(
        self, tokens: Sequence[int], n_rows: int, cuts: Sequence[int] = ()
    ) -> Iterator[tuple[int, Rows]]:
        first_row = len(tokens) - n_rows
        stops = self._checkpoints.stops(len(self.tokens), cuts) if self._checkpoints else []
        start = 0
        while start < len(tokens):
            stops = self._take_checkpoint(stops)
            row_start = max(start, first_row)
            end = min(len(tokens), start + N_BATCH, row_start + self._max_rows)
            if stops:
                end = min(end, start + stops[0] - len(self.tokens))
            chunk = tokens[start:end]
            self._batch.clear()
            self._batch.add(0, len(self.tokens), chunk, n_rows=max(0, end - row_start))
            self._run()
            self.tokens.extend(chunk)
            self.n_decoded += len(chunk)
            self.passes[len(chunk), max(0, end - row_start)] += 1
            if self.follower is not None:
                self.follower.process(chunk, len(self.tokens) - len(chunk))
            if end > row_start:
                yield row_start, self._rows(end - row_start)
            start = end
        self._take_checkpoint(stops)

    def _take_checkpoint(self, stops: list[int]) -> list[int]:
        if self._checkpoints is None or stops[:1] != [len(self.tokens)]:
            return stops
        self._checkpoints.take(len(self.tokens))
        return stops[1:]

    def last_row(self, tokens: Sequence[int]) -> Rows:
        """Append tokens and return the output row of the last; raises as `decode`."""
        rows = None
        for _, rows in self.decode(tokens):  # noqa: B007
            pass
        assert rows is not None
        return rows

    def greedy(self, token: int) -> int:
        """Append one token and return the arg-max of its output row.

        The same as `last_row` and `scores.argmax`, in one call into C.

        Raises:
            DecodeError: llama.cpp failed, or the row has no arg-max.
            ContextLengthError, Cancelled: as `decode`.
        """
        shim = library.shim()
        if shim is None:
            best = int(scores.argmax(self.last_row([token]), n_threads=1)[0])
        else:
            n = len(self.tokens)
            self._require_room(1, self.n_ctx)
            self._run(lambda: int(
                shim.parse_local_decode_token(
                    library.llama_functions(), self.handle, token, n, self.model.n_vocab,
                    ctypes.byref(self._argmax),
                )
            ))  # fmt: skip
            self.tokens.append(token)
            self.n_decoded += 1
            self.passes[1, 1] += 1
            if self.follower is not None:
                self.follower.process([token], n)
            best = self._argmax.value
        if best < 0:
            raise scores.no_distribution()
        return best

    # forks and verdicts

    forkable = forks.forkable
    fork_start = forks.fork_start
    fork = forks.fork
    share = forks.share
    judge = judging.judge
    judge_each = judging.judge_each
    judge_sequentially = judging.judge_sequentially

    def label_logprobs(self, rows: Rows, labels: Sequence[int]) -> npt.NDArray[np.float32]:
        """Log-probabilities (nats) of a few tokens in each row, shape (n_rows, n_labels)."""
        return scores.label_logprobs(rows, labels, n_threads=self.n_threads)

    # llama_decode

    def _run(self, decode: Callable[[], int] | None = None) -> None:
        # The batch, or what another function decodes that returns llama_decode's codes.
        if self.cancel:
            raise Cancelled("Stopped.")
        with library.log.capture() as log:
            while True:
                status = decode() if decode else lib.llama_decode(self.handle, self._batch.native)
                if status == decode_call.OK:
                    return
                if status != decode_call.NO_SLOT or self._conversations is None:
                    break
                if not self._conversations.make_room():
                    break
            reason = log[-1] if log else "no reason given"
        # Whatever part of the batch was computed goes, so that the cache again
        # holds exactly self.tokens. A batch of forks that was stopped half-way may have
        # left the states of other sequences, which llama.cpp moves about, in no place at all.
        if decode is None and self._checkpoints is not None and self._batch.has_forks:
            self.clear()
        else:
            self.truncate(len(self.tokens))
        raise decode_call.failure(status, reason, self.model.path.name, self.cancel)

    def _rows(self, n: int) -> Rows:
        pointer = ctypes.cast(lib.llama_get_logits(self.handle), ctypes.c_void_p)
        assert pointer.value is not None
        return Rows(pointer.value, n, self.model.n_vocab)

    def close(self) -> None:
        """Free the cache."""
        if self.handle:
            lib.llama_free(self.handle)
            self.handle = None
