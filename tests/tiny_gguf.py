"""Writes tiny random-weight GGUF files, so that unit tests run on the real llama.cpp.

A one-layer, 64-wide llama-architecture model is enough for everything that
concerns the KV cache, the chat template and the tokeniser. Weights are F32 unless
asked otherwise, so that results of differently shaped batches agree to rounding error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from tiny_architectures import WRITERS, Layers, llama

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

_WRITES_BACK = (
    "attn_output.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "ssm_out.weight",
    "shortconv.out_proj.weight",
)
# Matrices whose result is added to the residual stream.


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
        architecture: a name in `tiny_architectures.WRITERS`: llama; gemma3 (a sliding
            window of 32 tokens on every second layer); qwen2vl (positions of several
            dimensions); mamba and mamba2 (recurrent); jamba,
            granitehybrid, lfm2, qwen35 and qwen3next (hybrid: attention on every second
            layer); qwen3moe; bert (embedding model); t5 (encoder and decoder). Any
            other name gives llama's tensors under that name.
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
        if bias and name.endswith(_WRITES_BACK):
            values[..., 0, :] = 0.0  # the first dimension stays the constant that carries the bias
        w.add_tensor(name, values.astype(dtype))

    def per_token(*, gain: float) -> np.ndarray:
        values = matrix(n_vocab - n_unused, n_embd, gain=gain)
        values[: len(order)] = values[order]
        return np.concatenate([values, np.zeros((n_unused, n_embd))])

    embedding = per_token(gain=8.0)
    if bias:
        embedding[:, 0] = 2.0
    w.add_tensor("token_embd.weight", embedding.astype(dtype))
    write = write_layers or WRITERS.get(architecture, llama)
    write(w, add, n_layer, n_embd, n_ff)
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
