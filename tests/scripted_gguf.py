"""Writes tiny GGUF files that say what a test wants, on the real llama.cpp.

A one-layer llama whose only head looks at the token before (rotary positions allow that), and
whose output matrix holds a table: the last two tokens → the next one. So a model follows a
script of tokens as long as no two of them in a row occur twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from tiny_gguf import byte_symbols

LOGIT = 30.0


def write_scripted_gguf(
    path: Path,
    scripts: Mapping[tuple[str, str], Sequence[str]],
    *,
    template: str,
    words: Sequence[str] = (),
    controls: Sequence[str] = (),
    unread: Sequence[str] = (),
    eos: str = "<|im_end|>",
    shuffle: bool = False,
) -> Path:
    """Write one model file.

    Args:
        path: where to.
        scripts: tokens to be written behind two others; behind the last of them, `eos`.
        template: chat template.
        words: tokens of several letters, which the tokenizer finds in any text.
        controls: control tokens.
        unread: those of the words that it finds in none, so that only the model uses them.
        eos: which of them ends an answer.
        shuffle: another order of the vocabulary.
    """
    words = [w for w in words if w not in byte_symbols()]
    tokens = [*byte_symbols(), *words, *controls]
    types = [1] * 256 + [1 if w in unread else 4 for w in words] + [3] * len(controls)
    if shuffle:
        order = np.random.default_rng(1).permutation(len(tokens))
        tokens, types = [tokens[i] for i in order], [types[i] for i in order]
    known = {t: i for i, t in enumerate(tokens)}
    n = len(tokens)
    w = gguf.GGUFWriter(path, "llama")
    w.add_name("scripted")
    w.add_context_length(4096)
    n_embd = 2 * n + (2 * n) % 4
    w.add_embedding_length(n_embd)
    w.add_block_count(1)
    w.add_feed_forward_length(8)
    w.add_head_count(1)
    w.add_head_count_kv(1)
    w.add_rope_dimension_count(n_embd)
    w.add_vocab_size(n)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(["Ġ t"])
    w.add_eos_token_id(known[eos])
    w.add_add_bos_token(False)
    w.add_chat_template(template)

    def add(name: str, values: np.ndarray) -> None:
        w.add_tensor(name, values.astype(np.float32))

    this, before = np.eye(n, n_embd), np.eye(n, n_embd, n)
    scale = 1 / np.sqrt(n_embd)  # of what the norm makes of one 1 among zeros
    add("token_embd.weight", this)
    add("blk.0.attn_norm.weight", np.ones(n_embd))
    # Every query and key is the same but for its position, and they meet at a distance of one.
    angles = 10000.0 ** (-np.arange(0, n_embd, 2) / n_embd)
    fast = (angles > 0.2).astype(float)
    key = np.stack([fast, 0 * angles], axis=1).ravel()
    query = np.stack([fast * np.cos(angles), -fast * np.sin(angles)], axis=1).ravel()
    same = (np.arange(n_embd) < n) * scale
    strength = 400 * np.sqrt(n_embd) / fast.sum()
    add("blk.0.attn_q.weight", np.outer(query, same) * strength)
    add("blk.0.attn_k.weight", np.outer(key, same))
    add("blk.0.attn_v.weight", before.T @ this * scale)
    add("blk.0.attn_output.weight", np.eye(n_embd))
    add("blk.0.ffn_norm.weight", np.ones(n_embd))
    add("blk.0.ffn_gate.weight", np.zeros((8, n_embd)))
    add("blk.0.ffn_up.weight", np.zeros((8, n_embd)))
    add("blk.0.ffn_down.weight", np.zeros((n_embd, 8)))
    add("output_norm.weight", np.ones(n_embd))
    output = np.zeros((n, n_embd))
    output[known[eos], :n] = 0.1
    table = {}
    for start, script in scripts.items():
        said = [known[t] for t in (*start, *script, eos)]
        for one, two, three in zip(said, said[1:], said[2:], strict=False):
            assert table.setdefault((one, two), three) == three, "the same two tokens again"
    for (one, two), three in table.items():
        output[three, two] = output[three, n + one] = 1.0
    for (one, two), three in table.items():
        assert (output[:, two] + output[:, n + one]).argmax() == three, "an accidental third"
    add("output.weight", output * LOGIT / np.sqrt(n_embd / 2))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
