"""A bare llama.cpp context for the tests of `llama_memory_seq_fork`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from parse_local.llama import library
from parse_local.llama._bindings import lib

Tokens = Sequence[int]

WINDOW = 64


class Cache:
    """A context over a model, reduced to what these tests do.

    In full precision and without flash attention unless asked otherwise, so
    that a cache filled by other batches holds the same values.
    """

    def __init__(
        self,
        model: Any,
        *,
        n_seq: int = 4,
        n_ctx: int = 2048,
        unified: bool = True,
        swa_full: bool = True,
        kv_type: int = lib.GGML_TYPE_F32,
        flash_attn: bool = False,
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx, n_seq, unified
        params.n_batch = params.n_ubatch = 64
        params.swa_full = swa_full
        params.type_k = params.type_v = kv_type
        params.flash_attn_type = int(flash_attn)
        params.n_threads = params.n_threads_batch = 1
        self.n_seq = n_seq
        self._seq_fork = library.seq_fork()
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        self._ctx = lib.llama_init_from_model(model, params)
        assert self._ctx
        self._mem = lib.llama_get_memory(self._ctx)

    def decode(self, seq: int, start: int, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Logits of the last of these tokens."""
        return self.decode_together([(seq, start, tokens)])[0]

    def decode_together(
        self, parts: Sequence[tuple[int, int, Tokens]]
    ) -> list[npt.NDArray[np.float32]]:
        """Decode (sequence, first position, tokens) of several sequences in one batch.

        Returns:
            Logits of each part's last token.
        """
        entries = [
            (seq, start + i, token, i == len(tokens) - 1)
            for seq, start, tokens in parts
            for i, token in enumerate(tokens)
        ]
        batch = lib.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (seq, pos, token, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i] = token, pos
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            batch.logits[i] = wanted
        status = lib.llama_decode(self._ctx, batch)
        lib.llama_batch_free(batch)
        assert status == 0, status
        return [
            np.ctypeslib.as_array(lib.llama_get_logits_ith(self._ctx, i), (self._n_vocab,)).copy()
            for i, (_, _, _, wanted) in enumerate(entries)
            if wanted
        ]

    def fork(self, parent: int, child: int, p1: int) -> int:
        """The patch's function; its return code."""
        assert self._seq_fork is not None
        return int(self._seq_fork(self._mem, parent, child, p1))

    def copy(self, parent: int, child: int, p0: int, p1: int) -> None:
        """`llama_memory_seq_cp`."""
        lib.llama_memory_seq_cp(self._mem, parent, child, p0, p1)

    def drop(self, seq: int, p0: int = 0, p1: int = -1) -> bool:
        """`llama_memory_seq_rm`."""
        return bool(lib.llama_memory_seq_rm(self._mem, seq, p0, p1))

    def keep(self, seq: int) -> None:
        """`llama_memory_seq_keep`."""
        lib.llama_memory_seq_keep(self._mem, seq)

    def shift(self, seq: int, p0: int, by: int) -> None:
        """`llama_memory_seq_add` to the end."""
        lib.llama_memory_seq_add(self._mem, seq, p0, -1, by)

    def clear(self) -> None:
        """`llama_memory_clear`."""
        lib.llama_memory_clear(self._mem, True)

    def span(self, seq: int) -> tuple[int, int]:
        """First and last position of a sequence, -1 where it is empty."""
        return (
            lib.llama_memory_seq_pos_min(self._mem, seq),
            lib.llama_memory_seq_pos_max(self._mem, seq),
        )

    def spans(self) -> list[tuple[int, int]]:
        """Of all sequences."""
        return [self.span(seq) for seq in range(self.n_seq)]

    def reload(self) -> None:
        """Save the whole state, and restore it."""
        size = lib.llama_state_get_size(self._ctx)
        state = (ctypes.c_uint8 * size)()
        assert lib.llama_state_get_data(self._ctx, state, size) <= size
        self.clear()
        assert lib.llama_state_set_data(self._ctx, state, size) > 0

    def save(self, seq: int) -> Any:
        """State of one sequence."""
        size = lib.llama_state_seq_get_size(self._ctx, seq)
        state = (ctypes.c_uint8 * size)()
        assert lib.llama_state_seq_get_data(self._ctx, state, size, seq) == size
        return state

    def load(self, seq: int, state: Any) -> bool:
        """Restore it as another sequence."""
        return bool(lib.llama_state_seq_set_data(self._ctx, state, len(state), seq))

    def close(self) -> None:
        """Free the context."""
        lib.llama_free(self._ctx)


def write_sliding_window_model(path: Path) -> Path:
    """A tiny cohere2 model, for its few tensors: three of its four layers see 64 tokens."""
    n_vocab, n_embd, n_layer = 256, 64, 4
    rng = np.random.default_rng(0)
    w = gguf.GGUFWriter(path, "cohere2")
    w.add_context_length(2048)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(2 * n_embd)
    w.add_head_count(4)
    w.add_layer_norm_eps(1e-5)
    w.add_rope_dimension_count(n_embd // 4)
    w.add_sliding_window(WINDOW)
    w.add_logit_scale(1.0)
    w.add_vocab_size(n_vocab)
    w.add_tokenizer_model("none")

    def add(name: str, *shape: int) -> None:
        values = 2 * rng.standard_normal(shape) / np.sqrt(shape[-1])
        w.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", n_vocab, n_embd)
    for i in range(n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n_embd, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{part}.weight", n_embd, n_embd)
        add(f"blk.{i}.ffn_gate.weight", 2 * n_embd, n_embd)
        add(f"blk.{i}.ffn_up.weight", 2 * n_embd, n_embd)
        add(f"blk.{i}.ffn_down.weight", n_embd, 2 * n_embd)
    w.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
