"""Decoding token by token without a row in Python: the same tokens, errors and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_local.errors import Cancelled, ContextLengthError, DecodeError
from parse_local.llama import library, scores
from parse_local.llama._bindings import lib
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.conversations import n_common
from parse_local.llama.decode_call import poll
from parse_local.llama.model import Model
from parse_local.llama.sampler import Sampler

SHAPE: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "kv_type": "f32", "flash_attn": "off"}
N_VOCAB = 271


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


@pytest.fixture(params=["shim", "numpy"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(library, "shim", lambda: None)
    elif library.shim() is None:
        pytest.skip("libparse_local is not beside this llama.cpp")


@pytest.fixture
def make(model: Model) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def context(which: Model = model, **arguments: Any) -> Context:
        made.append(Context(which, **{**SHAPE, **arguments}))
        return made[-1]

    yield context
    for context_ in made:
        context_.close()


def test_three_ways_write_the_same(make: Any) -> None:
    # On float32 weights: one call into C, C over the row, numpy over the row.
    sequences, counts = [], []
    for way in ("one call", "row", "numpy"):
        context = make()
        sequence = [1, 2, 3, 4]
        context.prefill(sequence)
        with pytest.MonkeyPatch.context() as patch:
            if way == "numpy":
                patch.setattr(library, "shim", lambda: None)
            for _ in range(100):
                if way == "row":
                    row = context.last_row(sequence[-1:])
                    sequence.append(int(scores.argmax(row, n_threads=1)[0]))
                else:
                    sequence.append(context.greedy(sequence[-1]))
        assert context.tokens == sequence[:-1]
        sequences.append(sequence)
        counts.append((context.n_decoded, context.n_reused))
    assert sequences[0] == sequences[1] == sequences[2]
    assert len(set(sequences[0])) > 10
    assert counts == [(103, 0)] * 3


@pytest.mark.parametrize("shape", [{}, {"repeat_penalty": 1.3}, {"temperature": 0.8, "seed": 5}])
def test_advancing_is_decoding_and_choosing(make: Any, model: Model, shape: Any) -> None:
    written = []
    for whole_rows in (False, True):
        context, sampler = make(), Sampler(model, **shape)
        sequence = [1, 2, 3, 4]
        context.prefill(sequence)
        for _ in range(60):
            if whole_rows:
                row = context.last_row(sequence[-1:]).copy()
                sequence.append(sampler.choose(row[0], sequence))
            else:
                sequence.append(sampler.advance(context, sequence[-1], sequence))
        written.append(sequence)
        assert context.n_decoded == 63
    assert written[0] == written[1]


@pytest.mark.usefixtures("path")
def test_what_cannot_be_decoded_changes_nothing(make: Any) -> None:
    cancel = CancelFlag()
    context = make(cancel=cancel)
    tokens = [int(t) for t in np.random.default_rng(2).integers(0, 256, 255)]
    context.prefill([*tokens, 0])
    cancel.set()
    with pytest.raises(Cancelled):
        context.greedy(3)
    cancel.clear()
    with pytest.raises(DecodeError, match=r"failed to decode with tiny.*code -1"):
        context.greedy(N_VOCAB)
    assert context.tokens == tokens
    assert context.n_decoded == 255
    fresh = make()
    fresh.prefill([*tokens, 0])
    assert context.greedy(3) == fresh.greedy(3)
    with pytest.raises(ContextLengthError, match=r"257 tokens .* 256; raise --ctx"):
        context.greedy(3)
    assert len(context.tokens) == 256


@pytest.mark.usefixtures("path")
def test_a_cancel_within_the_step(make: Any) -> None:
    cancel = CancelFlag()
    context = make(cancel=cancel)
    context.prefill([1, 2, 3, 4])
    expected = context.greedy(4)
    context.truncate(3)

    def at_once(_: Any) -> bool:
        cancel.set()
        return True

    callback = lib.ggml_abort_callback(at_once)
    lib.llama_set_abort_callback(context.handle, callback, None)
    with pytest.raises(Cancelled):
        context.greedy(4)
    cancel.clear()
    context.abort_callback = poll(context.handle, context.cancel)
    assert context.tokens == [1, 2, 3]
    assert context.greedy(4) == expected


@pytest.mark.usefixtures("path")
def test_a_model_whose_output_is_no_number(tiny: Any, make: Any) -> None:
    model = Model(tiny(seed=1, bias={"a": float("nan")}))
    context = make(model)
    with pytest.raises(DecodeError, match=r"NaN or infinite .*; .* download it again"):
        context.greedy(1)
    context.close()
    model.close()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.lists(st.integers(0, 2), max_size=10),
    st.lists(st.integers(0, 2), max_size=10),
    st.integers(-1, 60),
)
def test_what_two_sequences_share(
    common: list[int], rest: list[int], other: list[int], limit: int
) -> None:
    a, b = common + rest, (*common, *other)
    limit = min(limit, len(a), len(b))
    pairs = zip(a, b, strict=False)
    expected = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
    assert n_common(a, b, limit) == max(0, min(expected, limit))
