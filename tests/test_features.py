"""Evidence at a boundary: every term's value, and none that is not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_local.calibration.features import MAX_LOG_ODDS, TERMS, evidence_terms, log_odds

LOGPROBS = [-0.1] * 8 + [-2.0, -3.0] + [-0.1] * 6


def test_every_term_of_an_answer() -> None:
    found = evidence_terms(
        n_tokens=16,
        n_exact=8,
        p_correct=0.9,
        label_mass=0.98,
        earlier=[0.5, 0.8],
        logprobs=np.array(LOGPROBS),
        ranks=[0] * 8 + [1, 4] + [0] * 6,
    )
    assert list(found) == list(TERMS)
    assert found["log_odds"] == pytest.approx(math.log(9))
    assert found["log_odds_change"] == pytest.approx(math.log(9) - (0 + math.log(4)) / 2)
    assert found["label_mass"] == 0.98
    assert found["mean_logprob"] == pytest.approx((14 * -0.1 - 5) / 16)
    assert found["min_logprob"] == -3
    assert found["window_logprob"] == pytest.approx((6 * -0.1 - 5) / 8)
    assert found["top_share"] == 14 / 16
    assert found["exact_share"] == 0.5
    assert found["log_length"] == pytest.approx(math.log(16))


def test_a_prefix_looks_no_further_than_its_boundary() -> None:
    found = evidence_terms(n_tokens=4, n_exact=8, logprobs=LOGPROBS, ranks=[0] * 16)
    assert found["exact_share"] == 1
    assert found["mean_logprob"] == found["window_logprob"] == pytest.approx(-0.1)


def test_what_was_not_measured_is_left_out() -> None:
    assert set(evidence_terms(n_tokens=3, n_exact=0)) == {"exact_share", "log_length"}
    assert "log_odds_change" not in evidence_terms(n_tokens=3, n_exact=0, p_correct=0.5)


@given(
    n=st.integers(1, 40),
    p=st.one_of(st.floats(allow_nan=True), st.floats(0, 1)),
    values=st.lists(st.floats(), min_size=40, max_size=40),
)
def test_every_term_is_finite(n: int, p: float, values: list[float]) -> None:
    found = evidence_terms(
        n_tokens=n,
        n_exact=40,
        p_correct=p,
        label_mass=p,
        earlier=[p, 0.5],
        logprobs=values,
        ranks=[0] * 40,
    )
    assert set(found) == set(TERMS)
    assert all(math.isfinite(v) for v in found.values())


def test_log_odds_end_somewhere() -> None:
    assert [log_odds(p) for p in (0.0, 0.5, 1.0)] == [-MAX_LOG_ODDS, 0, MAX_LOG_ODDS]
    assert log_odds(float(np.float32(1) - np.finfo(np.float32).eps)) == MAX_LOG_ODDS
