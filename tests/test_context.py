"""The KV cache on tiny models: every way to the same state gives the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse_local.errors import Cancelled, ContextLengthError, DecodeError, OutOfMemoryError
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.batch import N_BATCH
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.decode_call import poll
from parse_local.llama.model import Model

Tiny = Callable[..., Path]
N_VOCAB = 271  # 256 bytes, 12 merges, 3 control tokens
SUFFIX = [5, 17, 40, 3]
LABELS = [30, 31]


@pytest.fixture(scope="module")
def model(tiny: Tiny) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


@pytest.fixture
def make(model: Model) -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def context(which: Model = model, **arguments: Any) -> Context:
        exact = {"n_ctx": 512, "n_threads": 1, "kv_type": "f32", "flash_attn": "off"}
        made.append(Context(which, **{**exact, **arguments}))
        return made[-1]

    yield context
    for context_ in made:
        context_.close()


@pytest.fixture(scope="module")
def judge_context(model: Model) -> Iterator[Context]:
    context = Context(
        model,
        n_ctx=512,
        n_fork_cells=1024,
        max_forks=16,
        n_threads=1,
        kv_type="f32",
        flash_attn="off",
    )
    yield context
    context.close()


def some_tokens(n: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 256, n)]


def row(context: Context, tokens: list[int]) -> np.ndarray:
    """Output row behind `tokens`, by the shortest way from what the cache holds."""
    context.prefill(tokens)
    return context.last_row(tokens[-1:])[0].copy()


# forks


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_forks_in_one_batch_judge_as_plain_passes_do(judge_context: Context, data: Any) -> None:
    n = data.draw(st.integers(2, 200), label="n")
    tokens = some_tokens(n, data.draw(st.integers(0, 10_000), label="seed"))
    cuts = sorted(data.draw(st.sets(st.integers(1, n), min_size=1, max_size=16), label="cuts"))
    suffix = some_tokens(data.draw(st.integers(1, 40), label="m"), seed=n)
    labels = data.draw(
        st.lists(st.integers(0, N_VOCAB - 1), min_size=2, max_size=2, unique=True), label="labels"
    )
    judge_context.prefill([*tokens, 0])
    forked = judge_context.judge(cuts, suffix, labels)
    assert judge_context.tokens == tokens
    plain = judge_context.judge_sequentially(tokens, cuts, suffix, labels)
    assert forked.shape == (len(cuts), 2)
    np.testing.assert_allclose(forked, plain, rtol=0, atol=1e-5)


def test_judging_leaves_the_main_sequence_as_it_was(judge_context: Context, make: Any) -> None:
    tokens = some_tokens(60)
    judge_context.clear()
    judge_context.prefill([*tokens, 7])
    judge_context.judge([10, 20, 60], SUFFIX, LABELS)
    after = judge_context.last_row([7])[0].copy()
    np.testing.assert_allclose(after, row(make(), [*tokens, 7]), rtol=0, atol=1e-5)


def test_more_forks_than_a_batch_holds_are_judged_in_chunks(make: Any) -> None:
    tokens = some_tokens(100)
    cuts = list(range(5, 100, 5))  # 19
    wide = make(n_fork_cells=19 * 4, max_forks=19)
    narrow = make(n_fork_cells=4 * 4, max_forks=4)  # 5 batches
    for context in (wide, narrow):
        context.prefill([*tokens, 0])
    found = [c.judge(cuts, SUFFIX, LABELS) for c in (wide, narrow)]
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-5)
    assert wide.n_suffix_decoded == narrow.n_suffix_decoded == 19 * 4


def test_a_suffix_longer_than_expected_takes_fewer_forks_at_once(make: Any) -> None:
    # 512 + 4 * 16 cells, which llama.cpp rounds up to 768, take two suffixes of 100 at a time.
    tokens = some_tokens(512)
    suffix = some_tokens(100, seed=9)
    context = make(n_fork_cells=4 * 16, max_forks=4)
    context.prefill([*tokens, 0])
    cuts = [100, 200, 300, 512]
    found = context.judge(cuts, suffix, LABELS)
    roomy = make(n_fork_cells=4 * 100, max_forks=4)
    roomy.prefill([*tokens, 0])
    np.testing.assert_allclose(found, roomy.judge(cuts, suffix, LABELS), rtol=0, atol=1e-5)


def test_a_suffix_without_room_is_refused_and_leaves_no_fork(make: Any) -> None:
    context = make(n_ctx=512, n_fork_cells=0, max_forks=2)
    tokens = some_tokens(512)
    context.prefill([*tokens, 0])
    with pytest.raises(
        ContextLengthError, match=r"question of 4 tokens .* \(0 tokens free\); raise --ctx"
    ):
        context.judge([100, 200], SUFFIX, LABELS)
    assert context.tokens == tokens
    for seq in (1, 2):
        assert lib.llama_memory_seq_pos_max(lib.llama_get_memory(context.handle), seq) == -1


def test_a_suffix_longer_than_a_batch_is_refused(make: Any) -> None:
    context = make(n_fork_cells=3000, max_forks=1)
    context.prefill([*some_tokens(10), 0])
    with pytest.raises(ContextLengthError, match="2,049"):
        context.judge([5], some_tokens(N_BATCH + 1), LABELS)


def test_a_sequential_judgement_may_use_the_cells_of_the_forks(make: Any) -> None:
    # In a full context a fork has room for its suffix, so a plain pass must have it too.
    tokens = some_tokens(512)
    context = make(n_fork_cells=4, max_forks=1)
    context.prefill([*tokens, 0])
    forked = context.judge([512], SUFFIX, LABELS)
    plain = context.judge_sequentially(tokens, [512], SUFFIX, LABELS)
    np.testing.assert_allclose(forked, plain, rtol=0, atol=1e-5)


def test_forks_of_a_sliding_window(tiny: Tiny, make: Any) -> None:
    model = Model(tiny(seed=3, architecture="gemma3", n_layer=2))  # window of 32 tokens
    context = make(model, n_fork_cells=64, max_forks=8)
    tokens = some_tokens(150)
    context.prefill([*tokens, 0])
    cuts = [3, 31, 32, 33, 64, 100, 149, 150]
    forked = context.judge(cuts, SUFFIX, LABELS)
    plain = context.judge_sequentially(tokens, cuts, SUFFIX, LABELS)
    np.testing.assert_allclose(forked, plain, rtol=0, atol=1e-5)
    context.close()
    model.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_quantised_caches_judge_nearly_the_same(tiny: Tiny, make: Any, kv_type: str) -> None:
    # A quantised V needs flash attention, and rows of 32 values: heads of this model are 32 wide.
    model = Model(tiny(seed=1, n_embd=128))
    tokens = some_tokens(120)
    cuts = [30, 60, 120]
    found = []
    for kind, flash in (("f32", "off"), (kv_type, "on")):
        context = make(model, kv_type=kind, flash_attn=flash, n_fork_cells=12, max_forks=3)
        context.prefill([*tokens, 0])
        found.append(context.judge(cuts, SUFFIX, LABELS))
        context.close()
    model.close()
    spread = {"f16": 0.02, "q8_0": 0.2, "q4_0": 3.0}[kv_type]
    assert 0 < np.abs(found[0] - found[1]).max() < spread


# the main sequence


def test_rolling_back_and_decoding_anew_equals_a_fresh_cache(make: Any) -> None:
    context = make()
    first, second = some_tokens(80), some_tokens(40) + some_tokens(30, seed=5)
    row(context, first)
    context.start_count()
    rolled_back = row(context, second)
    assert (context.n_reused, context.n_decoded) == (40, 30)
    np.testing.assert_allclose(rolled_back, row(make(), second), rtol=0, atol=1e-5)


def test_the_same_sequence_again_decodes_its_last_token_only(make: Any) -> None:
    context = make()
    tokens = some_tokens(50)
    before = row(context, tokens)
    context.start_count()
    np.testing.assert_allclose(row(context, tokens), before, rtol=0, atol=1e-5)
    assert (context.n_reused, context.n_decoded) == (49, 1)


def test_the_batches_do_not_matter(make: Any) -> None:
    tokens = some_tokens(100)
    whole, pieces = make(), make()
    rows = [r.copy() for _, r in whole.decode(tokens, n_rows=100)]
    one_by_one = [pieces.last_row([t])[0].copy() for t in tokens]
    np.testing.assert_allclose(np.concatenate(rows), one_by_one, rtol=0, atol=2e-5)


def test_rows_come_in_chunks_that_bound_the_output_buffer(make: Any) -> None:
    context = make()
    context._max_rows = 8  # as for a vocabulary of 5 million
    tokens = some_tokens(30)
    starts, rows = [], []
    for start, chunk in context.decode(tokens, n_rows=20):
        starts.append(start)
        rows.append(chunk.copy())
    assert starts == [10, 18, 26]
    expected = [r.copy() for _, r in make().decode(tokens, n_rows=20)]
    np.testing.assert_allclose(np.concatenate(rows), np.concatenate(expected), rtol=0, atol=2e-5)


def test_a_prompt_longer_than_a_batch(make: Any) -> None:
    tokens = some_tokens(N_BATCH + 300)
    context, one_by_one = make(n_ctx=4096), make(n_ctx=4096)
    found = row(context, tokens)
    for i in range(0, len(tokens), 500):
        expected = one_by_one.last_row(tokens[i : i + 500])[0].copy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert context.n_decoded == N_BATCH + 300


def test_the_context_can_be_filled_exactly(make: Any) -> None:
    context = make(n_ctx=256)
    row(context, some_tokens(256))
    assert len(context.tokens) == 256
    with pytest.raises(ContextLengthError, match=r"257 tokens .* 256; raise --ctx"):
        context.last_row([1])
    assert len(context.tokens) == 256


def test_an_unknown_token_is_an_error_and_changes_nothing(make: Any) -> None:
    context = make()
    tokens = some_tokens(20)
    row(context, tokens)
    with pytest.raises(DecodeError, match="failed to decode"):
        context.last_row([N_VOCAB])
    assert context.tokens == tokens
    extended = context.last_row([3])[0].copy()
    np.testing.assert_allclose(extended, row(make(), [*tokens, 3]), rtol=0, atol=1e-5)


# cancelling


def test_a_set_flag_stops_before_anything_is_decoded(make: Any) -> None:
    cancel = CancelFlag()
    context = make(cancel=cancel)
    tokens = some_tokens(30)
    row(context, tokens)
    cancel.set()
    with pytest.raises(Cancelled):
        context.last_row([4])
    with pytest.raises(Cancelled):
        context.judge([5], SUFFIX, LABELS)
    cancel.clear()
    assert context.tokens == tokens
    assert (context.n_decoded, context.n_suffix_decoded) == (30, 0)
    extended = context.last_row([4])[0].copy()
    np.testing.assert_allclose(extended, row(make(), [*tokens, 4]), rtol=0, atol=1e-5)


def test_llama_cpp_polls_the_flag_while_it_computes(make: Any) -> None:
    cancel = CancelFlag()
    context = make(n_ctx=2048, cancel=cancel)
    tokens = some_tokens(40)
    row(context, tokens)
    polls = []

    def at_the_third_poll(_: Any) -> bool:
        polls.append(len(polls))
        if len(polls) == 3:
            cancel.set()
        return bool(cancel)

    callback = lib.ggml_abort_callback(at_the_third_poll)
    lib.llama_set_abort_callback(context.handle, callback, None)
    with pytest.raises(Cancelled):
        context.last_row(some_tokens(600, seed=2))  # two micro-batches
    assert len(polls) == 3
    assert context.tokens == tokens
    assert context.n_decoded == 40
    cancel.clear()
    context.abort_callback = poll(context.handle, context.cancel)
    extended = context.last_row([4])[0].copy()
    np.testing.assert_allclose(extended, row(make(), [*tokens, 4]), rtol=0, atol=1e-5)


def test_an_aborted_judgement_leaves_no_fork(make: Any) -> None:
    cancel = CancelFlag()
    context = make(n_fork_cells=16, max_forks=4, cancel=cancel)
    tokens = some_tokens(40)
    context.prefill([*tokens, 0])
    expected = context.judge([10, 20], SUFFIX, LABELS)

    def immediately(_: Any) -> bool:
        cancel.set()
        return True

    callback = lib.ggml_abort_callback(immediately)
    lib.llama_set_abort_callback(context.handle, callback, None)
    with pytest.raises(Cancelled):
        context.judge([10, 20], SUFFIX, LABELS)
    cancel.clear()
    context.abort_callback = poll(context.handle, context.cancel)
    again = context.judge([10, 20], SUFFIX, LABELS)
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-6)
    assert context.n_suffix_decoded == 2 * 2 * len(SUFFIX)


# creation


def test_a_context_that_cannot_be_created_says_why(model: Model) -> None:
    with pytest.raises(OutOfMemoryError, match="n_seq_max must be <= 256"):
        Context(model, n_ctx=512, max_forks=256, n_threads=1)


def test_forks_use_the_patch_where_it_is_present() -> None:
    assert (library.seq_fork() is not None) == hasattr(lib._lib, "llama_memory_seq_fork")
