"""The tensors of each architecture that the tests write: a few layers, 64 wide."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np

Add = Callable[..., None]
Layers = Callable[[gguf.GGUFWriter, Add, int, int, int], None]


def ones(w: gguf.GGUFWriter, name: str, n: int) -> None:
    w.add_tensor(name, np.ones(n, np.float32))


def heads(w: gguf.GGUFWriter, n_head: int, n_head_kv: int) -> None:
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head_kv)


def attention(add: Add, i: int, n_embd: int) -> None:
    """Block `i`'s matrices of attention, four heads that share two of keys and values."""
    add(f"blk.{i}.attn_q.weight", n_embd, n_embd, gain=2.0)
    add(f"blk.{i}.attn_k.weight", n_embd // 2, n_embd, gain=2.0)
    add(f"blk.{i}.attn_v.weight", n_embd // 2, n_embd, gain=2.0)
    add(f"blk.{i}.attn_output.weight", n_embd, n_embd, gain=2.0)


def llama(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    heads(w, 4, 2)
    w.add_rope_dimension_count(n_embd // 4)
    for i in range(n_layer):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        attention(add, i, n_embd)
        ones(w, f"blk.{i}.ffn_norm.weight", n_embd)
        add(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    ones(w, "output_norm.weight", n_embd)


def _gemma3(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    w.add_sliding_window(32)
    w.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    w.add_key_length(n_embd // 4)
    w.add_value_length(n_embd // 4)
    llama(w, add, n_layer, n_embd, n_ff)
    for i in range(n_layer):
        for name in ("post_attention_norm", "post_ffw_norm"):
            ones(w, f"blk.{i}.{name}.weight", n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(w, f"blk.{i}.{name}.weight", n_embd // 4)


def _mamba_keys(w: gguf.GGUFWriter, n_embd: int) -> None:
    w.add_ssm_conv_kernel(4)
    w.add_ssm_inner_size(2 * n_embd)
    w.add_ssm_state_size(16)
    w.add_ssm_time_step_rank(4)


def _mamba_layer(w: gguf.GGUFWriter, add: Add, i: int, n_embd: int) -> None:
    n_inner, n_state, n_conv, rank = 2 * n_embd, 16, 4, 4
    add(f"blk.{i}.ssm_in.weight", 2 * n_inner, n_embd)
    w.add_tensor(f"blk.{i}.ssm_conv1d.weight", np.full((n_inner, n_conv), 0.25, np.float32))
    ones(w, f"blk.{i}.ssm_conv1d.bias", n_inner)
    add(f"blk.{i}.ssm_x.weight", rank + 2 * n_state, n_inner)
    add(f"blk.{i}.ssm_dt.weight", n_inner, rank)
    ones(w, f"blk.{i}.ssm_dt.bias", n_inner)
    decay = -np.linspace(0.01, 1, n_state, dtype=np.float32)  # some of it remembers for long
    w.add_tensor(f"blk.{i}.ssm_a", np.tile(decay, (n_inner, 1)))
    ones(w, f"blk.{i}.ssm_d", n_inner)
    add(f"blk.{i}.ssm_out.weight", n_embd, n_inner)


def _qwen2vl(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    eighth = n_embd // 16  # half a head has n_embd / 8 dimensions, shared by time, height, width
    w.add_rope_dimension_sections([eighth, eighth // 2, eighth - eighth // 2, 0])
    llama(w, add, n_layer, n_embd, n_ff)


def _mamba(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _mamba_keys(w, n_embd)
    for i in range(n_layer):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        _mamba_layer(w, add, i, n_embd)
    ones(w, "output_norm.weight", n_embd)


def _bert(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    heads(w, 4, 4)
    w.add_layer_norm_eps(1e-5)
    w.add_token_type_count(2)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    add("token_types.weight", 2, n_embd)
    add("position_embd.weight", 8192, n_embd)
    for name in ("weight", "bias"):
        ones(w, f"token_embd_norm.{name}", n_embd)
        for i in range(n_layer):
            ones(w, f"blk.{i}.attn_output_norm.{name}", n_embd)
            ones(w, f"blk.{i}.layer_output_norm.{name}", n_embd)
    for i in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", n_embd, n_embd)
            ones(w, f"blk.{i}.{name}.bias", n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        ones(w, f"blk.{i}.ffn_up.bias", n_ff)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
        ones(w, f"blk.{i}.ffn_down.bias", n_embd)


def _t5(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    heads(w, 4, 4)
    w.add_relative_attn_buckets_count(32)
    ones(w, "enc.output_norm.weight", n_embd)
    ones(w, "dec.output_norm.weight", n_embd)
    for i in range(n_layer):
        for half in ("enc", "dec"):
            attentions = ["attn", "cross_attn"] if half == "dec" else ["attn"]
            for attention in attentions:
                ones(w, f"{half}.blk.{i}.{attention}_norm.weight", n_embd)
                for name in ("q", "k", "v", "o"):
                    add(f"{half}.blk.{i}.{attention}_{name}.weight", n_embd, n_embd)
            ones(w, f"{half}.blk.{i}.ffn_norm.weight", n_embd)
            add(f"{half}.blk.{i}.ffn_up.weight", n_ff, n_embd)
            add(f"{half}.blk.{i}.ffn_down.weight", n_embd, n_ff)


def _hybrid_heads(w: gguf.GGUFWriter, n_layer: int, n_embd: int) -> list[bool]:
    # Every second layer has attention, the others (True) are recurrent.
    recurrent = [i % 2 == 0 for i in range(n_layer)]
    w.add_head_count(4)
    w.add_head_count_kv([0 if r else 2 for r in recurrent])
    w.add_rope_dimension_count(n_embd // 4)
    return recurrent


def _attention(
    w: gguf.GGUFWriter, add: Add, i: int, n_embd: int, *, norms: bool = False, gated: bool = False
) -> None:
    add(f"blk.{i}.attn_q.weight", (1 + gated) * n_embd, n_embd, gain=2.0)
    add(f"blk.{i}.attn_k.weight", n_embd // 2, n_embd, gain=2.0)
    add(f"blk.{i}.attn_v.weight", n_embd // 2, n_embd, gain=2.0)
    add(f"blk.{i}.attn_output.weight", n_embd, n_embd, gain=2.0)
    if norms:
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(w, f"blk.{i}.{name}.weight", n_embd // 4)


def _feed_forward(w: gguf.GGUFWriter, add: Add, i: int, n_embd: int, n_ff: int) -> None:
    ones(w, f"blk.{i}.ffn_norm.weight", n_embd)
    add(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
    add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
    add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)


def _experts(w: gguf.GGUFWriter, add: Add, i: int, n_embd: int, n_ff: int) -> None:
    add(f"blk.{i}.ffn_gate_inp.weight", _N_EXPERT, n_embd)
    add(f"blk.{i}.ffn_gate_exps.weight", _N_EXPERT, n_ff, n_embd)
    add(f"blk.{i}.ffn_up_exps.weight", _N_EXPERT, n_ff, n_embd)
    add(f"blk.{i}.ffn_down_exps.weight", _N_EXPERT, n_embd, n_ff)


def _expert_counts(w: gguf.GGUFWriter, n_ff: int) -> None:
    w.add_expert_count(_N_EXPERT)
    w.add_expert_used_count(2)
    w.add_expert_feed_forward_length(n_ff)


def _qwen3moe(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    heads(w, 4, 2)
    _expert_counts(w, n_ff)
    for i in range(n_layer):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        _attention(w, add, i, n_embd, norms=True)
        ones(w, f"blk.{i}.ffn_norm.weight", n_embd)
        _experts(w, add, i, n_embd, n_ff)
    ones(w, "output_norm.weight", n_embd)


def _mamba2_keys(w: gguf.GGUFWriter, n_embd: int) -> None:
    w.add_ssm_conv_kernel(4)
    w.add_ssm_inner_size(2 * n_embd)
    w.add_ssm_state_size(16)
    w.add_ssm_time_step_rank(8)  # heads, 16 wide
    w.add_ssm_group_count(1)


def _mamba2_layer(w: gguf.GGUFWriter, add: Add, i: int, n_embd: int) -> None:
    n_inner, n_head = 2 * n_embd, 8
    n_conv = n_inner + 2 * 16
    add(f"blk.{i}.ssm_in.weight", n_inner + n_conv + n_head, n_embd)
    w.add_tensor(f"blk.{i}.ssm_conv1d.weight", np.full((n_conv, 4), 0.25, np.float32))
    ones(w, f"blk.{i}.ssm_conv1d.bias", n_conv)
    ones(w, f"blk.{i}.ssm_dt.bias", n_head)
    decay = -np.linspace(0.02, 0.5, n_head, dtype=np.float32)  # some heads remember for long
    w.add_tensor(f"blk.{i}.ssm_a", decay[:, None])
    w.add_tensor(f"blk.{i}.ssm_d", np.ones((n_head, 1), np.float32))
    w.add_tensor(f"blk.{i}.ssm_norm.weight", np.ones((1, n_inner), np.float32))
    add(f"blk.{i}.ssm_out.weight", n_embd, n_inner)


def _mamba2(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _mamba2_keys(w, n_embd)
    for i in range(n_layer):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        _mamba2_layer(w, add, i, n_embd)
    ones(w, "output_norm.weight", n_embd)


def _granitehybrid(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _mamba2_keys(w, n_embd)
    for i, recurrent in enumerate(_hybrid_heads(w, n_layer, n_embd)):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        if recurrent:
            _mamba2_layer(w, add, i, n_embd)
        else:
            _attention(w, add, i, n_embd)
        _feed_forward(w, add, i, n_embd, n_ff)
    ones(w, "output_norm.weight", n_embd)


def _jamba(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _mamba_keys(w, n_embd)
    for i, recurrent in enumerate(_hybrid_heads(w, n_layer, n_embd)):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        if recurrent:
            _mamba_layer(w, add, i, n_embd)
            for name, n in (("dt", 4), ("b", 16), ("c", 16)):
                ones(w, f"blk.{i}.ssm_{name}_norm.weight", n)
        else:
            _attention(w, add, i, n_embd)
        _feed_forward(w, add, i, n_embd, n_ff)
    ones(w, "output_norm.weight", n_embd)


def _lfm2(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    w.add_shortconv_l_cache(3)
    for i, recurrent in enumerate(_hybrid_heads(w, n_layer, n_embd)):
        ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        if recurrent:
            add(f"blk.{i}.shortconv.conv.weight", n_embd, 3)
            add(f"blk.{i}.shortconv.in_proj.weight", 3 * n_embd, n_embd)
            add(f"blk.{i}.shortconv.out_proj.weight", n_embd, n_embd, gain=2.0)
        else:
            _attention(w, add, i, n_embd, norms=True)
        _feed_forward(w, add, i, n_embd, n_ff)
    ones(w, "token_embd_norm.weight", n_embd)  # llama.cpp's name of this output norm


def _delta_net(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, *, split: bool) -> None:
    # Gated delta net: 2 key heads and 4 value heads of 16; every second layer has attention.
    n_key, n_value = 2 * 16, 4 * 16
    w.add_ssm_conv_kernel(4)
    w.add_ssm_inner_size(n_value)
    w.add_ssm_state_size(16)
    w.add_ssm_time_step_rank(4)
    w.add_ssm_group_count(2)
    w.add_full_attention_interval(2)
    heads(w, 4, 2)
    w.add_rope_dimension_count(n_embd // 4)
    for i in range(n_layer):
        for name in ("attn_norm", "post_attention_norm"):
            ones(w, f"blk.{i}.{name}.weight", n_embd)
        if i % 2:
            _attention(w, add, i, n_embd, norms=True, gated=True)
            continue
        n_conv = 2 * n_key + n_value
        add(f"blk.{i}.attn_qkv.weight", n_conv, n_embd)
        add(f"blk.{i}.attn_gate.weight", n_value, n_embd)
        add(f"blk.{i}.ssm_conv1d.weight", n_conv, 4)
        ones(w, f"blk.{i}.ssm_dt.bias", 4)
        w.add_tensor(f"blk.{i}.ssm_a", -np.linspace(0.02, 0.5, 4, dtype=np.float32))
        if split:
            add(f"blk.{i}.ssm_beta.weight", 4, n_embd)
            add(f"blk.{i}.ssm_alpha.weight", 4, n_embd)
        else:
            add(f"blk.{i}.ssm_ba.weight", 8, n_embd)
        ones(w, f"blk.{i}.ssm_norm.weight", 16)
        add(f"blk.{i}.ssm_out.weight", n_embd, n_value)
    ones(w, "output_norm.weight", n_embd)


def _qwen35(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    w.add_rope_dimension_sections([3, 3, 2, 0])
    _delta_net(w, add, n_layer, n_embd, split=True)
    for i in range(n_layer):
        add(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)


def _qwen3next(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _expert_counts(w, n_ff)
    _delta_net(w, add, n_layer, n_embd, split=False)
    w.add_expert_shared_feed_forward_length(n_ff)
    for i in range(n_layer):
        _experts(w, add, i, n_embd, n_ff)
        ones(w, f"blk.{i}.ffn_gate_inp_shexp.weight", n_embd)
        add(f"blk.{i}.ffn_gate_shexp.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_up_shexp.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_down_shexp.weight", n_embd, n_ff)


_N_EXPERT = 4
WRITERS = {
    "llama": llama,
    "gemma3": _gemma3,
    "qwen2vl": _qwen2vl,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "granitehybrid": _granitehybrid,
    "lfm2": _lfm2,
    "qwen35": _qwen35,
    "qwen3next": _qwen3next,
    "qwen3moe": _qwen3moe,
    "bert": _bert,
    "t5": _t5,
}
"""What follows the embedding, by architecture name."""
