"""Writes tiny random-weight GGUF files, so that unit tests run on the real llama.cpp.

A one-layer, 64-wide llama-architecture model is enough for everything that
concerns the KV cache, the chat template and the tokeniser. Weights are F32, so
that results of differently shaped batches agree to rounding error.
"""

from __future__ import annotations

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
    eos_bias: float = 0.0,
    causal: bool = True,
) -> Path:
    """Write one model file.

    Args:
        path: where to.
        seed: of the weights; models with the same seed are the same model.
        vocab_seed: shuffles the token ids, which makes another vocabulary of the same texts.
        template: chat template, None for a file without one.
        scale: of the output matrix; larger makes the distributions more peaked.
        weights_from: seed of another model that this one is close to: the
            weights are that model's with a little noise, so that drafts agree often.
        eos_bias: added to the row of <|im_end|> along the mean direction; not exact, only a tilt.
    """
    rng = np.random.default_rng(seed if weights_from is None else weights_from)
    noise = np.random.default_rng(seed)
    tokens = byte_symbols() + [m.replace(" ", "") for m in MERGES]
    if vocab_seed is not None:
        order = np.random.default_rng(vocab_seed).permutation(len(tokens))
        tokens = [tokens[i] for i in order]
    tokens += SPECIAL
    n_vocab = len(tokens)
    n_head, n_ff = 4, 2 * n_embd

    w = gguf.GGUFWriter(path, architecture)
    w.add_name("tiny")
    w.add_context_length(n_ctx)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head // 2)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(n_embd // n_head)
    w.add_vocab_size(n_vocab)
    if not causal:
        w.add_causal_attention(False)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([1] * (n_vocab - len(SPECIAL)) + [3] * len(SPECIAL))
    w.add_token_merges(MERGES)
    w.add_eos_token_id(n_vocab - 1)
    w.add_bos_token_id(n_vocab - 3)
    w.add_add_bos_token(False)
    if template is not None:
        w.add_chat_template(template)

    def add(name: str, *shape: int, gain: float = 1.0) -> None:
        values = rng.standard_normal(shape) * gain / np.sqrt(shape[-1])
        if weights_from is not None:
            values = values + 0.05 * noise.standard_normal(shape) * gain / np.sqrt(shape[-1])
        w.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", n_vocab, n_embd, gain=8.0)
    for i in range(n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n_embd, np.float32))
        add(f"blk.{i}.attn_q.weight", n_embd, n_embd, gain=2.0)
        add(f"blk.{i}.attn_k.weight", n_embd // 2, n_embd, gain=2.0)
        add(f"blk.{i}.attn_v.weight", n_embd // 2, n_embd, gain=2.0)
        add(f"blk.{i}.attn_output.weight", n_embd, n_embd, gain=2.0)
        w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(n_embd, np.float32))
        add(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        add(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    w.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    output = rng.standard_normal((n_vocab, n_embd)) * scale / np.sqrt(n_embd)
    if weights_from is not None:
        output = output + 0.05 * noise.standard_normal(output.shape) * scale / np.sqrt(n_embd)
    w.add_tensor("output.weight", output.astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
