"""Timing in turns, and comparing readings of the reference text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe, requantise
from parse_local.tune.check import (
    N_TOKENS,
    Quality,
    Reading,
    compare,
    read_reference,
    reference_text,
    reference_tokens,
)
from parse_local.tune.measure import (
    N_CONTEXT,
    Speeds,
    Subject,
    in_turns,
    relative,
    threads_to_try,
)


class Watch:
    """A clock that only moves when something is said to take time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> Callable[[], float]:
        """A probe that takes these seconds, one after another, then the last again and again."""
        left = list(seconds)

        def probe() -> float:
            taken = left.pop(0) if len(left) > 1 else left[0]
            self.now += taken
            return taken

        return probe


def finish(turns: Iterator[str]) -> tuple[list[str], dict[str, float]]:
    names = []
    while True:
        try:
            names.append(next(turns))
        except StopIteration as end:
            return names, end.value


def test_turns_are_taken_and_one_stall_changes_nothing() -> None:
    watch = Watch()
    probes = {"a": watch.takes(1.0, 9.0, 1.0), "b": watch.takes(2.0)}
    names, found = finish(
        in_turns(probes, {"a": 3, "b": 3}, most=3, budget_s=0.0, expected_s={}, clock=watch)
    )
    assert names == ["a", "b"] * 3
    assert found == {"a": 1.0, "b": 2.0}


def test_what_no_longer_fits_is_not_repeated() -> None:
    watch = Watch()
    probes = {"small": watch.takes(1.0), "large": watch.takes(10.0)}
    # 22 s: both (11), then small fits and large's 10 s just do (22), then nothing does.
    names, _ = finish(
        in_turns(
            probes, {"small": 1, "large": 1}, most=7, budget_s=22.0, expected_s={}, clock=watch
        )
    )
    assert names == ["small", "large"] * 2
    watch = Watch()
    probes = {"small": watch.takes(1.0), "large": watch.takes(10.0)}
    names, _ = finish(
        in_turns(
            probes, {"small": 1, "large": 1}, most=7, budget_s=14.0, expected_s={}, clock=watch
        )
    )
    assert names == ["small", "large", "small", "small", "small"]


def test_what_would_not_fit_even_once_is_left_out() -> None:
    watch = Watch()
    probes = {"small": watch.takes(1.0), "large": watch.takes(10.0), "huge": watch.takes(99.0)}
    turns = in_turns(
        probes,
        {"small": 2, "large": 0, "huge": 0},
        most=2,
        budget_s=12.0,
        expected_s={"large": 9.0, "huge": 90.0},
        clock=watch,
    )
    assert finish(turns) == (["small", "large", "small"], {"small": 1.0, "large": 10.0})


def sample(*values: tuple[float, float]) -> Callable[[], tuple[float, float]]:
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_relative_speed_is_the_median_of_pairs() -> None:
    base = sample((9.0, 9.0), (0.04, 0.02), (0.04, 0.02), (0.40, 0.20), (0.04, 0.02))
    other = sample((9.0, 9.0), (0.02, 0.02), (0.02, 0.02), (0.02, 0.02))
    # The first pair is not counted. Decode 2x, verify 1x, both 0.06 / 0.04; the stall is one of 4.
    found = relative(base, other, most=5, budget_s=100.0, clock=Watch())
    assert found == Speeds(decode=2.0, verify=1.0, both=pytest.approx(1.5))


def test_what_a_role_does_not_do_is_no_faster() -> None:
    found = relative(sample((0.03, 0.0)), sample((0.02, 0.0)), most=3, budget_s=1.0, clock=Watch())
    assert found == Speeds(pytest.approx(1.5), 1.0, pytest.approx(1.5))
    assert found * Speeds(2.0, 3.0, 4.0) == Speeds(pytest.approx(3.0), 3.0, pytest.approx(6.0))


@pytest.mark.parametrize(
    ("physical", "logical", "expected"),
    [
        (1, 1, []),
        (2, 2, [1]),
        (2, 4, [4, 1]),
        (6, 12, [12, 4, 2, 1]),
        (8, 8, [4, 2, 1]),
    ],
)
def test_threads_to_try(physical: int, logical: int, expected: list[int]) -> None:
    assert threads_to_try(physical, logical) == expected


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "mamba"])
def test_a_subject_decodes_behind_the_same_context(
    tiny: Callable[..., Path], architecture: str
) -> None:
    model = Model(tiny(seed=1, architecture=architecture))
    subject = Subject(model, n_threads=1, n_max=40)
    expected = subject.context.tokens.copy()
    assert len(expected) == N_CONTEXT
    for n, rows in ((1, True), (40, True), (40, False)):
        subject.context.start_count()
        assert subject.decode(n, rows=rows) > 0
        assert subject.context.tokens == expected
        if model.memory_kind.can_cut:  # others read again what lies behind a checkpoint
            assert subject.context.n_decoded == (4 if n == 1 else n)
    subject.close()
    model.close()


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_whether_a_batch_rounds_like_its_tokens_one_by_one(
    tiny: Callable[..., Path], flash_attn: str
) -> None:
    model = Model(tiny(seed=1, n_embd=256))
    subject = Subject(model, n_threads=1, flash_attn=flash_attn)
    prompt = subject.context.tokens.copy()
    following = (reference_tokens(model) * 2)[N_CONTEXT : N_CONTEXT + 4]
    alone = []
    for i in range(4):
        subject.context.resume(prompt + following[: i + 1])
        alone.append(subject.context.last_row(following[i : i + 1]).copy())
    subject.context.rewind(N_CONTEXT)
    ((_, rows),) = subject.context.decode(following, n_rows=4)
    expected = bool((rows.copy() == np.concatenate(alone)).all())
    subject.context.rewind(N_CONTEXT)
    assert subject.batch_is_exact() == expected
    assert subject.context.tokens == prompt
    subject.close()
    model.close()


# the check


def reading(argmax: list[int], logprob: list[float]) -> Reading:
    return Reading(np.array(argmax, np.int32), np.array(logprob, np.float32))


def test_agreement_and_perplexity() -> None:
    original = reading([1, 2, 3, 4], [-1.0, -1.0, -1.0])
    other = reading([1, 2, 0, -1], [-1.0, -2.0, -1.5])
    found = compare(original, other)
    assert found.agreement == 0.5
    assert found.perplexity == pytest.approx(math.exp(0.5))
    assert compare(original, original) == Quality(1.0, 1.0)


def test_a_model_without_a_distribution_fails() -> None:
    found = compare(reading([-1, -1], [-1.0]), reading([-1, -1], [math.nan]))
    assert found.agreement == 0.0
    assert found.perplexity == math.inf
    assert found.failure("draft")


@pytest.mark.parametrize(
    ("quality", "draft", "target"),
    [
        (Quality(1.0, 1.0), "", ""),
        (Quality(0.80, 1.05), "", "agrees in 80.0%, less than 85%"),
        (Quality(0.85, 1.06), "", "perplexity x1.060, above x1.05"),
        (Quality(0.99, 1.20), "perplexity x1.200, above x1.15", "perplexity x1.200, above x1.05"),
        (Quality(math.nan, 1.0), "agrees in nan%, less than 80%", "agrees in nan%, less than 85%"),
    ],
)
def test_limits(quality: Quality, draft: str, target: str) -> None:
    assert quality.failure("draft") == draft
    assert quality.failure("target") == target


def test_a_damaged_file_is_refused_and_a_sound_one_is_not(
    tiny: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "new.gguf"

    def read(path: Path) -> Reading:
        model = Model(path)
        context = Context(model, n_ctx=N_TOKENS, n_threads=1)
        try:
            return read_reference(model, context)
        finally:
            context.close()
            model.close()

    original = read(tiny(seed=1))
    model = Model(tiny(seed=1), headers_only=True)
    requantise(model, path, Recipe("q8_0", "q8_0"), n_threads=1)
    model.close()
    assert compare(original, read(path)).failure("draft") == ""

    damaged = bytearray(path.read_bytes())
    end = len(damaged)
    damaged[end - 10_000 :] = b"\x11" * 10_000  # half of the output matrix, the last tensor
    path.write_bytes(damaged)
    assert "agrees in" in compare(original, read(path)).failure("draft")


def test_the_text_is_long_enough_for_a_real_vocabulary(tiny: Callable[..., Path]) -> None:
    assert 3_500 < len(reference_text()) < 6_000  # about four letters a token
    model = Model(tiny(seed=1), headers_only=True)
    assert len(reference_tokens(model)) == N_TOKENS
    model.close()
