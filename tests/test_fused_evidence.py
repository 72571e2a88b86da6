"""Fused acceptance in the engine: the evidence that counts is bought, nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask

from parse_local.calibration.features import TERMS
from parse_local.judge import make_judge
from parse_local.profile import Fusion, Profile, Weight

QUESTION = "hello there"
ENDS: dict[str, Any] = {"seed": 3, "bias": {"<|im_end|>": 12.0}}


@pytest.fixture
def engine(load: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    return load(target=tiny(seed=1), draft=tiny(**ENDS))


def ask_with(engine: Any, term: str, threshold: float, threshold_prefix: float = math.inf) -> Any:
    fusion = Fusion({term: Weight(0.0, 1.0, 1.0)}, 0.0, threshold, threshold_prefix)
    engine.profile = Profile(fusion=fusion)
    engine.forget()
    return answer(engine, QUESTION, accept="fused", strategy="parse", delta=4, max_tokens=60)


def suffixes(engine: Any) -> tuple[int, int]:
    judge = make_judge(
        engine.target.model, engine.target.template, ask(QUESTION), engine.profile.wording
    )
    return len(judge.full.suffix), len(judge.prefix.suffix)


def test_a_verdict_alone_costs_one_fork_and_no_scores(engine: Any) -> None:
    found = ask_with(engine, "log_odds", -math.inf)
    (whole,) = found.rounds[0].boundaries
    assert found.rounds[0].whole
    assert found.tokens.suffix_decoded == suffixes(engine)[0]
    assert set(whole.terms) == {"log_odds", "label_mass", "exact_share", "log_length"}
    assert whole.terms["log_odds"] == pytest.approx(
        math.log(whole.p_correct / (1 - whole.p_correct)), abs=1e-4
    )


def test_scores_alone_cost_no_fork(engine: Any) -> None:
    found = ask_with(engine, "window_logprob", -math.inf)
    (whole,) = found.rounds[0].boundaries
    assert found.rounds[0].whole
    assert found.tokens.suffix_decoded == 0
    assert whole.p_correct is None
    assert whole.terms["min_logprob"] <= whole.terms["window_logprob"] <= 0
    value = whole.terms["window_logprob"]
    assert ask_with(engine, "window_logprob", value - 1e-3).rounds[0].whole
    assert not ask_with(engine, "window_logprob", value + 1e-3).rounds[0].whole


def test_the_change_costs_a_few_forks_before_the_end(engine: Any) -> None:
    found = ask_with(engine, "log_odds_change", -math.inf)
    *earlier, whole = found.rounds[0].boundaries
    full, prefix = suffixes(engine)
    assert len(earlier) == 3
    assert found.tokens.suffix_decoded == full + 3 * prefix
    odds = [b.terms["log_odds"] for b in earlier]
    change = whole.terms["log_odds"] - np.mean(odds)
    assert whole.terms["log_odds_change"] == pytest.approx(change)
    assert "log_odds_change" not in earlier[0].terms
    assert earlier[2].terms["log_odds_change"] == pytest.approx(odds[2] - (odds[0] + odds[1]) / 2)


def test_a_prefix_is_asked_about_once(engine: Any) -> None:
    found = ask_with(engine, "log_odds_change", math.inf, threshold_prefix=math.inf)
    n_earlier = len(found.rounds[0].boundaries) - 1
    more = ask_with(engine, "log_odds_change", math.inf, threshold_prefix=1e9)
    cuts = [b.n_tokens for b in more.rounds[0].boundaries]
    assert cuts == sorted(set(cuts))
    assert n_earlier == 3 < len(cuts) - 1
    full, prefix = suffixes(engine)
    asked = [full if b.complete else prefix for r in more.rounds for b in r.boundaries]
    assert more.tokens.suffix_decoded == sum(asked)


def test_verify_measures_everything(engine: Any) -> None:
    found = engine.verify(ask(QUESTION), "One. Two.\nThree")
    assert list(found.boundaries[-1].terms) == list(TERMS)
