"""Several conversations in one cache: what is reused, what is kept, what goes, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parse_local.llama.context import Context
from parse_local.llama.conversations import MIN_TOKENS
from parse_local.llama.model import Model

Tiny = Callable[..., Path]
EXACT = {"n_threads": 1, "kv_type": "f32", "flash_attn": "off"}


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


@pytest.fixture
def make(model: Model) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def context(which: Model = model, **arguments: Any) -> Context:
        made.append(Context(which, **{"n_ctx": 256, **EXACT, **arguments}))
        return made[-1]

    yield context
    for context_ in made:
        context_.close()


def some(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 256, n)]


def read(context: Context, tokens: list[int]) -> tuple[int, np.ndarray]:
    """Tokens reused for a prompt, and the output row behind it."""
    context.start_count()
    context.resume(tokens)
    context.prefill(tokens)
    row = context.last_row(tokens[-1:])[0].copy()
    assert context.tokens == tokens
    return context.n_reused or 0, row


def fresh_row(make: Callable[..., Context], tokens: list[int], **arguments: Any) -> np.ndarray:
    return read(make(**arguments), tokens)[1]


A, B, C = some(100, seed=1), some(80, seed=2), some(60, seed=3)
SYSTEM = some(40, seed=9)


def test_conversations_take_turns(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=512)
    assert [read(context, tokens)[0] for tokens in (A, B, C)] == [0, 0, 0]
    assert context.n_cached == 2
    so_far = {"A": A, "B": B, "C": C}
    for i, name in enumerate("ABCBACAB"):
        longer = [*so_far[name], *some(20, seed=20 + i)]
        n, row = read(context, longer)
        assert n == len(so_far[name])
        so_far[name] = longer
        np.testing.assert_allclose(row, fresh_row(make, longer), rtol=0, atol=1e-5)


def test_none_is_kept_by_default(make: Any) -> None:
    context = make()
    assert [read(context, tokens)[0] for tokens in (A, B, A, A)] == [0, 0, 0, 99]
    assert context.n_cached == 0
    assert context.n_cells == 256


def test_what_prompts_share_is_read_once_and_both_stay(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=512)
    first, second = SYSTEM + A, SYSTEM + B
    assert read(context, first)[0] == 0
    n, row = read(context, second)
    assert n == len(SYSTEM)
    np.testing.assert_allclose(row, fresh_row(make, second), rtol=0, atol=1e-5)
    n, row = read(context, [*first, 1])
    assert n == len(first)
    np.testing.assert_allclose(row, fresh_row(make, [*first, 1]), rtol=0, atol=1e-5)
    assert read(context, [*second, 1])[0] == len(second)
    # What a third one shares with a cached one comes from there, which stays as well.
    assert read(context, SYSTEM + A[:50] + C)[0] == len(SYSTEM) + 50
    assert read(context, [*first, 1, 2])[0] == len(first) + 1


def test_the_one_that_ran_least_recently_goes_first(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=768)
    d = some(70, seed=4)
    for tokens in (A, B, C):
        read(context, tokens)
    assert read(context, [*A, 1])[0] == len(A)  # now B is the oldest
    assert read(context, d)[0] == 0
    assert read(context, [*C, 1])[0] == len(C)
    assert read(context, [*A, 1, 2])[0] == len(A) + 1
    assert read(context, B)[0] == 0


def test_an_answer_has_its_whole_context_whatever_is_cached(make: Any) -> None:
    # 256 cells for the main sequence, none for others: they are kept while there is room.
    context = make(n_cached=4)
    assert context.n_cells == 256
    for tokens in (A, B, C):  # 240 cells
        read(context, tokens)
    assert context.n_cached == 2
    d = some(256, seed=7)
    n, row = read(context, d)
    assert n == 0
    assert context.n_cached == 0  # C too: its cells were needed
    np.testing.assert_allclose(row, fresh_row(make, d), rtol=0, atol=1e-5)


def test_the_oldest_goes_for_a_few_cells_and_the_others_stay(make: Any) -> None:
    context = make(n_cached=4)
    for tokens in (A, B, C):  # A and B are cached, 16 cells are free
        read(context, tokens)
    for i in range(17):
        context.last_row([i])
    assert context.n_cached == 1
    assert read(context, [*B, 1])[0] == len(B)


def test_forks_of_a_full_cache_push_cached_conversations_out(make: Any) -> None:
    suffix, labels = [5, 17, 40, 3], [30, 31]
    context = make(n_cached=4, n_fork_cells=256, max_forks=8)  # 512 cells
    read(context, some(200, seed=5))
    read(context, some(200, seed=6))
    tokens = some(100, seed=7)
    context.resume(tokens)
    context.prefill([*tokens, 0])
    cuts = [10, 30, 50, 70, 90, 100]
    assert context.n_cached == 2  # 12 cells are free, and 24 are needed
    found = context.judge(cuts, suffix, labels)
    assert context.n_cached == 1
    np.testing.assert_allclose(
        found, context.judge_sequentially(tokens, cuts, suffix, labels), rtol=0, atol=1e-5
    )
    assert read(context, [*some(200, seed=6), 1])[0] == 200


def test_little_is_neither_kept_nor_fetched(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=512)
    read(context, A)
    assert read(context, A[: 101 - MIN_TOKENS] + B)[0] == 101 - MIN_TOKENS
    assert context.n_cached == 0  # only MIN_TOKENS - 1 of its tokens are gone
    assert read(context, B[:40] + C)[0] == 0
    assert context.n_cached == 1
    read(context, B[: 40 + MIN_TOKENS - 1])
    assert context.n_reused == 40  # so few more would have come out of the cache


def test_clearing_drops_them_all(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=512)
    for tokens in (A, B, C):
        read(context, tokens)
    context.clear()
    assert context.n_cached == 0
    assert [read(context, tokens)[0] for tokens in (A, B, C)] == [0, 0, 0]
