"""What calibration found, for a terminal and as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from parse_local.calibration.calibrate import Outcome, count
from parse_local.calibration.features import TERMS
from parse_local.errors import CalibrationError


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print data, weights, thresholds, the held-out check, and what follows."""
    parts = ", ".join(f"{n:,} {name}" for name, n in outcome.counts.items())
    _say(
        console,
        f"{count(sum(outcome.counts.values()))} ({parts}) · right: target "
        f"{outcome.target_right:.1%}, draft {outcome.draft_right:.1%} · drafts without an end "
        f"{outcome.unfinished:.1%}",
    )
    wordings = ", ".join(f"{k} {v:.3f}" for k, v in outcome.fit.wording_auc.items())
    _say(console, f"Wording: {outcome.fit.wording}, by the AUC of P(Correct): {wordings}")
    console.print(_weights(outcome), _unseen(outcome), _thresholds(outcome), sep="\n\n")
    if outcome.chosen is not None:
        low, high = outcome.held_out_interval
        _say(
            console,
            f"Held-out check: of {count(len(outcome.held_out))} the threshold accepts "
            f"{outcome.held_out_accepted:.0%} and loses {_points(float(outcome.held_out.mean()))} "
            f"points ({outcome.confidence:.0%} interval {_points(low)} to {_points(high)}).",
        )
    _say(console, outcome.sentence(), "bold")


def _say(console: Console, text: str, style: str = "") -> None:
    wrap = not console.is_terminal  # in a file it stays one line
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=wrap)


def _table(title: str, *heads: str) -> Table:
    table = Table(box=None, pad_edge=False, title_justify="left", header_style="dim")
    table.add_column(title)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _weights(outcome: Outcome) -> Table:
    table = _table("evidence", "usual", "weight")
    for name, weight in outcome.fit.fusion.weights.items():
        usual = f"{weight.mean:.3f} ± {weight.std:.3f}"
        table.add_row(TERMS[name].meaning, usual, f"{weight.weight:+.3f}")
    return table


def _unseen(outcome: Outcome) -> Table:
    heads = ("finished", "wrong", "AUC alone", "AUC fused", "accepted", "lost, points")
    table = _table("not fitted on", *heads)
    for name, found in outcome.unseen.items():
        fused, alone = ("-" if math.isnan(a) else f"{a:.3f}" for a in found.auc)
        table.add_row(
            name,
            f"{len(found.right):,}",
            f"{(~found.right).sum():,}",
            alone,
            fused,
            f"{found.accepted:.0%}",
            _points(found.lost),
        )
    return table


def _thresholds(outcome: Outcome) -> Table:
    table = _table("threshold", "accepted", "lost, points", "p-value", "")
    for i, point in enumerate(outcome.points):
        mark = "chosen" if point == outcome.chosen else "tested first" if i == outcome.start else ""
        table.add_row(
            f"{point.threshold:.3f}",
            f"{point.accepted:.0%}",
            _points(point.loss),
            f"{point.p:.4f}",
            mark,
            style="bold" if point == outcome.chosen else "",
        )
    return table


def _points(loss: float) -> str:
    return f"{100 * loss:.1f}"


def plotting() -> Any:
    """matplotlib's figure module, without a screen.

    Raises:
        CalibrationError: matplotlib or scipy is not installed.
    """
    try:
        import scipy  # noqa: F401 - the fit needs it; say so before an hour of collecting
        from matplotlib import figure
    except ImportError as error:
        raise CalibrationError(
            f"Calibration needs more packages ({error}); "
            "install them with: pip install 'parse-local[bench]'."
        ) from error
    return figure


def save_picture(path: Path, outcome: Outcome, title: str) -> None:
    """Draw the ROC curves, and accepted share against accuracy lost.

    Args:
        path: its ending chooses the format: .png, .svg, .pdf.
        outcome: of `calibrate`.
        title: for the head of the picture.

    Raises:
        CalibrationError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure = plotting().Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    unseen = outcome.unseen["all" if "all" in outcome.unseen else next(iter(outcome.unseen))]
    for label, scores, area in zip(
        ("fused", "P(Correct)"), (unseen.fused, unseen.alone), unseen.auc, strict=True
    ):
        left.plot(*roc(scores, unseen.right), label=f"{label}: {area:.3f}", drawstyle="steps-post")
    left.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    left.set(xlabel="wrong drafts accepted", ylabel="right drafts accepted")
    left.set_title("Evidence on drafts not fitted on (AUC)", fontsize=10)
    left.legend(loc="lower right")

    accepted = [100 * p.accepted for p in outcome.points]
    right.plot(accepted, [100 * p.loss for p in outcome.points], marker=".", label="measured")
    right.axhline(100 * outcome.max_drop, color="firebrick", label="allowed")
    right.axhline(0, color="grey", linewidth=0.8)
    if outcome.chosen is not None:
        right.plot(
            [100 * outcome.chosen.accepted],
            [100 * outcome.chosen.loss],
            marker="o",
            linestyle="none",
            label=f"chosen, proven at {outcome.confidence:.0%}",
        )
    right.set(xlabel="drafts accepted, %", ylabel="accuracy lost, points")
    right.set_title("Thresholds on the calibration part", fontsize=10)
    right.legend(loc="upper left")
    figure.savefig(path, dpi=150)


def roc(
    scores: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """False and true positive rates as the threshold falls, from (0, 0) to (1, 1)."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # equal scores pass together
    hits, misses = np.cumsum(right[order]), np.cumsum(~right[order])
    rates = [np.append(0.0, c[last] / max(1, c[-1])) for c in (misses, hits)]
    return rates[0], rates[1]
