"""What a context can be created with, and why that fails."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import psutil

from parse_local.errors import OutOfMemoryError, ParseLocalError, UsageError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.batch import N_BATCH
from parse_local.llama.checkpoints import MIN_CHECKPOINTS
from parse_local.llama.model import Model
from parse_local.memory import MAX_SEQUENCES

N_UBATCH = 512
OUTPUT_BYTES = 160_000_000
"""Upper bound of the output buffer: rows are scored in chunks that stay below it."""

KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}  # enum ggml_type
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # enum llama_flash_attn_type


def default_threads() -> int:
    """Physical cores that this process may run on."""
    physical = psutil.cpu_count(logical=False) or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, affinity))


def creation_failure(model: Model, n_ctx: int, kv_type: str, log: str) -> ParseLocalError:
    """The error for a context that llama.cpp did not create, from the line it logged."""
    reason = log.split(": ", 1)[-1]
    if "flash_attn" in reason or "cache type" in reason:
        return UsageError(
            f"{model.path.name} cannot have a KV cache of type {kv_type} ({reason}); "
            "use --kv-type f16."
        )
    return OutOfMemoryError(
        f"llama.cpp could not create a context of {n_ctx} tokens for {model.path.name} "
        f"({reason}); lower --ctx, or use --kv-type q8_0."
    )


def keeps_in_cache(model: Model, flash_attn: str = "auto") -> bool:
    """Whether cached conversations are to share the KV cache; others are copied out of it.

    Without flash attention a decode computes with all cells and masks those of other
    sequences afterwards: a few thousand cached tokens can halve its speed.
    """
    return model.memory_kind.path == "unified" and flash_attn != "off"


def max_rows(n_vocab: int) -> int:
    """Output rows that fit into OUTPUT_BYTES, at most one ubatch and at least two.

    llama.cpp always has room for one row of every sequence, and a fork makes two.
    """
    return max(2, min(N_UBATCH, OUTPUT_BYTES // (4 * n_vocab)))


@dataclass(frozen=True)
class Layout:
    """What the sequences of a context are for, and how many cells they have.

    Sequence 0 is the main one; forks, copies (`checkpoints`) and cached conversations follow.

    Args:
        n_cells: of the cache, before llama.cpp rounds them up.
        n_cached_cells: how many of them are for cached conversations.
        max_forks: most forks alive at once.
        n_checkpoints: copies of the main sequence, 0 where the memory can be cut.
        n_kept: sequences for cached conversations.
        shares_cache: these are in the cache; otherwise they are copied out of it.
    """

    n_cells: int
    n_cached_cells: int
    max_forks: int
    n_checkpoints: int
    n_kept: int
    shares_cache: bool

    @property
    def first_checkpoint(self) -> int:
        """The first sequence behind the forks."""
        return 1 + self.max_forks

    @property
    def first_kept(self) -> int:
        """The first sequence behind the copies."""
        return self.first_checkpoint + self.n_checkpoints

    @property
    def n_sequences(self) -> int:
        """All of them."""
        return self.first_kept + self.n_kept


def lay_out(
    model: Model,
    *,
    n_ctx: int,
    n_fork_cells: int,
    max_forks: int,
    n_checkpoints: int,
    n_cached: int,
    n_cached_cells: int,
    copies: bool,
) -> Layout:
    """Divide a context up; the arguments are those of `Context`."""
    n_checkpoints = 0 if model.memory_kind.can_cut else max(MIN_CHECKPOINTS, n_checkpoints)
    shared = n_cached > 0 and not copies and keeps_in_cache(model)
    n_cached_cells = n_cached_cells if shared else 0
    n_kept = n_cached + 1 if shared else 0  # one more while two change places
    if n_cached and model.memory_kind.path == "sliding window":
        n_kept = 1  # while it is copied at the end of its prompt
    n_others = 1 + n_checkpoints + n_kept
    if shared:
        max_forks = min(max_forks, MAX_SEQUENCES - n_others)
    return Layout(
        n_cells=n_ctx + n_fork_cells + n_cached_cells,
        n_cached_cells=n_cached_cells,
        # llama.cpp keeps room for one output row of each sequence.
        max_forks=min(max_forks, max(1, max_rows(model.n_vocab) - n_others)),
        n_checkpoints=n_checkpoints,
        n_kept=n_kept,
        shares_cache=shared,
    )


def create(
    model: Model,
    layout: Layout,
    *,
    n_ctx: int,
    n_threads: int,
    kv_type: str,
    flash_attn: str,
) -> Any:
    """The handle of a new context (llama_init_from_model); raises as `Context`."""
    params = lib.llama_context_default_params()
    params.n_ctx = layout.n_cells
    params.n_batch = N_BATCH
    params.n_ubatch = N_UBATCH
    params.n_seq_max = layout.n_sequences
    # llama.cpp aborts the process where it has more sequences than output rows.
    params.n_outputs_max = max(max_rows(model.n_vocab), params.n_seq_max)
    assert 4 * model.n_vocab * max_rows(model.n_vocab) <= max(OUTPUT_BYTES, 8 * model.n_vocab)
    params.n_threads = params.n_threads_batch = n_threads
    params.flash_attn_type = FLASH_ATTN[flash_attn]
    params.type_k = params.type_v = KV_TYPES[kv_type]
    params.kv_unified = True
    params.swa_full = True
    params.no_perf = True
    with library.log.capture() as log:
        handle = lib.llama_init_from_model(model.handle, params)
        if not handle:
            raise creation_failure(model, n_ctx, kv_type, log[0] if log else "no reason given")
    return handle
