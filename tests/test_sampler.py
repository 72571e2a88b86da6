"""llama.cpp's sampler chain over rows whose outcome is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parse_local.distribution import Distribution
from parse_local.errors import DecodeError
from parse_local.llama import library
from parse_local.llama.model import Model
from parse_local.llama.rows import Rows
from parse_local.llama.sampler import PENALTY_LAST_N, Sampler

N_VOCAB = 271
REAL_SHIM = library.shim


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


@pytest.fixture(params=["shim", "numpy"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: with candidates picked in C, and with the whole row in Python."""
    if request.param == "numpy":
        monkeypatch.setattr(library, "shim", lambda: None)
    elif library.shim() is None:
        pytest.skip("libparse_local is not beside this llama.cpp")


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "shape", [{}, {"temperature": 1.0}, {"repeat_penalty": 1.5}, {"temperature": 1.0, "top_k": 0}]
)
def test_a_row_without_a_distribution_is_an_error(
    model: Model, shape: dict[str, Any], bad: float
) -> None:
    row = ROW.copy()
    row[100] = bad
    with pytest.raises(DecodeError, match=r"NaN or infinite .*; .* download it again"):
        Sampler(model, **shape).choose(row, [1, 2])
    with pytest.raises(DecodeError, match="NaN or infinite"):
        Sampler(model, **shape).choose(np.full(N_VOCAB, -math.inf, np.float32), [1, 2])


def test_the_lowest_id_wins_a_tie(model: Model) -> None:
    row = np.full(N_VOCAB, -3, np.float32)
    row[[200, 7, 90]] = 5.0
    assert Sampler(model).choose(row, []) == 7
    assert Sampler(model, repeat_penalty=1.5).choose(row, [1]) == 7
    assert Sampler(model, repeat_penalty=1.5).choose(row, [7]) == 90


@pytest.fixture(scope="module")
def wide(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1, n_unused=3000))
    yield model
    model.close()


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    shape=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.3, 1.0, 1.7]),
            "top_k": st.sampled_from([0, 1, 3, 40, 500, 1500, 9999]),
            "top_p": st.sampled_from([0.3, 0.95, 1.0]),
            "min_p": st.sampled_from([0.0, 0.05, 0.5]),
            "repeat_penalty": st.sampled_from([0.5, 1.0, 1.3, 5.0]),
        }
    ),
    n_history=st.integers(0, 100),
    ties=st.booleans(),
)
def test_what_c_picks_out_of_a_row_is_what_the_whole_row_gives(
    wide: Model, seed: int, shape: dict[str, Any], n_history: int, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    row = (12 * (rng.permutation(wide.n_vocab) / wide.n_vocab) ** 3).astype(np.float32)
    if ties:
        row = np.round(row * 2) / 2
    # Mostly likely tokens, so that the penalty changes which are among the best.
    ranked = np.argsort(-row)
    history = [int(ranked[i]) for i in rng.integers(0, 200, n_history)]
    found = picked_and_whole(wide, shape, row, history)
    np.testing.assert_allclose(*[np.sort(f.probs) for f in found], rtol=0, atol=1e-6)
    for distribution in found:
        assert distribution.probs.sum() == pytest.approx(1.0, abs=1e-12)
    if not ties:
        assert sorted(found[0].ids.tolist()) == sorted(found[1].ids.tolist())
    greedy = {"temperature": 0.0, "repeat_penalty": shape["repeat_penalty"]}
    best = picked_and_whole(wide, greedy, row, history)
    assert best[0].ids.tolist() == best[1].ids.tolist()


def picked_and_whole(
    model: Model, shape: dict[str, Any], row: np.ndarray, history: list[int]
) -> list[Distribution]:
    found = []
    for shim in (REAL_SHIM, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "shim", shim)
            found.append(Sampler(model, **shape).distribution(Rows.of(row), history))
    return found


def test_a_draw_is_what_numpys_choice_draws() -> None:
    # Seeds keep their meaning: the same numbers give the same tokens.
    probs = np.random.default_rng(0).dirichlet(np.ones(40))
    distribution = Distribution(np.arange(100, 140, dtype=np.int32), probs)
    ours, numpys = np.random.default_rng(7), np.random.default_rng(7)
    for _ in range(500):
        assert distribution.sample(ours) == 100 + numpys.choice(40, p=probs)
