"""Which threshold may be trusted: Learn-then-Test on the accuracy lost, with bets as p-values.

Pure. The loss of one problem is (target correct) - (draft correct), -1, 0 or 1, where the
draft's answer is accepted, and 0 where it is not: the target then finishes the answer
losslessly. Its mean is the accuracy lost against the target alone.

Sources: Angelopoulos et al., "Learn then Test" (arXiv 2110.01052): testing thresholds in a
fixed sequence; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (arXiv 2010.09686): the test of one bounded mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_MAX_BET = 0.9
"""Share of all that may be lost at one problem: a single loss must not end the game."""
_PRIOR_VARIANCE = 0.05
"""Of the losses before any is seen: one problem in twenty differs. It costs power, no validity."""
_TOLERANCE = 1e-4


def p_value(losses: Sequence[float] | Floats, risk: float, *, level: float = 0.05) -> float:
    """p-value of the hypothesis that the mean loss is `risk` or more.

    Somebody bets against it, problem after problem: the bet b multiplies their money by
    1 + b (risk - loss). If the hypothesis holds it grows in no expectation, so the chance that
    it ever exceeds 1 / p is at most p (Ville). The bet depends on earlier problems only: it
    is the predictable plug-in of an empirical Bernstein bound, sqrt(2 log(1 / level) / (n v))
    with the variance v seen so far.

    Args:
        losses: independent, each in [-1, 1], in an order that knows nothing of them.
        risk: in (-1, 1).
        level: what the bets aim at; the p-value is valid for any.

    Returns:
        In (0, 1]; under the hypothesis P(p-value <= u) <= u for every u.

    Source: Waudby-Smith and Ramdas, sections 3.2 and 4.
    """
    values = np.asarray(losses, np.float64)
    if np.any(np.abs(values) > 1):
        raise ValueError("a loss lies outside [-1, 1]")
    if not values.size:
        return 1.0
    n = np.arange(1, len(values) + 1)
    means = np.cumsum(values) / n
    variances = (_PRIOR_VARIANCE + np.cumsum((values - means) ** 2)) / (n + 1)
    before = np.concatenate([[_PRIOR_VARIANCE], variances[:-1]])
    bets = np.sqrt(2 * math.log(1 / level) / (len(values) * before))
    bets = np.minimum(bets, _MAX_BET / (1 - risk))
    wealth = np.cumsum(np.log1p(bets * (risk - values)))
    return math.exp(min(0.0, -float(wealth.max())))


def upper_bound(losses: Sequence[float] | Floats, confidence: float) -> float:
    """A number that exceeds the true mean loss with probability `confidence` at least.

    Args:
        losses: independent, each in [-1, 1], in an order that knows nothing of them.
        confidence: for example 0.95.
    """
    low, high = -1.0, 1.0
    while high - low > _TOLERANCE:  # the p-value falls as the risk rises
        middle = (low + high) / 2
        if p_value(losses, middle, level=1 - confidence) <= 1 - confidence:
            high = middle
        else:
            low = middle
    return high


def interval(losses: Sequence[float] | Floats, confidence: float) -> tuple[float, float]:
    """Bounds that hold the true mean loss with probability `confidence` at least."""
    one_sided = (1 + confidence) / 2
    gains = -np.asarray(losses, np.float64)
    return -upper_bound(gains, one_sided), upper_bound(losses, one_sided)


def accepted_losses(scores: Floats, losses: Sequence[float] | Floats, threshold: float) -> Floats:
    """What each problem costs if drafts with a score above the threshold are accepted."""
    return np.where(scores > threshold, np.asarray(losses, np.float64), 0.0)


def problems_needed(risk: float, confidence: float) -> int:
    """Problems, none of them lost or won, that prove a mean loss below `risk`.

    No test does with fewer than log(1 - confidence) / log(1 - risk), 299 for 1 point at 95%;
    this one bets a little less than everything and needs a tenth more.
    """
    growth = math.log1p(_MAX_BET * risk / (1 - risk))
    return math.ceil(-math.log(1 - confidence) / growth)


@dataclass(frozen=True)
class Point:
    """One threshold.

    Args:
        threshold: on the score.
        accepted: share of the problems whose draft passes, 0 to 1.
        loss: mean loss (accuracy lost, 0 to 1; negative where drafts do better).
        p: of the hypothesis that the true loss is as large as the guarantee forbids.
    """

    threshold: float
    accepted: float
    loss: float
    p: float


def curve(
    scores: Floats,
    losses: Sequence[float] | Floats,
    thresholds: Sequence[float],
    *,
    risk: float,
    confidence: float,
) -> list[Point]:
    """What each threshold accepts and costs."""
    points = []
    for threshold in thresholds:
        lost = accepted_losses(scores, losses, threshold)
        accepted = float(np.mean(scores > threshold))
        p = p_value(lost, risk, level=1 - confidence)
        points.append(Point(threshold, accepted, float(lost.mean()), p))
    return points


def loosest(points: Sequence[Point], confidence: float, *, start: int = 0) -> Point | None:
    """The loosest threshold that is proven, by testing one after another until one fails.

    The chance that it loses more than the risk is at most 1 - confidence, however many
    thresholds there are, as long as neither they nor `start` were chosen on the same problems.

    Args:
        points: strict thresholds first.
        confidence: of the guarantee.
        start: the first to be tested.

    Returns:
        None where the first one fails already.
    """
    passed = None
    for point in points[start:]:
        if point.p > 1 - confidence:
            break
        passed = point
    return passed
