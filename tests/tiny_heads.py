"""Layers of tiny models that speculate: an EAGLE-3 head, and a model with an MTP head.

Written as llama.cpp's converter names them, for `write_tiny_gguf(write_layers=...)`. With a
`bias` the constant dimension passes through both heads, so that they predict what
the biased target writes.
"""

from __future__ import annotations

import gguf
import numpy as np
from tiny_architectures import WRITERS, Add, attention, heads, ones


def eagle3(
    w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int, *, n_target: int = 64
) -> None:
    """A head that reads the inputs of layers 0, 1 and 2 of a target that is `n_target` wide."""
    assert n_layer == 1
    heads(w, 4, 2)
    w.add_rope_dimension_count(n_embd // 4)
    w.add_key_length(n_embd // 4)
    w.add_value_length(n_embd // 4)
    w.add_array("eagle3.target_layers", [0, 1, 2])
    w.add_uint32("eagle3.target_hidden_size", n_target)
    fuse = np.random.default_rng(3).standard_normal((n_embd, 3 * n_target)) / 16
    fuse[0] = 0.0
    fuse[0, 0] = 1.0  # the constant dimension stays what it is
    w.add_tensor("fc.weight", fuse.astype(np.float32))
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        ones(w, f"blk.0.{name}.weight", n_embd)
    add("blk.0.attn_q.weight", n_embd, 2 * n_embd)
    add("blk.0.attn_k.weight", n_embd // 2, 2 * n_embd)
    add("blk.0.attn_v.weight", n_embd // 2, 2 * n_embd)
    add("blk.0.attn_output.weight", n_embd, n_embd)
    add("blk.0.ffn_gate.weight", n_ff, n_embd)
    add("blk.0.ffn_up.weight", n_ff, n_embd)
    add("blk.0.ffn_down.weight", n_embd, n_ff)
    ones(w, "output_norm.weight", n_embd)


def glm4moe(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    """A mixture of two experts whose last block is an MTP head."""
    n_expert, n_ff_exp = 2, n_ff // 2
    heads(w, 4, 2)
    w.add_rope_dimension_count(n_embd // 4)
    w.add_key_length(n_embd // 4)
    w.add_value_length(n_embd // 4)
    w.add_expert_count(n_expert)
    w.add_expert_used_count(1)
    w.add_expert_shared_count(1)
    w.add_expert_feed_forward_length(n_ff_exp)
    w.add_leading_dense_block_count(0)
    w.add_nextn_predict_layers(1)
    for i in range(n_layer):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        attention(add, i, n_embd)
        ones(w, f"blk.{i}.post_attention_norm.weight", n_embd)
        add(f"blk.{i}.ffn_gate_inp.weight", n_expert, n_embd)
        w.add_tensor(f"blk.{i}.exp_probs_b.bias", np.zeros(n_expert, np.float32))
        for part, shape in (
            ("gate", (n_ff_exp, n_embd)),
            ("up", (n_ff_exp, n_embd)),
        ):
            add(f"blk.{i}.ffn_{part}_exps.weight", n_expert, *shape)
            add(f"blk.{i}.ffn_{part}_shexp.weight", *shape)
        # Nothing of the experts, so that the constant dimension stays what it is.
        zeros = np.zeros((n_embd, n_ff_exp), np.float32)
        w.add_tensor(f"blk.{i}.ffn_down_exps.weight", np.stack([zeros] * n_expert))
        add(f"blk.{i}.ffn_down_shexp.weight", n_embd, n_ff_exp, gain=0.0)
    _nextn(w, n_layer - 1, n_embd)
    ones(w, "output_norm.weight", n_embd)


def qwen35_mtp(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    """A hybrid model whose last block, one with attention, is an MTP head."""
    assert n_layer % 2 == 0
    WRITERS["qwen35"](w, add, n_layer, n_embd, n_ff)
    w.add_nextn_predict_layers(1)
    _nextn(w, n_layer - 1, n_embd)


def _nextn(w: gguf.GGUFWriter, i: int, n_embd: int) -> None:
    # What makes block i a head: token and hidden state joined, the constant dimension kept.
    join = np.random.default_rng(3).standard_normal((n_embd, 2 * n_embd)) / 16
    join[0] = 0.0
    join[0, 0] = 1.0
    w.add_tensor(f"blk.{i}.nextn.eh_proj.weight", join.astype(np.float32))
    ones(w, f"blk.{i}.nextn.enorm.weight", n_embd)
    ones(w, f"blk.{i}.nextn.hnorm.weight", n_embd)
