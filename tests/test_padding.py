"""Cost-padded targets: the same logits from more blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from parse_local.bench.padding import pad
from parse_local.errors import ModelError, UsageError
from parse_local.llama.context import Context
from parse_local.llama.model import Model


def logits(path: Path) -> np.ndarray:
    model = Model(path, n_gpu_layers=0)
    context = Context(model, n_ctx=128, n_threads=1, kv_type="f32", flash_attn="off")
    tokens = model.tokenize("hello there, world")
    rows = [r.copy() for _, r in context.decode(tokens, n_rows=len(tokens))]
    context.close()
    model.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3moe"])
def test_logits_are_those_of_the_target(
    tiny: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    source = tiny(architecture=architecture, n_layer=2)
    n_more = pad(source, tmp_path / "padded.gguf", 3)
    assert n_more >= 4
    np.testing.assert_array_equal(logits(tmp_path / "padded.gguf"), logits(source))


def test_cost_is_k_times_the_bytes_that_a_token_reads(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    source = tiny(n_layer=2)
    pad(source, tmp_path / "padded.gguf", 4)

    def read(path: Path) -> int:
        tensors = gguf.GGUFReader(path).tensors
        return sum(int(t.n_bytes) for t in tensors if t.name.startswith(("blk.", "output.weight")))

    assert read(tmp_path / "padded.gguf") / read(source) == pytest.approx(4, abs=0.2)
    fields = gguf.GGUFReader(tmp_path / "padded.gguf").fields
    assert fields["general.name"].contents() == "tiny padded 4x"
    assert fields["tokenizer.ggml.tokens"].contents() == (
        gguf.GGUFReader(source).fields["tokenizer.ggml.tokens"].contents()
    )


def test_one_times_is_the_target_itself(tiny: Callable[..., Path], tmp_path: Path) -> None:
    assert pad(tiny(n_layer=2), tmp_path / "padded.gguf", 1) == 0


def test_what_cannot_be_padded_is_said(tiny: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "padded.gguf"
    with pytest.raises(ModelError, match="not all plain attention blocks"):
        pad(tiny(architecture="mamba"), out, 2)
    with pytest.raises(UsageError, match="at least 1 times"):
        pad(tiny(), out, 0.5)
    with pytest.raises(UsageError, match=r"llama\.cpp takes 512"):
        pad(tiny(n_layer=2), out, 600)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        pad(damaged, out, 2)
    with pytest.raises(UsageError, match="Cannot write"):
        pad(tiny(), tmp_path / "missing" / "padded.gguf", 2)
    assert not out.exists()
    assert not list(tmp_path.glob("*.part"))
