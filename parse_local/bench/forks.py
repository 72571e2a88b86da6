"""What forks of a KV cache cost: `llama_memory_seq_fork` against `llama_memory_seq_cp`.

Over a model of one narrow layer, so that bookkeeping is most of what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from parse_local.errors import NativeLibraryError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.model import Model

N_BATCH = 2048


@dataclass
class ForkTimes:
    """Milliseconds, one entry a repetition.

    Args:
        fork: all forks made.
        mask: what precedes computing a batch with one token behind each of them: placing
            the tokens, building the graph and, nearly all of it, the attention mask.
        drop: all forks removed.
    """

    fork: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    drop: list[float] = field(default_factory=list)

    def median(self, what: str) -> float:
        """Median of one of the three."""
        return float(median(getattr(self, what)))


class ForkBench:
    """A cache that is forked again and again.

    Args:
        model: a small one.
        n_ctx: cells of the cache.
        n_forks: most forks at once.
        n_threads: CPU threads.

    Raises:
        NativeLibraryError: a stock library, which has nothing to compare.
    """

    def __init__(self, model: Model, *, n_ctx: int, n_forks: int, n_threads: int) -> None:
        fork = library.seq_fork()
        if fork is None:
            raise NativeLibraryError(
                "The loaded llama.cpp has no llama_memory_seq_fork to be compared; "
                "install parse-local with its own build (docs/building.md)."
            )
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_forks + 1
        params.n_batch, params.n_ubatch = N_BATCH, 512
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = True
        self._computing = 0.0
        self._callback = lib.ggml_backend_sched_eval_callback(self._note_computing)
        params.cb_eval = self._callback
        self._handle = lib.llama_init_from_model(model.handle, params)
        self._memory = lib.llama_get_memory(self._handle)
        self._batch = lib.llama_batch_init(N_BATCH, 0, 1)
        self._n = 0
        self._ways: dict[str, Callable[[int, int], Any]] = {
            "seq_cp": lambda child, p1: lib.llama_memory_seq_cp(self._memory, 0, child, 0, p1),
            "seq_fork": lambda child, p1: fork(self._memory, 0, child, p1),
        }

    def fill(self, n: int) -> None:
        """Make the main sequence `n` tokens long."""
        while self._n < n:
            end = min(n, self._n + N_BATCH)
            self._decode([(0, pos) for pos in range(self._n, end)])
            self._n = end

    def measure(self, cuts: Sequence[int], *, repeat: int) -> dict[str, ForkTimes]:
        """Fork at the cuts, decode a token behind each, drop; one way after the other.

        Args:
            cuts: prefix lengths, one fork each.
            repeat: repetitions of each way; a first one is not counted.

        Returns:
            Times by way, "seq_cp" and "seq_fork".
        """
        times = {way: ForkTimes() for way in self._ways}
        forks = list(enumerate(cuts, start=1))
        # Not in turn: after seq_cp the allocator still has a million freed nodes to merge, and
        # that would be counted as the other one's.
        for way, fork in self._ways.items():
            for i in range(repeat + 1):
                start = time.perf_counter()
                for child, p1 in forks:
                    fork(child, p1)
                forked = time.perf_counter()
                mask_s = self._decode(forks)
                decoded = time.perf_counter()
                for child, _ in forks:
                    lib.llama_memory_seq_rm(self._memory, child, -1, -1)
                dropped = time.perf_counter()
                if i:
                    times[way].fork.append(1000 * (forked - start))
                    times[way].mask.append(1000 * mask_s)
                    times[way].drop.append(1000 * (dropped - decoded))
        return times

    def _note_computing(self, _tensor: Any, _ask: bool, _data: Any) -> bool:
        # llama.cpp asks before it computes a graph whether to stop at its first node.
        self._computing = self._computing or time.perf_counter()
        return False

    def _decode(self, entries: Sequence[tuple[int, int]]) -> float:
        # Returns seconds until the first graph was computed.
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (seq, pos) in enumerate(entries):
            batch.token[i], batch.pos[i] = pos % 200, pos
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            batch.logits[i] = i == len(entries) - 1
        self._computing = 0.0
        start = time.perf_counter()
        status = lib.llama_decode(self._handle, batch)
        assert status == 0, status
        return self._computing - start

    def close(self) -> None:
        """Free the cache."""
        lib.llama_batch_free(self._batch)
        lib.llama_free(self._handle)
