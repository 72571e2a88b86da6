"""Several conversations in one cache: what is reused, what is kept, what goes, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse_local.llama._bindings import lib
from parse_local.llama.context import Context
from parse_local.llama.conversations import MIN_TOKENS, TURN_TOKENS
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


@pytest.mark.parametrize("copies", [False, True])
def test_conversations_take_turns(make: Any, copies: bool) -> None:
    context = make(n_cached=2, n_cached_cells=512, copies=copies)
    assert lib.llama_n_ctx(context.handle) == (256 if copies else 768)
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


@pytest.mark.parametrize("copies", [False, True])
def test_an_answer_that_its_next_turn_spells_anew_is_not_kept(make: Any, copies: bool) -> None:
    context = make(n_cached=2, n_cached_cells=512, copies=copies)
    opening = some(4, seed=30)  # of the reply; the next turn leaves it out
    read(context, A + opening)
    context.last_row(some(40, seed=31))  # an answer with its reasoning
    assert read(context, A + C)[0] == len(A)
    assert context.n_cached == 0
    # The same of a conversation that was not running.
    context.last_row(some(40, seed=32))
    read(context, B)
    assert context.n_cached == 1
    assert read(context, A + C + some(20, seed=33))[0] == len(A + C)
    assert context.n_cached == 1  # B
    # The same prompt again asks for another answer, and the first one stays.
    context.last_row(some(40, seed=34))
    assert read(context, A + C + some(20, seed=33))[0] == len(A + C) + 19
    assert context.n_cached == 2


def test_another_short_question_after_a_system_prompt_is_another_conversation(make: Any) -> None:
    context = make(n_cached=2, n_cached_cells=512)
    ending = some(5, seed=30)  # ChatML's: the end of the turn, and the opening of the reply
    first, second = ([*SYSTEM, token, *ending] for token in (1, 2))
    read(context, first)
    context.last_row(C)
    assert read(context, second)[0] == len(SYSTEM)
    assert context.n_cached == 1
    assert read(context, [*first, *C, 3])[0] == len(first) + len(C)


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


# against a book that is kept by hand


@dataclass(eq=False)
class Entry:
    """A conversation in the book: (token, cell) pairs, and the length of its last prompt."""

    cells: list[tuple[int, int]]
    n_prompt: int = 0

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.cells]

    def shared(self, tokens: list[int]) -> int:
        n = 0
        while n < min(len(self.cells), len(tokens)) and self.cells[n][0] == tokens[n]:
            n += 1
        return n

    def all_but_little_of(self, tokens: list[int]) -> bool:
        return len(tokens) - self.shared(tokens) < MIN_TOKENS

    def answered(self, n_shared: int, prompt: list[int]) -> bool:
        """Whether the prompt is its next turn, so that the rest is an answer spelled anew."""
        return 0 < self.n_prompt <= n_shared + TURN_TOKENS and n_shared + 1 < len(prompt)


class Book:
    """What a cache of so many cells holds, cell by cell, by the rules of the documentation."""

    def __init__(self, n_cells: int, n_max: int) -> None:
        self.n_cells = n_cells
        self.n_max = n_max
        self.main = Entry([])
        self.cached: list[Entry] = []
        self._n_written = 0

    def open(self, prompt: list[int]) -> None:
        usable = prompt[:-1]  # the last one has to be decoded
        main, own = self.main, self.main.tokens
        n_main = main.shared(usable)
        found = max(self.cached, key=lambda c: c.shared(usable), default=Entry([]))
        n_found = found.shared(usable)
        moves = n_found >= n_main + MIN_TOKENS
        lost = len(own) - (0 if moves else n_main)
        if lost >= MIN_TOKENS and (moves or not main.answered(n_main, prompt)):
            held = [c for c in self.cached if c.all_but_little_of(own)]
            if held:
                self.cached.remove(held[0])
                self.cached.append(held[0])
            else:
                outgrown = [c for c in self.cached if main.all_but_little_of(c.tokens)]
                self.cached = [
                    c for c in self.cached if c not in outgrown or (moves and c is found)
                ]
                self.cached.append(Entry(main.cells, main.n_prompt))
        if moves:
            self.main = Entry(found.cells[:n_found])
            if len(found.cells) - n_found < MIN_TOKENS or found.answered(n_found, prompt):
                self.cached.remove(found)
        self.cached = self.cached[max(0, len(self.cached) - self.n_max) :]

    def cut(self, prompt: list[int]) -> int:
        n = self.main.shared(prompt[:-1])
        self.main = Entry(self.main.cells[:n], len(prompt) - 1)
        return n

    def decode(self, tokens: list[int]) -> None:
        self.make_room(len(tokens))
        for token in tokens:
            self.main.cells.append((token, self._n_written))
            self._n_written += 1

    def make_room(self, n: int) -> None:
        while len({cell for c in [self.main, *self.cached] for _, cell in c.cells}) + n > (
            self.n_cells
        ):
            self.cached = self.cached[1:]


PIECES = [some(n, seed=100 + n) for n in (5, 20, 31, 33, 40, 64)]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    copies=st.sampled_from([False, False, True]),
    n_cached=st.integers(1, 4),
    n_cached_cells=st.sampled_from([0, 256]),
    requests=st.lists(
        st.tuples(
            st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=5),
            st.sampled_from([0, 1, 3, 40]),  # tokens that are written behind the prompt
            st.booleans(),  # whether verdicts are asked for
        ),
        min_size=2,
        max_size=14,
    ),
)
def test_any_requests_find_what_the_book_says(
    model: Model, copies: bool, n_cached: int, n_cached_cells: int, requests: Any
) -> None:
    arguments: dict[str, Any] = {"n_ctx": 224, "n_fork_cells": 32, "max_forks": 4, **EXACT}
    context = Context(
        model, n_cached=n_cached, n_cached_cells=n_cached_cells, copies=copies, **arguments
    )
    plain = Context(model, **arguments)
    book = Book(10**6 if copies else 256 + n_cached_cells, n_cached)
    try:
        for pieces, n_written, judged in requests:
            prompt = [t for i in pieces for t in PIECES[i]][:180]
            n_reused, row = read(context, prompt)
            book.open(prompt)
            assert n_reused == book.cut(prompt)
            if prompt[n_reused:-1]:
                book.decode(prompt[n_reused:-1])
            book.decode(prompt[-1:])
            plain.clear()
            np.testing.assert_allclose(row, read(plain, prompt)[1], rtol=0, atol=2e-5)
            for token in range(n_written):
                context.last_row([token])
                book.decode([token])
            if judged:
                cuts = [len(prompt) // 2, len(prompt)]
                found = context.judge(cuts, [5, 17, 40, 3], [30, 31])
                book.make_room(8)
                expected = plain.judge_sequentially(prompt, cuts, [5, 17, 40, 3], [30, 31])
                np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
            assert context._conversations is not None
            held = [c.tokens for c in context._conversations.cached]
            assert held == [c.tokens for c in book.cached]
            assert context.tokens == book.main.tokens
    finally:
        context.close()
        plain.close()


# memories that are not shared


@pytest.mark.parametrize("architecture", ["gemma3", "mamba", "lfm2", "qwen35"])
def test_other_memories_keep_copies(tiny: Tiny, make: Any, architecture: str) -> None:
    model = Model(tiny(seed=3, architecture=architecture, n_layer=2))
    context = make(model, n_cached=2, n_cached_cells=512)
    assert lib.llama_n_ctx(context.handle) == 256
    for tokens in (A, B, C):
        read(context, tokens)
    longer = [*A, *some(50, seed=20)]
    for prompt, n_reused in (
        (longer, len(A)),
        ([*B, *some(40, seed=21)], len(B)),
        ([*longer, 1, 2], len(longer)),
        # Another answer to the last prompt of B, and one to half of A.
        ([*B, *some(39, seed=21), *some(40, seed=22)], len(B) + 39),
        ([*A, *some(20, seed=20), *some(40, seed=23)], 0),
        ([*longer, 1, 2, 3], len(longer) + 2),
        # What was fetched is cut: by a little, and by a lot.
        ([*longer, 1, 2, 3, 4], len(longer) + 3),
        ([*longer, 1, 2, 3, 5], len(longer) + 3),
        ([*longer, 1], 0),
    ):
        n, row = read(context, prompt)
        assert n == n_reused
        np.testing.assert_allclose(row, fresh_row(make, prompt, which=model), rtol=0, atol=2e-3)
    context.close()
