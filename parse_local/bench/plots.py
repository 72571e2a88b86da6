"""Pictures of a run, as SVG that takes its colours from the page it stands in."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from parse_local.bench.summary import PHASES, Row
from parse_local.errors import UsageError

_INK = "#010203"  # replaced by the page's own colour of text
PHASE_COLOURS = {
    "prompt_s": "#8a8f98",
    "draft_s": "#4f8ff7",
    "verify_s": "#9a6ee0",
    "fork_s": "#d9a514",
    "target_s": "#e07a3f",
}
_MARK, _BOUND = "#4f8ff7", "#d9a514"
_COLOURS = ("#8a8f98", "#4f8ff7", "#e07a3f", "#2fa36b", "#9a6ee0", "#d9a514", "#d0508a")
_SHAPES = "osD^v<>P*X"  # colour alone does not tell them apart for everybody


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """SVG by title.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise UsageError(
            "Plots need matplotlib; install it with: pip install 'parse-local[bench]'."
        ) from None
    settings: Any = {
        "svg.fonttype": "none",
        "text.parse_math": False,  # names are names, also with a dollar sign in them
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
        ),
    }
    drawn = {
        "Accuracy against speed-up": _accuracy,
        "Speed-up and its bound": _speed_up,
        "Where the time goes": _time,
    }
    found = {}
    for title, draw in drawn.items():
        with matplotlib.rc_context({**settings, "svg.hashsalt": title}):
            found[title] = _svg(draw, rows)
    return found


def _svg(draw: Any, rows: Sequence[Row]) -> str:
    from matplotlib.figure import Figure

    # No pyplot: it would look for a display and keep every figure.
    figure = Figure(figsize=(7, 4 if draw is _accuracy else 1 + 0.42 * len(rows)))
    draw(figure.add_subplot(), rows)
    out = io.StringIO()
    figure.savefig(
        out, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
    )
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]  # without the doctype, which names an address
    start, end = svg.index("<metadata>"), svg.index("</metadata>") + len("</metadata>")
    return (svg[:start] + svg[end:]).replace(_INK, "currentColor")


def _accuracy(axes: Any, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        (x, x_low, x_high), (y, low, high) = row.speedup, row.accuracy
        axes.errorbar(
            x,
            100 * y,
            xerr=[[max(0, x - x_low)], [max(0, x_high - x)]],
            yerr=[[100 * (y - low)], [100 * (high - y)]],
            fmt=_SHAPES[i % len(_SHAPES)],
            color=_COLOURS[i % len(_COLOURS)],
            elinewidth=1,
            label=row.strategy,
        )
    axes.axvline(1, color=_INK, linewidth=0.7, linestyle=":")
    axes.set_xlabel("speed-up against the target alone (95%)")
    axes.set_ylabel("right, % (95%)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=2)


def _speed_up(axes: Any, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        ratio, low, high = row.speedup
        axes.barh(i, ratio, color=_MARK, height=0.55, label="measured" if i == 0 else None)
        axes.errorbar(
            ratio, i, xerr=[[max(0, ratio - low)], [max(0, high - ratio)]], color=_INK, capsize=3
        )
        if row.bound is not None:
            axes.plot(
                [row.bound] * 2, [i - 0.36, i + 0.36], color=_BOUND, linewidth=3,
                label="bound" if i == 0 else None,
            )  # fmt: skip
    axes.axvline(1, color=_INK, linewidth=0.7, linestyle=":")
    _names(axes, rows)
    axes.set_xlabel("tokens per second, as a multiple of the target's (95%)")


def _time(axes: Any, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        left = 0.0
        for phase in PHASES:
            seconds = row.phases.get(phase, 0.0) * row.seconds
            label = phase.removesuffix("_s") if i == 0 else None
            axes.barh(i, seconds, left=left, color=PHASE_COLOURS[phase], height=0.55, label=label)
            left += seconds
        if row.seconds > left:
            rest = row.seconds - left
            axes.barh(i, rest, left=left, color=_INK, alpha=0.15, height=0.55,
                      label="other" if i == 0 else None)  # fmt: skip
    _names(axes, rows)
    axes.set_xlabel("seconds an answer")


def _names(axes: Any, rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [r.strategy for r in rows])
    axes.invert_yaxis()
    axes.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, handlelength=1,
        columnspacing=1, borderaxespad=0.2,
    )  # fmt: skip
