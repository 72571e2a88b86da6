"""Writes tiny random-weight GGUF files, so that unit tests run on the real llama.cpp.

A one-layer, 64-wide llama-architecture model is enough for everything that
concerns the KV cache, the chat template and the tokeniser. Weights are F32 unless
asked otherwise, so that results of differently shaped batches agree to rounding error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "Ġ t", "i n", "e r", "Ġt he", "he ll", "C o", "I n", "r r", "e c", "ec t"]
ASCII = [chr(i) for i in range(33, 127)] + ["Ġ", "Ċ"]
READABLE = dict.fromkeys(ASCII, 12.0)
"""A bias that makes a model write printable ASCII nearly always."""

Add = Callable[..., None]
Layers = Callable[[gguf.GGUFWriter, Add, int, int, int], None]


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    vocab_seed: int | None = None,
    template: str | None = CHATML,
    architecture: str = "llama",
    n_layer: int = 1,
    n_ctx: int = 8192,
    n_embd: int = 64,
    scale: float = 4.0,
    weights_from: int | None = None,
    noise: float = 0.05,
    bias: Mapping[str, float] | None = None,
    n_unused: int = 0,
    dtype: type[np.floating] = np.float32,
    causal: bool = True,
    write_layers: Layers | None = None,
) -> Path:
    """Write one model file.

    Args:
        path: where to.
        seed: of the weights; models with the same seed are the same model.
        vocab_seed: shuffles the token ids: another vocabulary, but still the same
            function of the text where the seed is the same.
        template: chat template, None for a file without one.
        architecture: llama; gemma3 (a sliding window of 32 tokens on every second layer);
            mamba (recurrent); bert (embedding model); t5 (encoder and decoder); any other
            name gives llama's tensors under that name.
        scale: of the output matrix; larger makes the distributions more peaked.
        weights_from: seed of another model that this one is close to: the
            weights are that model's with a little noise, so that drafts agree often.
        noise: how little.
        bias: by token spelling, roughly how much to add to its logit everywhere.
        n_unused: tokens appended to the vocabulary as padding.
        dtype: of the matrices.
        causal: False marks an embedding model.
        write_layers: writes the layers instead, for architectures that few tests need.
    """
    rng = np.random.default_rng(seed if weights_from is None else weights_from)
    other = np.random.default_rng(seed)
    spelled = byte_symbols() + [m.replace(" ", "") for m in MERGES]
    order = np.arange(len(spelled))
    if vocab_seed is not None:
        order = np.random.default_rng(vocab_seed).permutation(len(spelled))
    unused = [f"<|unused{i}|>" for i in range(n_unused)]
    tokens = [spelled[i] for i in order] + SPECIAL + unused
    n_vocab = len(tokens)
    n_ff = 2 * n_embd

    w = gguf.GGUFWriter(path, architecture)
    w.add_name("tiny")
    w.add_context_length(n_ctx)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(n_ff)
    w.add_vocab_size(n_vocab)
    w.add_layer_norm_rms_eps(1e-5)
    if not causal:
        w.add_causal_attention(False)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([1] * len(spelled) + [3] * (len(SPECIAL) + n_unused))
    w.add_token_merges(MERGES)
    w.add_eos_token_id(len(spelled) + SPECIAL.index("<|im_end|>"))
    w.add_bos_token_id(len(spelled) + SPECIAL.index("<|endoftext|>"))
    w.add_add_bos_token(False)
    if template is not None:
        w.add_chat_template(template)

    def matrix(*shape: int, gain: float = 1.0) -> np.ndarray:
        values = rng.standard_normal(shape) * gain / np.sqrt(shape[-1])
        if weights_from is not None:
            values = values + noise * other.standard_normal(shape) * gain / np.sqrt(shape[-1])
        return values

    def add(name: str, *shape: int, gain: float = 1.0) -> None:
        values = matrix(*shape, gain=gain)
        if bias and name.endswith(("attn_output.weight", "ffn_down.weight")):
            values[0] = 0.0  # the first dimension stays the constant that carries the bias
        w.add_tensor(name, values.astype(dtype))

    def per_token(*, gain: float) -> np.ndarray:
        values = matrix(n_vocab - n_unused, n_embd, gain=gain)
        values[: len(order)] = values[order]
        return np.concatenate([values, np.zeros((n_unused, n_embd))])

    embedding = per_token(gain=8.0)
    if bias:
        embedding[:, 0] = 2.0
    w.add_tensor("token_embd.weight", embedding.astype(dtype))
    (write_layers or _WRITERS.get(architecture, _llama))(w, add, n_layer, n_embd, n_ff)
    output = per_token(gain=scale)
    if bias:
        output[:, 0] = 0.0
        for spelling, amount in bias.items():
            # Behind the last norm the constant is about 2 (less what the block adds).
            output[tokens.index(spelling), 0] = amount / 2
    if architecture != "bert":
        w.add_tensor("output.weight", output.astype(dtype))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _ones(w: gguf.GGUFWriter, name: str, n: int) -> None:
    w.add_tensor(name, np.ones(n, np.float32))


def _heads(w: gguf.GGUFWriter, n_head: int, n_head_kv: int) -> None:
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head_kv)


def _llama(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _heads(w, 4, 2)
    w.add_rope_dimension_count(n_embd // 4)
    for i in range(n_layer):
        _ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        add(f"blk.{i}.attn_q.weight", n_embd, n_embd, gain=2.0)
        add(f"blk.{i}.attn_k.weight", n_embd // 2, n_embd, gain=2.0)
        add(f"blk.{i}.attn_v.weight", n_embd // 2, n_embd, gain=2.0)
        add(f"blk.{i}.attn_output.weight", n_embd, n_embd, gain=2.0)
        _ones(w, f"blk.{i}.ffn_norm.weight", n_embd)
        add(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    _ones(w, "output_norm.weight", n_embd)


def _gemma3(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    w.add_sliding_window(32)
    w.add_uint32("gemma3.attention.sliding_window_pattern", 2)
    w.add_key_length(n_embd // 4)
    w.add_value_length(n_embd // 4)
    _llama(w, add, n_layer, n_embd, n_ff)
    for i in range(n_layer):
        for name in ("post_attention_norm", "post_ffw_norm"):
            _ones(w, f"blk.{i}.{name}.weight", n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            _ones(w, f"blk.{i}.{name}.weight", n_embd // 4)


def _mamba(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    n_inner, n_state, n_conv, rank = 2 * n_embd, 16, 4, 4
    w.add_ssm_conv_kernel(n_conv)
    w.add_ssm_inner_size(n_inner)
    w.add_ssm_state_size(n_state)
    w.add_ssm_time_step_rank(rank)
    for i in range(n_layer):
        _ones(w, f"blk.{i}.attn_norm.weight", n_embd)
        add(f"blk.{i}.ssm_in.weight", 2 * n_inner, n_embd)
        w.add_tensor(f"blk.{i}.ssm_conv1d.weight", np.full((n_inner, n_conv), 0.25, np.float32))
        _ones(w, f"blk.{i}.ssm_conv1d.bias", n_inner)
        add(f"blk.{i}.ssm_x.weight", rank + 2 * n_state, n_inner)
        add(f"blk.{i}.ssm_dt.weight", n_inner, rank)
        _ones(w, f"blk.{i}.ssm_dt.bias", n_inner)
        w.add_tensor(f"blk.{i}.ssm_a", -np.ones((n_inner, n_state), np.float32))
        _ones(w, f"blk.{i}.ssm_d", n_inner)
        add(f"blk.{i}.ssm_out.weight", n_embd, n_inner)
    _ones(w, "output_norm.weight", n_embd)


def _bert(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _heads(w, 4, 4)
    w.add_layer_norm_eps(1e-5)
    w.add_token_type_count(2)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    add("token_types.weight", 2, n_embd)
    add("position_embd.weight", 8192, n_embd)
    for name in ("weight", "bias"):
        _ones(w, f"token_embd_norm.{name}", n_embd)
        for i in range(n_layer):
            _ones(w, f"blk.{i}.attn_output_norm.{name}", n_embd)
            _ones(w, f"blk.{i}.layer_output_norm.{name}", n_embd)
    for i in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}.weight", n_embd, n_embd)
            _ones(w, f"blk.{i}.{name}.bias", n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        _ones(w, f"blk.{i}.ffn_up.bias", n_ff)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
        _ones(w, f"blk.{i}.ffn_down.bias", n_embd)


def _t5(w: gguf.GGUFWriter, add: Add, n_layer: int, n_embd: int, n_ff: int) -> None:
    _heads(w, 4, 4)
    w.add_relative_attn_buckets_count(32)
    _ones(w, "enc.output_norm.weight", n_embd)
    _ones(w, "dec.output_norm.weight", n_embd)
    for i in range(n_layer):
        for half in ("enc", "dec"):
            attentions = ["attn", "cross_attn"] if half == "dec" else ["attn"]
            for attention in attentions:
                _ones(w, f"{half}.blk.{i}.{attention}_norm.weight", n_embd)
                for name in ("q", "k", "v", "o"):
                    add(f"{half}.blk.{i}.{attention}_{name}.weight", n_embd, n_embd)
            _ones(w, f"{half}.blk.{i}.ffn_norm.weight", n_embd)
            add(f"{half}.blk.{i}.ffn_up.weight", n_ff, n_embd)
            add(f"{half}.blk.{i}.ffn_down.weight", n_embd, n_ff)


_WRITERS = {"llama": _llama, "gemma3": _gemma3, "mamba": _mamba, "bert": _bert, "t5": _t5}
