"""What rows say about a draft: hand-made rows with known outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parse_local.distribution import Distribution
from parse_local.evidence import Evidence
from parse_local.llama.model import Model
from parse_local.llama.rows import Rows
from parse_local.llama.sampler import Sampler

N_VOCAB = 271


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1))
    yield model
    model.close()


def rows_preferring(*tokens: int) -> np.ndarray:
    """Rows whose best token is the given one, by one nat of logit over all others together."""
    rows = np.full((len(tokens), N_VOCAB), -math.log(N_VOCAB - 1), np.float32)
    rows[np.arange(len(tokens)), tokens] = 1.0
    return rows


def look(
    model: Model, draft: list[int], rows: np.ndarray, *, chunk: int = 100, **arguments: Any
) -> Evidence:
    sampler = Sampler(model, **arguments.pop("sampler", {}))
    evidence = Evidence(sampler, draft, **{"history": [1, 2], "cuts": [], **arguments})
    for start in range(0, len(rows), chunk):
        evidence.add(start, Rows.of(rows[start : start + chunk]))
    return evidence


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_the_exact_prefix_and_the_token_behind_it(model: Model, chunk: int) -> None:
    rows = rows_preferring(10, 11, 99, 13, 14)
    found = look(model, [10, 11, 12, 13], rows, chunk=chunk)
    assert found.n_exact == 2  # the row behind [10, 11] wants 99; what follows it does not count
    assert found.next_token == {2: 99}


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_a_draft_that_is_exact_to_its_end(model: Model, chunk: int) -> None:
    found = look(model, [10, 11], rows_preferring(10, 11, 77), chunk=chunk)
    assert found.n_exact == 2
    assert found.next_token == {2: 77}


def test_an_empty_draft_yields_the_next_token(model: Model) -> None:
    found = look(model, [], rows_preferring(50), cuts=[0])
    assert found.n_exact == 0
    assert found.next_token == {0: 50}


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_next_token_at_every_cut(model: Model, chunk: int) -> None:
    rows = rows_preferring(10, 11, 99, 13, 14, 15)
    found = look(model, [10, 11, 12, 13, 70], rows, cuts=[1, 3, 5], chunk=chunk)
    # Before the first difference, behind it, and behind the whole draft.
    assert found.next_token == {1: 11, 2: 99, 3: 13, 5: 15}


def test_the_penalty_sees_the_draft_before_each_token(model: Model) -> None:
    rows = np.full((3, N_VOCAB), -100, np.float32)
    rows[:, 5], rows[:, 6] = 6.0, 5.0
    penalty = {"repeat_penalty": 1.5}
    # 5 first; then 6 / 1.5 = 4 < 5, so 6; then both are penalised, so 5 again.
    assert look(model, [5, 6, 5], rows, sampler=penalty).n_exact == 3
    repeated = look(model, [5, 5, 5], rows, sampler=penalty)
    assert (repeated.n_exact, repeated.next_token) == (1, {1: 6})
    # The tokens before the draft count as well.
    assert look(model, [5], rows[:2], sampler=penalty, history=[5]).n_exact == 0


def test_the_penalty_shapes_speculative_sampling_too(model: Model) -> None:
    rows = np.full((3, N_VOCAB), -100, np.float32)
    rows[:, 5], rows[:, 6] = 6.0, 5.0
    shape = {"repeat_penalty": 1.5, "temperature": 1.0, "top_k": 1, "seed": 1}
    surely_5 = Distribution(np.array([5], np.int32), np.ones(1))
    found = look(model, [5, 5], rows, sampler=shape, proposals=[surely_5, surely_5])
    assert (found.n_exact, found.next_token) == (1, {1: 6})


def test_without_proposals_the_targets_own_draw_decides(model: Model) -> None:
    # Two tokens of equal probability: a drafted one is met about every second time.
    rows = np.full((2, N_VOCAB), -100, np.float32)
    rows[:, [5, 6]] = 3.0
    shape = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    kept = [look(model, [5], rows, sampler={**shape, "seed": seed}).n_exact for seed in range(400)]
    # Four standard errors: 4 * sqrt(400) / 2 = 40.
    assert abs(sum(kept) - 200) < 40


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_log_probabilities_of_every_token(model: Model, chunk: int) -> None:
    rows = rows_preferring(10, 99, 12, 0)
    found = look(model, [10, 11, 12], rows, token_scores=True, chunk=chunk)
    # A row's weights: e for its best token, and 1 for all the others together.
    best = 1 - math.log(math.e + 1)
    other = -math.log(N_VOCAB - 1) - math.log(math.e + 1)
    np.testing.assert_allclose(found.logprobs, [best, other, best], atol=1e-5)
    assert found.terms(1)["mean_logprob"] == pytest.approx(best, abs=1e-5)
    three = found.terms(3, p_correct=0.5)
    assert three["mean_logprob"] == pytest.approx((2 * best + other) / 3, abs=1e-5)
    assert three["log_odds"] == 0
    assert set(look(model, [10], rows[:2]).terms(1)) == {"exact_share", "log_length"}
