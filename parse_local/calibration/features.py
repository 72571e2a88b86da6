"""Evidence at one boundary of a draft, as a few named numbers: pure.

The engine and the fit both come here, so that a weight means the same in either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW = 8
"""Tokens over which the windowed log-probability is averaged: about one line's operative part."""
N_EARLIER = 3
"""Boundaries before a finished answer whose verdicts its own is compared with, where there are
so many."""
MAX_LOG_ODDS = 12.0
"""P(Correct) of 1 - 6e-6; beyond that a float32 soft-max says nothing more."""
MIN_LOGPROB = -30.0
"""Log-probability (nats) below which a token is as good as impossible."""


@dataclass(frozen=True)
class Term:
    """One kind of evidence.

    Args:
        meaning: for readers of `parse-local verify`.
        verdict: needs P(Correct) at the boundary.
        earlier: needs verdicts at earlier boundaries too.
        tokens: needs the scores of the draft's tokens under the target.
        sign: 1 where more of it cannot mean less surely correct, 0 where either may be.
    """

    meaning: str
    verdict: bool = False
    earlier: bool = False
    tokens: bool = False
    sign: int = 1


TERMS: Mapping[str, Term] = {
    "log_odds": Term("log-odds of P(Correct)", verdict=True),
    "log_odds_change": Term(
        "its change against earlier boundaries' mean", verdict=True, earlier=True
    ),
    "label_mass": Term("probability of both labels together", verdict=True),
    "mean_logprob": Term("mean log-probability", tokens=True),
    "min_logprob": Term("lowest log-probability of a token", tokens=True),
    "window_logprob": Term(f"lowest mean log-probability of {WINDOW} tokens", tokens=True),
    "top_share": Term("share of tokens that are the target's first choice", tokens=True),
    "exact_share": Term("share of tokens in the exact prefix"),
    "log_length": Term("logarithm of the length in tokens", sign=0),
}
"""Every term by its name, in the order in which they are shown."""


def evidence_terms(
    *,
    n_tokens: int,
    n_exact: int,
    p_correct: float | None = None,
    label_mass: float | None = None,
    earlier: Sequence[float] = (),
    logprobs: npt.NDArray[Any] | Sequence[float] = (),
    ranks: npt.NDArray[Any] | Sequence[int] = (),
) -> dict[str, float]:
    """The terms that the evidence at hand supports, by name; each is finite.

    A term whose evidence was not bought is left out: `Fusion` gives it no part in the score.

    Args:
        n_tokens: draft tokens before the boundary, at least 1.
        n_exact: tokens from the start of the draft that are the target's own choice.
        p_correct: P(Correct) at the boundary.
        label_mass: probability of both labels together, there.
        earlier: P(Correct) at boundaries before it.
        logprobs: log-probability (nats) of each draft token under the target, at least
            `n_tokens` of them or none.
        ranks: tokens that the target likes better, for each draft token; as many.
    """
    found: dict[str, float] = {
        "exact_share": min(n_exact, n_tokens) / n_tokens,
        "log_length": float(np.log(n_tokens)),
    }
    if p_correct is not None:
        found["log_odds"] = log_odds(p_correct)
        if earlier:
            before = sum(map(log_odds, earlier)) / len(earlier)
            found["log_odds_change"] = found["log_odds"] - before
    if label_mass is not None:
        found["label_mass"] = _finite(label_mass, 0.0, 1.0)
    if len(logprobs):
        values = np.asarray(logprobs[:n_tokens], np.float64)
        values = np.clip(np.nan_to_num(values, nan=MIN_LOGPROB), MIN_LOGPROB, 0.0)
        found["mean_logprob"] = float(values.mean())
        found["min_logprob"] = float(values.min())
        width = min(WINDOW, n_tokens)
        sums = np.convolve(values, np.ones(width), mode="valid")
        found["window_logprob"] = float(sums.min()) / width
    if len(ranks):
        found["top_share"] = float(np.mean(np.asarray(ranks[:n_tokens]) == 0))
    return {name: found[name] for name in TERMS if name in found}


def log_odds(p: float) -> float:
    """log(p / (1 - p)), within ±`MAX_LOG_ODDS`."""
    p = _finite(p, 0.0, 1.0)
    edge = 1 / (1 + float(np.exp(MAX_LOG_ODDS)))
    if p <= edge or p >= 1 - edge:
        return MAX_LOG_ODDS if p > 0.5 else -MAX_LOG_ODDS
    return float(np.log(p) - np.log1p(-p))


def _finite(value: float, low: float, high: float) -> float:
    return float(np.clip(np.nan_to_num(value, nan=low), low, high))
