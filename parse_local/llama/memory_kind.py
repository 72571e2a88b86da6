"""Which way a model's memory can be forked and rolled back, and which models are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from parse_local.llama import library
from parse_local.llama._bindings import lib

if TYPE_CHECKING:
    from parse_local.llama.model import Model

MemoryPath = Literal["unified", "sliding window", "checkpoints"]

_HEADS = ("eagle3", "dflash", "gemma4-assistant")
_CACHE_PER_SEQUENCE = ("deepseek4",)
_MIB = 1 << 20
_LOG_STEP = 0.01  # MiB; the precision of the sizes in llama.cpp's log
_PROBE_CELLS = 1 << 16
_STATE = re.compile(r"llama_memory_recurrent: size = *([\d.]+) MiB")
_KV = re.compile(r"llama_kv_cache: size = *([\d.]+) MiB")


@dataclass(frozen=True)
class MemoryKind:
    """How one model remembers a sequence.

    Args:
        path: "unified" (every token has cells of its own, a fork shares those of its
            prefix), "sliding window" (the same over a cache that keeps more than the
            window), or "checkpoints" (a state that every token overwrites, which can only
            be copied whole).
        reason: why, for people.
        n_swa: tokens of the sliding window, 0 for none.
    """

    path: MemoryPath
    reason: str
    n_swa: int = 0

    @property
    def can_cut(self) -> bool:
        """Whether a fork and a rollback are possible at every position."""
        return self.path != "checkpoints"


@dataclass(frozen=True)
class StateSize:
    """What a memory of the path "checkpoints" takes.

    Args:
        state: bytes of one sequence's recurrent state, all layers.
        kv_elements: K and V values of one token, all attention layers; 0 where there is none.
    """

    state: int
    kv_elements: float


def memory_kind(model: Model) -> MemoryKind:
    """Classify a model (llama_model_is_recurrent, llama_model_is_hybrid, llama_model_n_swa)."""
    n_swa = max(0, int(lib.llama_model_n_swa(model.handle)))
    if lib.llama_model_is_hybrid(model.handle):
        return MemoryKind(
            "checkpoints",
            "some of its layers keep a recurrent state, which no earlier position can be cut from",
            n_swa,
        )
    if lib.llama_model_is_recurrent(model.handle):
        return MemoryKind(
            "checkpoints",
            "it keeps a recurrent state, which no earlier position can be cut from",
        )
    if n_swa:
        return MemoryKind(
            "sliding window",
            f"some of its layers attend to the last {n_swa:,} tokens only; "
            "the whole sequence is kept so that every prefix can be forked",
            n_swa,
        )
    return MemoryKind("unified", "it is a decoder with attention to every earlier token")


def refusal(model: Model) -> str | None:
    """Why a model cannot write text here, with a remedy; None where it can."""
    architecture = model.architecture
    if architecture in _HEADS:
        return (
            f"{model.path} is not a model of its own but proposes tokens for one ({architecture}); "
            "give it with --spec-model, beside the model that it was made for."
        )
    if lib.llama_model_has_encoder(model.handle):
        return (
            f"{model.path} is an encoder-decoder model ({architecture}), "
            "which parse-local does not support; use a decoder-only chat model."
        )
    if lib.llama_model_is_diffusion(model.handle):
        return (
            f"{model.path} is a diffusion model ({architecture}), "
            "which parse-local does not support; use an autoregressive chat model."
        )
    if architecture in _CACHE_PER_SEQUENCE:
        return (
            f"{model.path} is a {architecture} model, whose cache llama.cpp keeps once for every "
            "sequence, which parse-local does not support; use another model."
        )
    pooling = model.metadata(f"{architecture}.pooling_type")
    embedding = model.metadata(f"{architecture}.attention.causal") == "false"
    if embedding or (pooling not in (None, "0") and not model.chat_template):
        return (
            f"{model.path} is an embedding model ({architecture}) and cannot write text; "
            "use a chat model."
        )
    if model.n_vocab == 0:
        return f"{model.path} has no vocabulary; use a GGUF that includes its tokeniser."
    return None


def state_size(model: Model) -> StateSize:
    """Measure a recurrent or hybrid model's memory, from its headers alone.

    llama.cpp computes these sizes for each architecture and publishes them
    nowhere but in the log of a new context. A context over a model without weights
    allocates one recurrent state and nothing else.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = _PROBE_CELLS
    params.n_batch = params.n_ubatch = 32
    params.n_seq_max = 1
    params.kv_unified = params.swa_full = True
    with library.log.capture(every_level=True) as log:
        handle = lib.llama_init_from_model(model.handle, params)
        text = "\n".join(log)
    if handle:
        lib.llama_free(handle)
    # Rounded to the nearest step in the log; from above here.
    state = sum(float(m) + _LOG_STEP for m in _STATE.findall(text))
    kv = sum(float(m) for m in _KV.findall(text))  # F16
    return StateSize(int(state * _MIB), kv * _MIB / 2 / _PROBE_CELLS)
