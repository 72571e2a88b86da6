"""llama.cpp's output buffer under vocabularies as wide as real ones: its size is measured."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from parse_local.llama import library, scores
from parse_local.llama._bindings import lib
from parse_local.llama.context import Context
from parse_local.llama.context_params import OUTPUT_BYTES, max_rows
from parse_local.llama.model import Model
from parse_local.load_options import MAX_FORKS

TINY_VOCAB = 271


def buffer_bytes(context: Context) -> int:
    """What malloc has given llama.cpp for the rows."""
    if not sys.platform.startswith("linux") or library.gpus():
        pytest.skip("needs glibc's malloc, and the buffer in main memory")
    usable_size = ctypes.CDLL(None).malloc_usable_size
    usable_size.restype, usable_size.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return int(usable_size(ctypes.cast(lib.llama_get_logits(context.handle), ctypes.c_void_p)))


@pytest.fixture(scope="module", params=[151_936, 262_144])
def wide(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Iterator[Model]:
    n_unused = request.param - TINY_VOCAB
    model = Model(tiny(seed=1, n_embd=32, n_unused=n_unused, dtype=np.float16))
    assert model.n_vocab == request.param
    yield model
    model.close()


@pytest.fixture
def context(wide: Model) -> Iterator[Context]:
    # llama.cpp keeps a row for each sequence, so forks count against the buffer as well.
    context = Context(wide, n_ctx=1024, n_fork_cells=MAX_FORKS, max_forks=MAX_FORKS, n_threads=2)
    yield context
    context.close()


def test_a_long_draft_is_scored_in_chunks_that_fit(context: Context) -> None:
    n_vocab = context.model.n_vocab
    at_rest = buffer_bytes(context)
    assert at_rest >= 4 * n_vocab * (context.max_forks + 1)
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 256, 700)]
    n_rows, best = [], []
    for start, rows in context.decode(tokens, n_rows=len(tokens)):
        assert start == sum(n_rows)
        n_rows.append(len(rows))
        best += scores.argmax(rows, n_threads=2).tolist()
        assert buffer_bytes(context) >= 4 * n_vocab * len(rows)
    assert sum(n_rows) == 700
    assert max(n_rows) == max_rows(n_vocab) == {151_936: 263, 262_144: 152}[n_vocab]
    assert at_rest <= buffer_bytes(context) <= OUTPUT_BYTES == 160_000_000
    # The chunks are what one row at a time is, but for near-ties of half-precision weights.
    context.truncate(600)
    again = [context.greedy(token) for token in tokens[600:]]
    assert sum(a == b for a, b in zip(best[600:], again, strict=True)) >= 98


def test_the_forks_of_one_batch_fit(context: Context) -> None:
    n_vocab = context.model.n_vocab
    assert context.max_forks == {151_936: 255, 262_144: 151}[n_vocab]
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 256, 260)]
    context.prefill([*tokens, 0])
    cuts = list(range(1, 256))
    found = context.judge(cuts, [5], [30, 31])
    assert buffer_bytes(context) <= OUTPUT_BYTES
    some = [1, 100, 151, 152, 255]
    plain = context.judge_sequentially(tokens, some, [5], [30, 31])
    np.testing.assert_allclose(found[[c - 1 for c in some]], plain, atol=0.05)


@pytest.mark.parametrize(("n_vocab", "expected"), [(271, 512), (10**6, 40), (10**8, 2)])
def test_rows_at_once(n_vocab: int, expected: int) -> None:
    # At most a micro-batch; two rows even where they are larger than the bound: a fork needs them.
    assert max_rows(n_vocab) == expected
