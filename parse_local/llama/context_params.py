"""What a context can be created with, and why that fails."""

from __future__ import annotations

import os

import psutil

from parse_local.errors import OutOfMemoryError, ParseLocalError, UsageError
from parse_local.llama.model import Model

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
