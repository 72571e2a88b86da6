"""How much memory a pair needs and where its layers go: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from parse_local.errors import OutOfMemoryError

GIB = 1 << 30


@dataclass(frozen=True)
class Need:
    """Memory that one model of a pair takes, in bytes.

    Args:
        weights: the file.
        kv_cache: main sequence and fork suffixes.
        compute: llama.cpp's compute and output buffers (an estimate from above).
        n_layer: blocks, for placement.
    """

    weights: int
    kv_cache: int
    compute: int
    n_layer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv_cache + self.compute


def kv_cache_bytes(elements_per_token: int, n_cells: int, bytes_per_element: float) -> int:
    """Size of a KV cache.

    Args:
        elements_per_token: K and V values of one token, all layers.
        n_cells: tokens of context and fork suffixes.
        bytes_per_element: of the cache's type.
    """
    return int(elements_per_token * n_cells * bytes_per_element)


def compute_bytes(n_vocab: int, n_embd: int, n_ubatch: int, n_rows: int) -> int:
    """Upper estimate of compute and output buffers.

    Args:
        n_vocab, n_embd: sizes of the model.
        n_ubatch: tokens computed at once.
        n_rows: output rows at once; they exist in the graph and in the output buffer.
    """
    return 4 * (2 * n_rows * n_vocab + 16 * n_ubatch * n_embd)


def check(needs: dict[str, Need], available: int) -> None:
    """Refuse a pair that does not fit, before anything is loaded.

    Args:
        needs: by role ("draft", "target").
        available: bytes that the machine can give, all devices together.

    Raises:
        OutOfMemoryError: with the sum, its parts and what to change.
    """
    total = sum(need.total for need in needs.values())
    if total <= available:
        return
    parts = ", ".join(
        f"{role}: weights {n.weights / GIB:.1f} + KV cache {n.kv_cache / GIB:.1f}"
        f" + buffers {n.compute / GIB:.1f}"
        for role, n in needs.items()
    )
    raise OutOfMemoryError(
        f"This needs about {total / GIB:.1f} GiB of memory and {available / GIB:.1f} GiB are "
        f"available ({parts}); lower --ctx, use --kv-type q8_0, or choose a smaller pair."
    )


def place(free: int, draft: Need | None, target: Need) -> tuple[int, int]:
    """Layers on the GPU: the draft first, then as much of the target as still fits.

    A draft on the CPU beside a target on the GPU would lose what drafting gains.

    Args:
        free: free GPU memory in bytes, 0 for none.
        draft, target: what each needs.

    Returns:
        (n_gpu_layers of the draft, of the target); a model that fits whole
        gets n_layer + 1, which includes the output layer.
    """

    def layers(need: Need, room: int) -> int:
        if need.total <= room:
            return need.n_layer + 1
        per_layer = (need.weights + need.kv_cache) / (need.n_layer + 1)
        return max(0, int((room - need.compute) // per_layer))

    n_draft = layers(draft, free) if draft else 0
    used = draft.total if draft and n_draft > draft.n_layer else 0
    if draft and not used:
        return n_draft, 0
    return n_draft, layers(target, free - used)
