"""From samples to a profile: fit, test the thresholds, check on what neither has seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.calibration.fit import Fit, auc, fit, scores_of, verdict_scores
from parse_local.calibration.risk import (
    Point,
    accepted_losses,
    curve,
    interval,
    loosest,
    problems_needed,
)
from parse_local.calibration.samples import SHARES, Sample, losses
from parse_local.errors import CalibrationError
from parse_local.profile import JudgeWording, Profile

Floats = npt.NDArray[np.float64]

N_THRESHOLDS = 20
"""Thresholds tried: each accepts a twentieth more of the fitting part's finished drafts."""


@dataclass(frozen=True)
class Unseen:
    """What the weights have not seen: the calibration and held-out parts.

    Args:
        fused: scores of the finished drafts.
        alone: P(Correct) by itself, as log-odds.
        right: which are correct.
        accepted: share of all drafts that the chosen threshold accepts.
        lost: the accuracy lost by that.
    """

    fused: Floats
    alone: Floats
    right: npt.NDArray[np.bool_]
    accepted: float
    lost: float

    @property
    def auc(self) -> tuple[float, float]:
        """Areas under the ROC curve, fused and alone; nan without a right and a wrong draft."""
        return auc(self.fused, self.right), auc(self.alone, self.right)


@dataclass(frozen=True)
class Outcome:
    """What calibration found.

    Args:
        fit: wording and weights.
        chosen: the loosest proven threshold on the fused score, None where none is proven.
        chosen_tau: the same for P(Correct) alone, as log-odds.
        points: every threshold on the calibration part, strict ones first.
        start: the first of them that was tested.
        counts: problems of each part.
        max_drop: accuracy that may be lost, 0 to 1.
        confidence: of the guarantee.
        seed: of the parts.
        target_right, draft_right: accuracy on all problems, 0 to 1.
        unfinished: share of drafts that did not end by themselves.
        held_out: each held-out problem's loss where the chosen threshold accepts its draft.
        held_out_accepted: share of them that it accepts.
        unseen: how well the evidence separates, by task and "all".
    """

    fit: Fit
    chosen: Point | None
    chosen_tau: Point | None
    points: tuple[Point, ...]
    start: int
    counts: Mapping[str, int]
    max_drop: float
    confidence: float
    seed: int
    target_right: float
    draft_right: float
    unfinished: float
    held_out: Floats
    held_out_accepted: float
    unseen: Mapping[str, Unseen]

    @property
    def held_out_interval(self) -> tuple[float, float]:
        """Bounds on the loss that the held-out part alone gives."""
        return interval(self.held_out, self.confidence)

    @property
    def n_needed(self) -> int:
        """Problems that prove the guarantee at best, all parts together."""
        return math.ceil(problems_needed(self.max_drop, self.confidence) / SHARES["calibrate"])

    def sentence(self) -> str:
        """What came of it, for a person."""
        points = f"{100 * self.max_drop:g} point{'' if self.max_drop == 0.01 else 's'}"
        if self.chosen is not None:
            return (
                f"Accepting {self.chosen.accepted:.0%} of the drafts whole loses at most {points} "
                f"of accuracy against the target alone, with {self.confidence:.0%} confidence."
            )
        n = self.counts["calibrate"]
        enough = problems_needed(self.max_drop, self.confidence)
        text = (
            f"No threshold is proven to lose at most {points} of accuracy with "
            f"{self.confidence:.0%} confidence, so the pair stays lossless."
        )
        if n < enough:
            text += (
                f" The calibration part has {count(n)}; where drafts neither lose nor win an answer"
                f" it takes {enough:,} to prove that, {self.n_needed:,} in all (--n "
                f"{self.n_needed}). A larger --max-drop needs fewer."
            )
        else:
            text += (
                f" The first threshold tested accepted {self.points[self.start].accepted:.0%} of "
                f"the drafts and lost {100 * self.points[self.start].loss:.1f} points in "
                f"{count(n)}. A better draft, or a larger --max-drop, may pass."
            )
        return text


def count(n: int) -> str:
    """ "1 problem", "200 problems"."""
    return f"{n:,} problem{'' if n == 1 else 's'}"


def calibrate(
    samples: Sequence[Sample], *, max_drop: float, confidence: float, seed: int
) -> Outcome:
    """Fit the weights on one part, test thresholds on another, look at the result on a third.

    Thresholds are those at which the fitting part's drafts are accepted by twentieths. They
    are tested from strict to loose until one fails. Where the calibration part is so small that
    the strictest, which accepts next to nothing, could never be proven, the test begins at the
    threshold that looks best on the fitting part.

    Args:
        samples: in an order that depends on their names alone (`read_samples`).
        max_drop: accuracy that may be lost, 0 to 1.
        confidence: that it is not exceeded, for example 0.95.
        seed: of the parts.

    Raises:
        CalibrationError: a part is empty, or holds too few right or wrong drafts to fit.
    """
    parts: dict[str, list[Sample]] = {name: [] for name in SHARES}
    for sample in samples:
        parts[sample.split(seed)].append(sample)
    empty = [name for name, part in parts.items() if not part]
    if empty:
        raise CalibrationError(
            f"{count(len(samples))} cannot be cut into three parts (none is left for "
            f"{empty[0]}); use more (--n)."
        )
    found = fit(parts["fit"])
    fused = {name: scores_of(found.fusion, found.wording, part) for name, part in parts.items()}
    alone = {name: verdict_scores(found.wording, part) for name, part in parts.items()}
    chosen, points, start = _test(fused, parts, max_drop, confidence)
    chosen_tau, _, _ = _test(alone, parts, max_drop, confidence)
    held = parts["held-out"]
    threshold = chosen.threshold if chosen else math.inf
    return Outcome(
        fit=replace(found, fusion=replace(found.fusion, threshold_full=threshold)),
        chosen=chosen,
        chosen_tau=chosen_tau,
        points=tuple(points),
        start=start,
        counts={name: len(part) for name, part in parts.items()},
        max_drop=max_drop,
        confidence=confidence,
        seed=seed,
        target_right=float(np.mean([s.target_right for s in samples])),
        draft_right=float(np.mean([s.draft_right for s in samples])),
        unfinished=float(np.mean([not s.finished for s in samples])),
        held_out=accepted_losses(fused["held-out"], losses(held), threshold),
        held_out_accepted=float(np.mean(fused["held-out"] > threshold)),
        unseen=_unseen(found, [*parts["calibrate"], *held], threshold),
    )


def _test(
    scores: Mapping[str, Floats],
    parts: Mapping[str, Sequence[Sample]],
    max_drop: float,
    confidence: float,
) -> tuple[Point | None, list[Point], int]:
    finite = np.sort(scores["fit"][np.isfinite(scores["fit"])])
    # Just below the score of the last draft to be accepted: a threshold itself does not pass.
    places = [len(finite) - math.ceil(len(finite) * k / N_THRESHOLDS) for k in range(1, 21)]
    thresholds = sorted({float(np.nextafter(finite[i], -np.inf)) for i in places}, reverse=True)
    fitted, tested = (
        curve(scores[p], losses(parts[p]), thresholds, risk=max_drop, confidence=confidence)
        for p in ("fit", "calibrate")
    )
    start = 0
    if len(parts["calibrate"]) < problems_needed(max_drop, confidence):
        start = min(range(len(fitted)), key=lambda i: fitted[i].p)
    chosen = loosest(tested, confidence, start=start)
    return (chosen if chosen and chosen.accepted > 0 else None), tested, start


def _unseen(found: Fit, samples: Sequence[Sample], threshold: float) -> dict[str, Unseen]:
    tasks = sorted({s.task for s in samples})
    groups = {task: [s for s in samples if s.task == task] for task in tasks}
    if len(groups) > 1:
        groups["all"] = list(samples)
    unseen = {}
    for name, group in groups.items():
        scores = scores_of(found.fusion, found.wording, group)
        finished = np.array([s.finished for s in group], bool)
        unseen[name] = Unseen(
            fused=scores[finished],
            alone=verdict_scores(found.wording, group)[finished],
            right=np.array([s.draft_right for s in group], bool)[finished],
            accepted=float(np.mean(scores > threshold)),
            lost=float(accepted_losses(scores, losses(group), threshold).mean()),
        )
    return unseen


def profile_of(outcome: Outcome, before: Profile, wording: JudgeWording) -> Profile:
    """The profile that follows; a pair without a proven threshold is not calibrated.

    Args:
        outcome: of `calibrate`.
        before: the pair's profile so far, for what calibration does not touch.
        wording: the one of `outcome.fit.wording`.
    """
    tau = outcome.chosen_tau
    return replace(
        before,
        calibrated=outcome.chosen is not None,
        tau_full=1 / (1 + math.exp(-tau.threshold)) if tau else before.tau_full,
        wording=wording,
        fusion=outcome.fit.fusion,
    )


def fitted_table(outcome: Outcome) -> dict[str, Any]:
    """The `[fitted]` table: where the numbers come from. Shares and losses in percent."""

    def percent(value: float) -> float:
        return round(100 * value, 2)

    def group(found: Unseen) -> dict[str, Any]:
        areas = dict(zip(("auc_fused", "auc_p_correct"), found.auc, strict=True))
        return {
            "drafts": len(found.right),
            "wrong": int((~found.right).sum()),
            **{name: round(v, 4) for name, v in areas.items() if not math.isnan(v)},
            "accepted": percent(found.accepted),
            "lost": percent(found.lost),
        }

    low, high = outcome.held_out_interval
    return {
        "result": outcome.sentence(),
        "max_drop": percent(outcome.max_drop),
        "confidence": outcome.confidence,
        "seed": outcome.seed,
        "problems": dict(outcome.counts),
        "target_right": percent(outcome.target_right),
        "draft_right": percent(outcome.draft_right),
        "drafts_unfinished": percent(outcome.unfinished),
        "penalty": outcome.fit.penalty,
        "tested_from": round(outcome.points[outcome.start].threshold, 6),
        # threshold, drafts accepted, accuracy lost, p-value
        "curve": [
            [round(p.threshold, 6), percent(p.accepted), percent(p.loss), round(p.p, 5)]
            for p in outcome.points
        ],
        "held_out": {
            "accepted": percent(outcome.held_out_accepted),
            "lost": percent(float(outcome.held_out.mean())),
            "lost_at_least": percent(low),
            "lost_at_most": percent(high),
        },
        "not_fitted_on": {name: group(found) for name, found in outcome.unseen.items()},
        "wording_auc": {k: round(v, 4) for k, v in outcome.fit.wording_auc.items()},
    }
