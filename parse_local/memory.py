"""How much memory a pair needs and where its layers go: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from parse_local.errors import OutOfMemoryError

GIB = 1 << 30

CHECKPOINT_BYTES = GIB
"""Most memory for the recurrent states of one model, whose copies are its forks and checkpoints."""
MAX_SEQUENCES = 256
"""LLAMA_MAX_SEQ."""
_DRAFT_CHECKPOINTS = 8


@dataclass(frozen=True)
class Need:
    """Memory that one model of a pair takes, in bytes.

    Args:
        weights: the file.
        kv_cache: main sequence, fork suffixes and cached conversations.
        compute: llama.cpp's compute and output buffers (an estimate from above).
        n_layer: blocks, for placement.
        states: recurrent states of all sequences; 0 for memories without one.
        copies: cached conversations outside the KV cache, always in the machine's own memory.
    """

    weights: int
    kv_cache: int
    compute: int
    n_layer: int
    states: int = 0
    copies: int = 0

    @property
    def total(self) -> int:
        """All of it that is where the model is."""
        return self.weights + self.kv_cache + self.compute + self.states


def kv_cache_bytes(elements_per_token: float, n_cells: int, bytes_per_element: float) -> int:
    """Size of a KV cache.

    Args:
        elements_per_token: K and V values of one token, all layers.
        n_cells: tokens of context and fork suffixes.
        bytes_per_element: of the cache's type.
    """
    return int(elements_per_token * n_cells * bytes_per_element)


@dataclass(frozen=True)
class Sequences:
    """Sequences of one context beside the main one.

    Args:
        forks: alive at once in a judge batch.
        checkpoints: copies of the main sequence.
    """

    forks: int
    checkpoints: int

    @property
    def total(self) -> int:
        """All of them, the main one counted."""
        return 1 + self.forks + self.checkpoints


def share_states(state_bytes: int, max_forks: int) -> Sequences:
    """How many forks and checkpoints a recurrent memory gets; each takes a whole state.

    Args:
        state_bytes: of one sequence.
        max_forks: forks wanted, 0 for a model that is not asked for verdicts.

    Returns:
        As many as fit into `CHECKPOINT_BYTES`: at least one fork where forks are
        wanted, and two checkpoints (the end of the prompt, the start of a draft).
    """
    room = min(MAX_SEQUENCES, CHECKPOINT_BYTES // max(1, state_bytes)) - 1
    if not max_forks:
        return Sequences(0, max(2, min(_DRAFT_CHECKPOINTS, room)))
    # Beside the boundaries, three places are kept to come back to.
    forks = max(1, min(max_forks, (room - 3) // 2))
    return Sequences(forks, max(2, min(forks + 3, room - forks)))


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
    total = sum(need.total + need.copies for need in needs.values())
    if total <= available:
        return
    parts = ", ".join(
        f"{role}: weights {n.weights / GIB:.1f} + KV cache {(n.kv_cache + n.states) / GIB:.1f}"
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
        per_layer = (need.weights + need.kv_cache + need.states) / (need.n_layer + 1)
        return max(0, int((room - need.compute) // per_layer))

    n_draft = layers(draft, free) if draft else 0
    used = draft.total if draft and n_draft > draft.n_layer else 0
    if draft and not used:
        return n_draft, 0
    return n_draft, layers(target, free - used)
