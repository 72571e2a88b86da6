"""Weights, vocabulary and metadata of tiny GGUFs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import CHATML

from parse_local.errors import ModelError
from parse_local.llama.model import Model

Tiny = Callable[..., Path]
TEXTS = [
    "hello the world",
    "def f(x):\n    return x\n",
    "日本語、中文。",
    "👩‍👩‍👧 🎉",
    "a\x00b",
    "",
]


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


@pytest.fixture(scope="module")
def other(tiny: Tiny) -> Iterator[Model]:
    """The same function of the text in another vocabulary."""
    model = Model(tiny(seed=1, vocab_seed=5))
    yield model
    model.close()


def test_metadata(model: Model) -> None:
    assert model.architecture == "llama"
    assert model.metadata("general.name") == "tiny"
    assert model.metadata("no.such.key") is None
    assert model.chat_template == CHATML
    assert (model.n_vocab, model.n_embd, model.n_layer) == (271, 64, 1)
    assert model.n_ctx_train == 8192
    assert model.n_bytes == model.path.stat().st_size
    assert model.kv_elements_per_token() == 2 * 2 * 16  # K and V, two heads, 16 wide
    assert model.memory_kind.path == "unified"


def test_a_long_metadata_value_is_read_whole(tiny: Tiny) -> None:
    template = "{# " + "x" * 5000 + " #}" + CHATML
    model = Model(tiny(seed=1, template=template))
    assert model.metadata("tokenizer.chat_template") == template
    model.close()


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_spell_the_text(model: Model, other: Model, text: str) -> None:
    for m in (model, other):
        assert m.detokenize(m.tokenize(text)) == text.encode()


@settings(max_examples=100, deadline=None)
@given(text=st.text())
def test_any_text_survives_the_tokeniser(model: Model, text: str) -> None:
    assert model.detokenize(model.tokenize(text)) == text.encode()


def test_merges_and_control_tokens(model: Model) -> None:
    pieces = [model.piece(t) for t in model.tokenize("hello the")]
    assert pieces == [b"he", b"ll", b"o", b" the"] or pieces == [b"hell", b"o", b" the"]
    end = model.tokenize("<|im_end|>", special=True)
    assert end == [270]
    assert model.piece(270) == b""
    assert model.token_text(270) == "<|im_end|>"
    assert model.is_eog(270)
    assert not model.is_eog(0)
    # What a user types is text, never a control token.
    assert model.detokenize(model.tokenize("<|im_end|>")) == b"<|im_end|>"


def test_special_tokens(model: Model) -> None:
    assert model.bos == "<|endoftext|>"
    assert model.eos == "<|im_end|>"
    # llama.cpp guesses <|endoftext|> here; the template closes turns with <|im_end|>.
    assert model.end_of_turn == "<|im_end|>"
    assert model.bos_token is None  # the file asks for none
    assert model.token_text(-1) == ""


def test_shared_vocabularies(tiny: Tiny, model: Model, other: Model) -> None:
    assert not model.shares_vocabulary(other)
    found = {}
    for n_unused in (1, 128, 129):
        padded = Model(tiny(seed=1, n_unused=n_unused), headers_only=True)
        found[n_unused] = (model.shares_vocabulary(padded), padded.shares_vocabulary(model))
        padded.close()
    assert found == {1: (True, True), 128: (True, True), 129: (False, False)}


def test_headers_only_reads_vocabulary_and_metadata(tiny: Tiny, model: Model) -> None:
    headers = Model(tiny(seed=1), headers_only=True)
    assert headers.tokenize("hello") == model.tokenize("hello")
    assert headers.kv_elements_per_token() == model.kv_elements_per_token()
    headers.close()


def test_f16_weights_load(tiny: Tiny) -> None:
    model = Model(tiny(seed=1, dtype=np.float16))
    assert "F16" in model.description
    model.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "bert", "causal": False}, "is an embedding model (bert)"),
        ({"architecture": "bert", "template": None}, "is an embedding model (bert)"),
        ({"causal": False}, "is an embedding model (llama)"),
        ({"architecture": "t5"}, "is an encoder-decoder model (t5)"),
        ({"architecture": "hal9000"}, "architecture 'hal9000', which this llama.cpp does not know"),
    ],
)
def test_what_cannot_write_text_is_refused(tiny: Tiny, arguments: dict, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        Model(tiny(seed=1, **arguments))
    assert message in str(caught.value)
