"""llama.cpp's sampler chain over rows whose outcome is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from parse_local.llama.model import Model
from parse_local.llama.sampler import PENALTY_LAST_N, Sampler

N_VOCAB = 271


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


def row_of(probabilities: dict[int, float]) -> np.ndarray:
    """A row that gives these tokens these probabilities and the rest nothing."""
    row = np.full(N_VOCAB, -1e9, np.float32)
    for token, probability in probabilities.items():
        row[token] = math.log(probability)
    return row


ROW = row_of({10: 0.5, 20: 0.3, 30: 0.15, 40: 0.05})
ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def shaped(model: Model, **arguments: float) -> dict[int, float]:
    found = Sampler(model, **{"temperature": 1.0, **ALL, **arguments}).distribution(ROW, [])
    return {int(i): float(p) for i, p in zip(found.ids, found.probs, strict=True) if p > 1e-9}


def test_temperature_one_leaves_the_row_as_it_is(model: Model) -> None:
    assert shaped(model) == pytest.approx({10: 0.5, 20: 0.3, 30: 0.15, 40: 0.05}, abs=1e-6)


def test_temperature_one_half_squares(model: Model) -> None:
    # 0.25 : 0.09 : 0.0225 : 0.0025, sum 0.365
    expected = {10: 0.25 / 0.365, 20: 0.09 / 0.365, 30: 0.0225 / 0.365, 40: 0.0025 / 0.365}
    assert shaped(model, temperature=0.5) == pytest.approx(expected, abs=1e-6)


def test_top_k(model: Model) -> None:
    assert shaped(model, top_k=2) == pytest.approx({10: 0.625, 20: 0.375}, abs=1e-6)


def test_top_p(model: Model) -> None:
    # 0.5 + 0.3 reach 0.75, so the third token goes.
    assert shaped(model, top_p=0.75) == pytest.approx({10: 0.625, 20: 0.375}, abs=1e-6)


def test_min_p(model: Model) -> None:
    # Of 0.2 times the likeliest, 0.1, only the last falls short.
    expected = {10: 0.5 / 0.95, 20: 0.3 / 0.95, 30: 0.15 / 0.95}
    assert shaped(model, min_p=0.2) == pytest.approx(expected, abs=1e-6)


def test_greedy_ignores_the_other_samplers(model: Model) -> None:
    sampler = Sampler(model, top_k=1, top_p=0.1, min_p=1.0)
    assert sampler.argmax_only
    assert sampler.choose(ROW, [10]) == 10


def test_the_repeat_penalty_divides_positive_logits_and_multiplies_negative_ones(
    model: Model,
) -> None:
    row = np.full(N_VOCAB, -100, np.float32)
    row[[5, 6]] = 6.0, 5.0
    greedy = Sampler(model, repeat_penalty=1.5)
    assert not greedy.argmax_only
    assert greedy.choose(row, []) == 5
    assert greedy.choose(row, [5]) == 6  # 6 / 1.5 = 4 < 5
    assert greedy.choose(row, [5, 6]) == 5  # 4 > 5 / 1.5
    assert greedy.choose(row, []) == 5  # nothing is remembered from the calls before
    row[[5, 6]] = -4.0, -5.0
    assert greedy.choose(row, [5]) == 6  # -4 * 1.5 = -6 < -5
    sampler = Sampler(model, temperature=1.0, repeat_penalty=1.5, **ALL)
    found = sampler.distribution(row, [5])
    assert found.probability(5) == pytest.approx(1 / (1 + math.e), abs=1e-6)


def test_the_repeat_penalty_looks_back_64_tokens(model: Model) -> None:
    row = np.full(N_VOCAB, -100, np.float32)
    row[[5, 6]] = 6.0, 5.0
    sampler = Sampler(model, repeat_penalty=1.5)
    assert sampler.choose(row, [5] + [9] * (PENALTY_LAST_N - 1)) == 6
    assert sampler.choose(row, [5] + [9] * PENALTY_LAST_N) == 5


def test_draws_follow_the_distribution_and_the_seed(model: Model) -> None:
    def draws(seed: int) -> list[int]:
        sampler = Sampler(model, temperature=1.0, seed=seed, **ALL)
        return [sampler.choose(ROW, []) for _ in range(4000)]

    first = draws(1)
    assert first == draws(1)
    assert first != draws(2)
    share = {t: first.count(t) / 4000 for t in (10, 20, 30, 40)}
    # Four standard errors of a share p are 4 * sqrt(p (1 - p) / 4000), at most 0.032.
    assert share == pytest.approx({10: 0.5, 20: 0.3, 30: 0.15, 40: 0.05}, abs=0.032)
