"""The patch `llama_memory_seq_fork`: a fork is what a copy (`llama_memory_seq_cp`) would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fork_cache import WINDOW, Cache, write_sliding_window_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import write_tiny_gguf

from parse_local.llama import library
from parse_local.llama._bindings import lib

pytestmark = pytest.mark.skipif(library.seq_fork() is None, reason="a stock llama.cpp is in use")

PROMPT = [int(token) for token in np.random.default_rng(1).integers(0, 200, 48)]


def _load(path: Any) -> Any:
    library.init()
    return lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # 128 wide, because a head has to fill a block of q8_0.
    model = _load(write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", n_embd=128))
    yield model
    lib.llama_model_free(model)


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("models") / "vision.gguf"
    model = _load(write_tiny_gguf(path, architecture="qwen2vl"))
    assert lib.llama_model_rope_type(model) == lib.LLAMA_ROPE_TYPE_MROPE
    yield model
    lib.llama_model_free(model)


@pytest.fixture(scope="module")
def window_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model = _load(write_sliding_window_model(tmp_path_factory.mktemp("models") / "window.gguf"))
    assert lib.llama_model_n_swa(model) == WINDOW
    yield model
    lib.llama_model_free(model)


@pytest.fixture
def cache(tiny_model: Any) -> Iterator[Cache]:
    cache = Cache(tiny_model)
    yield cache
    cache.close()


def assert_same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("p1", [1, 17, 47, 48])
def test_fork_sees_what_a_copy_sees(cache: Cache, p1: int) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, p1) == 0
    cache.copy(0, 2, 0, p1)
    assert cache.span(1) == cache.span(2) == (0, p1 - 1)
    forked, copied = cache.decode(1, p1, [5, 6, 7]), cache.decode(2, p1, [5, 6, 7])
    assert_same(forked, copied)
    assert not np.allclose(forked, cache.decode(0, 48, [5, 6, 7]), atol=1e-3) or p1 == 48


def test_fork_and_parent_do_not_see_each_others_new_tokens(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 20) == 0
    cache.decode(1, 20, [9] * 30)
    with_child = cache.decode(0, 48, [5])
    assert cache.drop(1)
    assert cache.drop(0, 48)
    assert_same(with_child, cache.decode(0, 48, [5]))
    assert cache.span(1) == (-1, -1)


def test_parent_cannot_lose_what_a_fork_sees(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 30) == 0
    assert cache.fork(0, 2, 20) == 0
    expected = cache.decode(1, 30, [5])
    for p0, p1 in [(0, -1), (29, -1), (0, 1), (19, 20), (29, 40)]:
        assert not cache.drop(0, p0, p1)
        assert cache.span(0) == (0, 47)
    assert cache.drop(0, 30)  # behind both forks
    assert cache.drop(1, 30)
    assert_same(cache.decode(1, 30, [5]), expected)
    assert cache.drop(1)
    assert not cache.drop(0, 19)  # the other fork is still there
    assert cache.drop(0, 20)
    assert cache.drop(2)
    assert cache.drop(0)
    assert cache.spans() == [(-1, -1)] * 4


def test_a_truncated_fork_releases_what_it_no_longer_sees(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 40) == 0
    cache.decode(1, 40, [5, 6])
    assert cache.drop(1, 10)  # below its fork point: only what it sees, not the parent's cells
    assert cache.spans()[:2] == [(0, 47), (0, 9)]
    assert not cache.drop(0, 9)
    assert cache.drop(0, 10)
    assert_same(cache.decode(1, 10, [7]), cache.decode(0, 10, [7]))


def test_forks_of_forks(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 30) == 0
    cache.decode(1, 30, [5, 6, 7])
    assert cache.fork(1, 2, 32) == 0  # sees two of the child's own tokens
    assert cache.fork(2, 3, 20) == 0  # sees only the prompt
    assert cache.spans() == [(0, 47), (0, 32), (0, 31), (0, 19)]
    grandchild, other = cache.decode(2, 32, [8]), cache.decode(3, 20, [8])
    assert not cache.drop(1, 31)
    assert cache.drop(1, 32)
    assert not cache.drop(1)
    assert cache.drop(2)  # its fork sees the prompt's cells and not its own
    assert cache.drop(1)
    assert_same(cache.decode(1, 0, [*PROMPT[:30], 5, 6, 8]), grandchild)
    assert cache.drop(1)
    assert_same(cache.decode(1, 0, [*PROMPT[:20], 8]), other)


def test_cells_that_a_fork_sees_are_not_used_again(tiny_model: Any) -> None:
    cache = Cache(tiny_model, n_ctx=256)
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 40) == 0
    cache.decode(1, 40, [3])
    for start in range(48, 248, 50):
        cache.decode(0, start, [start % 200] * 50)
    fresh = Cache(tiny_model)
    fresh.decode(0, 0, [*PROMPT[:40], 3])
    assert_same(cache.decode(1, 41, [4]), fresh.decode(0, 41, [4]))
    cache.close()
    fresh.close()


def test_forks_do_not_see_what_is_copied_into_their_parent_later(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    cache.decode(1, 0, PROMPT)
    assert cache.drop(1, 5, 10)  # a hole
    assert cache.fork(1, 2, 20) == 0
    cache.copy(1, 3, 0, 20)
    cache.copy(0, 1, 5, 10)
    assert_same(cache.decode(2, 20, [7]), cache.decode(3, 20, [7]))
    assert cache.drop(1)


def test_a_state_contains_what_a_fork_sees(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 30) == 0
    cache.decode(1, 30, [5, 6])
    state = cache.save(1)
    assert cache.load(2, state)
    assert cache.span(2) == (0, 31)
    expected = cache.decode(1, 32, [7])
    assert_same(cache.decode(2, 32, [7]), expected)
    cache.reload()
    assert cache.spans()[:3] == [(0, 47), (0, 32), (0, 32)]
    assert cache.drop(0)  # the forks of a restored context are copies
    assert cache.drop(1, 32)
    assert_same(cache.decode(1, 32, [7]), expected)


def test_a_state_cannot_replace_a_sequence_with_forks(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    state = cache.save(0)
    assert cache.fork(0, 1, 30) == 0
    assert not cache.load(0, state)
    assert cache.spans()[:2] == [(0, 47), (0, 29)]
    assert cache.drop(1)
    assert cache.load(0, state)


def test_what_is_removed_from_all_sequences_does_not_come_back_in_a_fork(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 30) == 0
    assert cache.drop(-1, 20)
    assert cache.spans()[:2] == [(0, 19), (0, 19)]
    cache.decode(0, 20, PROMPT[:20])
    assert cache.spans()[:2] == [(0, 39), (0, 19)]


def test_clear_forgets_forks(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 30) == 0
    cache.clear()
    assert cache.spans() == [(-1, -1)] * 4
    cache.decode(0, 0, PROMPT)
    assert cache.span(1) == (-1, -1)
    assert cache.drop(0)


@pytest.mark.parametrize(
    ("parent", "child", "p1", "code"),
    [
        (0, 0, 8, -1),
        (-1, 1, 8, -1),
        (0, 4, 8, -1),
        (0, 1000, 8, -1),
        (0, 2, 8, -2),
        (0, 1, 0, -3),
        (0, 1, -1, -3),
        (0, 1, 49, -3),
        (3, 1, 8, -3),
    ],
)
def test_fork_that_cannot_be_changes_nothing(
    cache: Cache, parent: int, child: int, p1: int, code: int
) -> None:
    cache.decode(0, 0, PROMPT)
    cache.decode(2, 0, PROMPT[:4])
    before = cache.spans()
    assert cache.fork(parent, child, p1) == code
    assert cache.spans() == before


def test_a_fork_is_not_forked_over(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 8) == 0
    assert cache.fork(0, 1, 9) == -2
    assert cache.span(1) == (0, 7)


def test_fork_of_a_sequence_without_its_beginning_is_refused(cache: Cache) -> None:
    cache.decode(0, 0, PROMPT)
    assert cache.drop(0, 0, 10)
    assert cache.fork(0, 1, 20) == -3


def test_separate_streams_are_refused_where_a_copy_would_abort(tiny_model: Any) -> None:
    cache = Cache(tiny_model, unified=False)
    cache.decode(0, 0, PROMPT)
    assert cache.fork(0, 1, 20) == -4
    cache.close()


def test_two_contexts_of_one_model_have_forks_of_their_own(tiny_model: Any) -> None:
    one, two = Cache(tiny_model), Cache(tiny_model)
    for cache in (one, two):
        cache.decode(0, 0, PROMPT)
    assert one.fork(0, 1, 30) == 0
    assert not one.drop(0)
    assert two.drop(0)
    assert (one.span(1), two.span(1)) == ((0, 29), (-1, -1))
    one.close()
    two.close()


def decode_long_text(cache: Cache, n_tokens: int = 640) -> list[int]:
    text = [int(token) for token in np.random.default_rng(2).integers(0, 256, n_tokens)]
    for start in range(0, n_tokens, 64):
        cache.decode(0, start, text[start : start + 64])
    return text


def test_window_of_full_size_forks_anywhere(window_model: Any) -> None:
    cache = Cache(window_model)
    text = decode_long_text(cache)
    for p1 in (1, 63, 64, 65, 300, 640):
        assert cache.fork(0, 1, p1) == 0
        forked = cache.decode(1, p1, [5, 6])
        for start in range(0, p1, 64):
            cache.decode(2, start, text[start : min(start + 64, p1)])
        assert_same(forked, cache.decode(2, p1, [5, 6]), 1e-4)
        assert cache.drop(1)
        assert cache.drop(2)
    cache.close()


def test_window_that_is_gone_is_refused_and_one_that_is_there_is_whole(window_model: Any) -> None:
    cache = Cache(window_model, swa_full=False)
    text = decode_long_text(cache)
    oldest, newest = cache.span(0)
    assert (oldest > 0, newest) == (True, 639)
    # a token at p1 sees the window's first token at p1 - WINDOW + 1
    first = oldest + WINDOW - 1
    assert cache.fork(0, 1, first - 1) == -3
    assert cache.span(1) == (-1, -1)
    assert cache.fork(0, 1, first) == 0
    forked = cache.decode(1, first, [5])
    fresh = Cache(window_model)
    for start in range(0, first, 64):
        fresh.decode(0, start, text[start : min(start + 64, first)])
    assert_same(forked, fresh.decode(0, first, [5]), 1e-4)
    # The parent goes on until its window has left the fork's cells behind: they stay.
    assert cache.drop(1, first)
    for start in range(640, 896, 64):
        cache.decode(0, start, text[:64])
    assert_same(forked, cache.decode(1, first, [5]), 1e-4)
    cache.close()
    fresh.close()


def test_a_parent_whose_window_moves_on_leaves_the_fork_its_cells(window_model: Any) -> None:
    forked, copied = Cache(window_model, swa_full=False), Cache(window_model, swa_full=False)
    for cache in (forked, copied):
        text = decode_long_text(cache)
    p1 = forked.span(0)[0] + WINDOW
    assert forked.fork(0, 1, p1) == 0
    copied.copy(0, 1, 0, p1)
    for start in range(640, 1920, 64):
        rows = [cache.decode(0, start, text[:64]) for cache in (forked, copied)]
        assert_same(*rows)
        assert forked.spans() == copied.spans()
    assert forked.span(0)[0] > p1  # the parent has lost what the fork sees
    assert_same(forked.decode(1, p1, [5]), copied.decode(1, p1, [5]))
    forked.close()
    copied.close()


# Random programs, run with forks and with copies.

N_SEQ = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "f32": {},
    "flash attention": {"flash_attn": True},
    # llama.cpp crashes when it shifts a quantised cache.
    "q8_0": {"flash_attn": True, "kv_type": lib.GGML_TYPE_Q8_0, "shifts": False},
}


class Twins:
    """The same program on two caches: one forks, the other one copies."""

    def __init__(self, model: Any, *, shifts: bool = True, **arguments: Any) -> None:
        self.shifts = shifts
        self.forked = Cache(model, n_seq=N_SEQ, n_ctx=512, **arguments)
        self.copied = Cache(model, n_seq=N_SEQ, n_ctx=512, **arguments)
        self.both = (self.forked, self.copied)
        self.n_decoded = 0

    def ends(self) -> list[int]:
        """Where each sequence goes on."""
        return [last + 1 for _, last in self.forked.spans()]

    def run(self, draw: Any) -> None:
        ends = self.ends()
        alive = [seq for seq in range(N_SEQ) if ends[seq] > 0]
        empty = [seq for seq in range(N_SEQ) if ends[seq] == 0]
        operations: list[Any] = [self.decode]
        if alive and empty:
            operations += [self.fork] * 3
        if alive:
            operations += [self.drop, self.truncate, self.truncate, self.cut, self.rarely]
        draw(st.sampled_from(operations))(draw, ends, alive, empty)
        assert self.forked.spans() == self.copied.spans()

    def decode(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        if self.n_decoded > 300:
            return
        where = draw(st.lists(st.sampled_from(range(N_SEQ)), min_size=1, max_size=4, unique=True))
        parts = [
            (seq, ends[seq], draw(st.lists(st.integers(0, 199), min_size=1, max_size=12)))
            for seq in where
        ]
        self.n_decoded += sum(len(tokens) for _, _, tokens in parts)
        rows = [cache.decode_together(parts) for cache in self.both]
        for forked, copied in zip(*rows, strict=True):
            assert_same(forked, copied)

    def fork(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        parent, child = draw(st.sampled_from(alive)), empty[0]
        p1 = draw(st.integers(1, ends[parent]))
        if self.forked.fork(parent, child, p1) == 0:
            self.copied.copy(parent, child, 0, p1)
        else:  # the beginning has been cut off, or has left the window
            assert self.forked.span(parent)[0] > 0

    def drop(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        self._remove(draw(st.sampled_from(alive)), 0, -1)

    def truncate(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        seq = draw(st.sampled_from(alive))
        self._remove(seq, draw(st.integers(0, ends[seq])), -1)

    def cut(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        seq = draw(st.sampled_from(alive))
        p0 = draw(st.integers(0, ends[seq]))
        self._remove(seq, p0, draw(st.integers(p0, ends[seq])))

    def _remove(self, seq: int, p0: int, p1: int) -> None:
        if self.forked.drop(seq, p0, p1):
            assert self.copied.drop(seq, p0, p1)

    def rarely(self, draw: Any, ends: list[int], alive: list[int], empty: list[int]) -> None:
        seq, other = draw(st.sampled_from(alive)), draw(st.integers(0, N_SEQ - 1))
        what = draw(st.sampled_from(["keep", "shift", "reload", "copy", "all", "clear"]))
        for cache in self.both:
            if what == "keep":
                cache.keep(seq)
            elif what == "shift" and self.shifts:
                cache.shift(seq, ends[seq] // 2, 3)
            elif what == "reload":
                cache.reload()
            elif what == "copy" and ends[other] == 0:
                cache.copy(seq, other, 0, ends[seq] // 2)
            elif what == "all":
                cache.drop(-1, ends[seq] // 2)
            elif what == "clear":
                cache.clear()

    def finish(self) -> None:
        """Without its forks, every sequence can be dropped, and nothing is left."""
        waiting = list(range(N_SEQ))
        for _ in range(N_SEQ):  # children first, whose number is not known here
            waiting = [seq for seq in waiting if not self.forked.drop(seq)]
        assert not waiting
        assert self.forked.spans() == [(-1, -1)] * N_SEQ
        for cache in self.both:
            cache.clear()
            cache.decode(0, 0, PROMPT)

    def close(self) -> None:
        for cache in self.both:
            cache.close()


def _run_program(model: Any, data: Any, **arguments: Any) -> None:
    twins = Twins(model, **arguments)
    try:
        for cache in twins.both:
            cache.decode(0, 0, PROMPT)
        for _ in range(data.draw(st.integers(3, 25))):
            twins.run(data.draw)
        twins.finish()
    finally:
        twins.close()


_quickly = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("name", SETTINGS)
@_quickly
@given(data=st.data())
def test_random_programs(tiny_model: Any, name: str, data: Any) -> None:
    _run_program(tiny_model, data, **SETTINGS[name])


@pytest.mark.parametrize("swa_full", [True, False])
@_quickly
@given(data=st.data())
def test_random_programs_with_a_sliding_window(
    window_model: Any, swa_full: bool, data: Any
) -> None:
    _run_program(window_model, data, swa_full=swa_full)


@_quickly
@given(data=st.data())
def test_random_programs_with_positions_of_several_dimensions(vision_model: Any, data: Any) -> None:
    _run_program(vision_model, data, shifts=False)  # llama.cpp cannot shift these
