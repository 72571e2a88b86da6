"""The weights of the evidence: a small logistic regression that can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from parse_local.calibration.features import TERMS
from parse_local.calibration.samples import Sample
from parse_local.errors import CalibrationError
from parse_local.profile import Fusion, Weight

Floats = npt.NDArray[np.float64]

PENALTIES = (0.01, 0.03, 0.1, 0.3)
"""L2 penalties that cross-validation chooses from; weights are of standardised terms."""
MIN_EACH = 5
"""Right and wrong drafts, each, without which weights mean nothing."""
_N_FOLDS = 5
_PRICE = 0.01
_PRICE_OF_FORKS = 0.05
# Shares of the cross-validated loss that a term, and the forks that a term needs, must save.
_NOTHING = 1e-4  # the optimiser stops this close to a bound


@dataclass(frozen=True)
class Fit:
    """Weights, and how they came about.

    Args:
        wording: of the verdict, by its name in the collected answers.
        fusion: weights without thresholds (nothing passes).
        penalty: the L2 penalty that was chosen.
        wording_auc: area under the ROC curve of P(Correct) alone, for each wording.
    """

    wording: str
    fusion: Fusion
    penalty: float
    wording_auc: Mapping[str, float]


def auc(scores: Floats | Sequence[float], right: Sequence[bool] | npt.NDArray[np.bool_]) -> float:
    """Chance that a right draft scores above a wrong one (ties half); nan without one of each."""
    values, positive = np.asarray(scores, np.float64), np.asarray(right, bool)
    high, low = values[positive], np.sort(values[~positive])
    if not len(high) or not len(low):
        return float("nan")
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.sum() / 2 / len(low) / len(high))


def fit(samples: Sequence[Sample]) -> Fit:
    """Choose the verdict's wording, the terms and their weights.

    The wording is the one whose P(Correct) separates best by itself. Terms are removed one
    by one as long as the cross-validated loss stays within the price of a term.

    Args:
        samples: of the fit split, in an order that knows nothing of them. Drafts that did not
            end by themselves are left out: they are never accepted whole.

    Raises:
        CalibrationError: too few right or wrong drafts.
    """
    finished = [s for s in samples if s.finished]
    right = np.array([s.draft_right for s in finished], bool)
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    if min(n_right, n_wrong) < MIN_EACH:
        raise CalibrationError(
            f"Of {len(finished)} finished drafts of the fitting part {n_right} are right and "
            f"{n_wrong} wrong; at least {MIN_EACH} of each are needed to learn what tells them "
            "apart. Use more problems (--n), or a task that the draft does not always pass or fail."
        )
    wordings = sorted(set.intersection(*(set(s.terms) for s in finished)))
    if not wordings:
        raise CalibrationError("No verdict's wording was asked about all drafts; collect again.")
    alone = {w: auc([s.terms[w].get("log_odds", 0.0) for s in finished], right) for w in wordings}
    wording = max(wordings, key=lambda w: alone[w])
    rows = [s.terms[wording] for s in finished]
    names, penalty = _select(rows, right)
    return Fit(wording, regress(rows, right, names, penalty), penalty, alone)


def scores_of(fusion: Fusion, wording: str, samples: Sequence[Sample]) -> Floats:
    """The score of each whole draft; -inf where it cannot be accepted whole."""
    return np.array(
        [fusion.score(s.terms[wording]) if s.finished else -inf for s in samples], np.float64
    )


def verdict_scores(wording: str, samples: Sequence[Sample]) -> Floats:
    """P(Correct) of each whole draft as log-odds, -inf where it cannot be accepted whole."""
    return np.array(
        [s.terms[wording]["log_odds"] if s.finished else -inf for s in samples], np.float64
    )


# regression


def regress(
    rows: Sequence[Mapping[str, float]],
    right: npt.NDArray[np.bool_],
    names: Sequence[str],
    penalty: float,
) -> Fusion:
    """Weights of the named terms: L2-penalised logistic regression, no threshold.

    A term whose direction is known gets no weight against it: in a small sample that is noise.

    Args:
        rows: evidence, one mapping a draft; a missing term counts as the average.
        right: which drafts are correct.
        names: terms to use.
        penalty: of the squared standardised weights, relative to the mean loss.
    """
    x, means, deviations = _standardised(_matrix(rows, names))
    weights, intercept = _minimise(x, right, names, penalty)
    kept = {
        name: Weight(float(means[i]), float(deviations[i]), float(weights[i]))
        for i, name in enumerate(names)
        if weights[i]
    }
    return Fusion(kept, intercept, inf, inf)


def _matrix(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> Floats:
    return np.array([[row.get(name, np.nan) for name in names] for row in rows], np.float64)


def _standardised(values: Floats) -> tuple[Floats, Floats, Floats]:
    means, deviations = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    deviations = np.where(deviations > 0, deviations, inf)  # what never differs says nothing
    return np.nan_to_num((values - means) / deviations), means, deviations


def _minimise(
    x: Floats, right: npt.NDArray[np.bool_], names: Sequence[str], penalty: float
) -> tuple[Floats, float]:
    from scipy.optimize import minimize

    signs = np.where(right, 1.0, -1.0)

    def loss(w: Floats) -> tuple[float, Floats]:
        margin = signs * (x @ w[:-1] + w[-1])
        slope = -signs / (1 + np.exp(np.clip(margin, -500, 500))) / len(signs)
        gradient = np.append(x.T @ slope + penalty * w[:-1], slope.sum())
        value = np.logaddexp(0, -margin).mean() + penalty / 2 * float(w[:-1] @ w[:-1])
        return float(value), gradient

    bounds = [(0.0 if TERMS[name].sign else -inf, inf) for name in names] + [(-inf, inf)]
    start = np.zeros(len(names) + 1)
    found = minimize(loss, start, jac=True, method="SLSQP", bounds=bounds).x
    return np.where(np.abs(found[:-1]) < _NOTHING, 0.0, found[:-1]), float(found[-1])


def _select(
    rows: Sequence[Mapping[str, float]], right: npt.NDArray[np.bool_]
) -> tuple[list[str], float]:
    """Backward selection: the terms that pay their price, and the penalty that suits them."""
    values = _matrix(rows, list(TERMS))
    measured = np.isfinite(values).sum(axis=0) > len(rows) / 2
    names = [name for i, name in enumerate(TERMS) if measured[i] and np.nanstd(values[:, i]) > 1e-9]
    if not names:
        raise CalibrationError("No evidence differs between the drafts, so there is none to weigh.")
    penalty = min(PENALTIES, key=lambda penalty: _cost(rows, right, names, penalty))
    best = (_cost(rows, right, names, penalty), names)
    while len(names) > 1:
        without = [[n for n in names if n != gone] for gone in names]
        costs = [_cost(rows, right, rest, penalty) for rest in without]
        i = int(np.argmin(costs))
        names = without[i]
        if costs[i] <= best[0]:
            best = (costs[i], names)
    names = best[1]
    return names, min(PENALTIES, key=lambda penalty: _cost(rows, right, names, penalty))


def _cost(
    rows: Sequence[Mapping[str, float]],
    right: npt.NDArray[np.bool_],
    names: Sequence[str],
    penalty: float,
) -> float:
    """Cross-validated loss, with the prices of the terms."""
    values = _matrix(rows, names)
    folds = np.empty(len(rows), int)
    for group in (right, ~right):  # as many right ones in each fold
        folds[group] = np.arange(group.sum()) % _N_FOLDS
    total = 0.0
    for fold in range(_N_FOLDS):
        seen = folds != fold
        x, means, deviations = _standardised(values[seen])
        weights, intercept = _minimise(x, right[seen], names, penalty)
        rest = np.nan_to_num((values[~seen] - means) / deviations)
        margin = np.where(right[~seen], 1, -1) * (rest @ weights + intercept)
        total += float(np.logaddexp(0, -margin).sum())
    forks = any(TERMS[name].earlier for name in names)
    return total / len(rows) * (1 + _PRICE * len(names) + _PRICE_OF_FORKS * forks)
