"""Which builds give a token the same logits, to the last bit, alone and among others."""

from __future__ import annotations

from parse_local.llama import library


def batches_are_exact() -> bool:
    """Whether this one does, with the types that have kernels of their own."""
    info = library.info()
    features = info.system_info
    return info.patched and "AVX2 = 1" in features and "AVX512" not in features
