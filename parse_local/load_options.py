"""How a pair is loaded: threads, context, memory, who speculates."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from parse_local.errors import UsageError
from parse_local.validation import check_choices, check_ranges

KVType = Literal["f16", "q8_0", "q4_0", "f32"]
FlashAttention = Literal["auto", "on", "off"]
Spec = Literal["none", "draft", "ngram", "eagle3", "mtp", "auto"]

MAX_THREADS = 512
"""GGML_MAX_N_THREADS; llama.cpp checks nothing and crashes far beyond it."""
MAX_FORKS = 255
"""LLAMA_MAX_SEQ less the main sequence."""
MAX_CACHED = 64
"""Conversations; every one more is looked at for every prompt."""
MAX_SPEC = 64
"""Tokens of one proposal; more of them cost more than a proposal is ever worth."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a pair is loaded.

    Args:
        n_ctx: tokens of context for prompt and answer; the room that fork
            suffixes need is added on top.
        n_threads: CPU threads, None for what `parse-local tune` found fastest, else all
            physical cores.
        n_gpu_layers: layers of each model on the GPU, -1 for all that fit
            (the draft is placed first).
        kv_type: type of both KV caches.
        flash_attn: "auto" is what `parse-local tune` found fastest, else llama.cpp's choice.
        max_forks: most boundaries judged in one batch.
        n_cached: most conversations that stay cached beside the one that was answered last, so
            that a prompt that goes on from any of them, or begins like it, is not read again.
            The least recent one goes first. Each adds `n_ctx` cells to both KV caches, fewer
            where memory is short; the answer that runs always has `n_ctx`, and what it leaves
            free holds conversations too. Models with a sliding window or a recurrent state,
            and caches without flash attention, keep copies in the machine's memory instead.
            0: none.
        spec: who proposes tokens while the target writes (token-level speculation, lossless):
            "draft" a draft model, "ngram" what followed the same tokens before, "eagle3" or
            "mtp" a head on the target's hidden states, "none" nobody. All but "none" propose
            the rejected tail of a draft first. "auto": the target's MTP heads, else
            `spec_model`, else n-grams, and only while this run measures that it pays.
        spec_model: GGUF file of the proposing model or head (or a model of the catalogue);
            "draft" takes the pair's draft model without one.
        spec_max: most tokens proposed at once.
        tuned: use what `parse-local tune` has found out about these files on this machine.
        verbose: let llama.cpp's own log through to stderr.
    """

    n_ctx: int = 4096
    n_threads: int | None = None
    n_gpu_layers: int = -1
    kv_type: KVType = "f16"
    flash_attn: FlashAttention = "auto"
    max_forks: int = 32
    n_cached: int = 0
    spec: Spec = "auto"
    spec_model: str | os.PathLike[str] | None = None
    spec_max: int = 16
    tuned: bool = True
    verbose: bool = False

    def __post_init__(self) -> None:
        check_choices(
            self,
            {
                "kv_type": get_args(KVType),
                "flash_attn": get_args(FlashAttention),
                "spec": get_args(Spec),
            },
        )
        if self.spec_model is not None and self.spec in ("none", "ngram"):
            raise UsageError(f"--spec {self.spec} uses no model; leave out --spec-model.")
        check_ranges(
            self,
            {
                "n_ctx": (1, None),
                "n_threads": (1, MAX_THREADS),
                "n_gpu_layers": (-1, None),
                "max_forks": (1, MAX_FORKS),
                "n_cached": (0, MAX_CACHED),
                "spec_max": (1, MAX_SPEC),
            },
        )
