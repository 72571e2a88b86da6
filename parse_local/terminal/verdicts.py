"""Drawing of a verification: verdicts beside the text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from parse_local.calibration.features import TERMS
from parse_local.events import Boundary, Round
from parse_local.profile import Fusion
from parse_local.terminal.cells import Row, flow, split, visible
from parse_local.terminal.stats import count

LOW_MASS = 0.9
"""Below this share of both labels the answer was hardly one of the two words."""

_STYLES = {"": "", "accepted": "green", "rejected": "dim red"}


@dataclass(frozen=True)
class _Segment:
    text: str
    style: str
    boundary: int | None  # index of the boundary at its end


def print_verdicts(
    text: str,
    round: Round,
    *,
    console: Console,
    tau_full: float | None = None,
    tau_prefix: float | None = None,
    sequential: Round | None = None,
    fusion: Fusion | None = None,
) -> None:
    """Draw an answer with P(Correct) at every place where it was judged.

    Every verdict stands in the right margin of the row on which the judged prefix
    ends. The accepted part has `│` in the left margin, the rest `·`, so that the
    drawing can be read without colours.

    Args:
        text: the answer that was judged.
        round: what `Engine.verify` returned.
        console: where to draw.
        tau_full: threshold of the finished answer, for the last line.
        tau_prefix: threshold of unfinished prefixes, for the last line.
        sequential: the same verdicts from plain passes; adds their column and the difference.
        fusion: the pair's weights; adds what each kind of evidence says about the whole.
    """
    boundaries = sorted(round.boundaries, key=lambda b: (b.n_chars, b.n_tokens, b.complete))
    plain = {(b.n_tokens, b.complete): b for b in sequential.boundaries} if sequential else {}
    n_columns = 3 if sequential else 1
    margin = 2 + 8 * n_columns + 1
    width = max(console.width - 2 - margin, 10)
    heads = ["forks", "plain", "diff"][:n_columns] if sequential else ["P(Corr.)"]
    _print_row(console, " ", Text(), width, "".join(f"{h:>8}" for h in heads))

    cut = _cut(len(text), round, boundaries)
    segments = list(_segments(text, cut, boundaries))
    if cut == 0:
        _print_cut(console, width + margin)
    for i, segment in enumerate(segments):
        rows = flow(split(visible(segment.text), segment.style), width)
        if len(rows) > 1 and not rows[-1].cells:
            rows.pop()  # the segment ends with a line break
        verdict = ""
        if segment.boundary is not None:
            boundary = boundaries[segment.boundary]
            verdict = _verdict(
                boundary, plain.get((boundary.n_tokens, boundary.complete)), sequential
            )
        mark = "│" if segment.style == "accepted" else "·"
        for j, row in enumerate(rows):
            last = j == len(rows) - 1
            _print_row(console, mark, _to_text(row), width, verdict if last else "")
        follows = segments[i + 1 : i + 2]
        if segment.style == "accepted" and follows and follows[0].style == "rejected":
            _print_cut(console, width + margin)
    _print_summary(round, console, tau_full, tau_prefix, sequential)
    if fusion is not None and boundaries:
        _print_parts(boundaries[-1], fusion, console)


def _cut(n_chars: int, round: Round, boundaries: list[Boundary]) -> int:
    """Characters that were accepted; between two boundaries in proportion to the tokens."""
    if round.n_accept >= round.n_draft:
        return n_chars
    tokens, chars = 0, 0
    for boundary in [*boundaries, Boundary(round.n_draft, n_chars)]:
        if boundary.n_tokens == round.n_accept:
            return boundary.n_chars
        if boundary.n_tokens > round.n_accept:
            share = (round.n_accept - tokens) / (boundary.n_tokens - tokens)
            return chars + int(share * (boundary.n_chars - chars))
        tokens, chars = boundary.n_tokens, boundary.n_chars
    return chars


def _segments(text: str, cut: int, boundaries: list[Boundary]) -> Iterator[_Segment]:
    """The text cut at each boundary and at the end of the accepted part."""
    start = 0
    for index, boundary in enumerate(boundaries):
        end = max(start, min(boundary.n_chars, len(text)))
        if start < cut < end:
            yield _Segment(text[start:cut], "accepted", None)
            start = cut
        yield _Segment(text[start:end], "accepted" if end <= cut else "rejected", index)
        start = end
    if start < cut:
        yield _Segment(text[start:cut], "accepted", None)
    if max(start, cut) < len(text):
        yield _Segment(text[max(start, cut) :], "rejected", None)


def _verdict(boundary: Boundary, plain: Boundary | None, sequential: Round | None) -> str:
    p = boundary.p_correct
    low = boundary.label_mass is not None and boundary.label_mass < LOW_MASS
    columns = [_number(p)]
    if sequential is not None:
        q = plain.p_correct if plain else None
        columns += [_number(q), f"{p - q:+.3f}" if p is not None and q is not None else "-"]
    return "".join(f"{c:>8}" for c in columns) + ("!" if low else " ")


def _number(p: float | None) -> str:
    return "-" if p is None else f"{p:.3f}"


def _to_text(row: Row) -> Text:
    text = Text()
    for style, cells in groupby(row.cells, key=lambda cell: cell.style):
        text.append("".join(cell.text for cell in cells), style=_STYLES[style])
    return text


def _print_row(console: Console, mark: str, text: Text, width: int, verdict: str) -> None:
    padding = " " * max(0, width - cell_len(text.plain)) if verdict else ""
    line = Text.assemble((mark, "dim"), " ", text, padding, "  ", (verdict, "bold"))
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)


def _print_cut(console: Console, width: int) -> None:
    label = "──── cut "
    console.print(label + "─" * max(0, width + 1 - len(label)), soft_wrap=True, highlight=False)


def _print_summary(
    round: Round,
    console: Console,
    tau_full: float | None,
    tau_prefix: float | None,
    sequential: Round | None,
) -> None:
    def say(text: str, style: str = "") -> None:
        wrap = not console.is_terminal  # words wrap on a terminal; in a file it stays one line
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=wrap)

    parts = [
        f"│ accepted: {round.n_accept:,} of {count(round.n_draft, 'token')}",
        f"first {round.n_exact:,} exactly the target's",
    ]
    if tau_full is not None:
        parts.append(f"tau {tau_full:g} whole")
    if tau_prefix is not None:
        parts.append(f"tau {tau_prefix:g} prefix")
    say(" · ".join(parts), "dim")
    if sequential is not None:
        pairs = {(b.n_tokens, b.complete): b.p_correct for b in sequential.boundaries}
        differences = [
            abs(b.p_correct - q)
            for b in round.boundaries
            if b.p_correct is not None and (q := pairs.get((b.n_tokens, b.complete))) is not None
        ]
        if differences:
            say(f"forks against plain passes: at most {max(differences):.4f} apart", "dim")
    masses = [b.label_mass for b in round.boundaries if b.label_mass is not None]
    if masses and min(masses) < LOW_MASS:
        say(
            f"! At {count(sum(m < LOW_MASS for m in masses), 'place')} the two labels together "
            f"have little probability ({min(masses):.2f} at the lowest): the target did not "
            "answer the question, so these verdicts say little.",
            "yellow",
        )


def _print_parts(boundary: Boundary, fusion: Fusion, console: Console) -> None:
    """What each term of evidence adds to the score of the last boundary."""
    table = Table(box=None, pad_edge=False, title_justify="left", header_style="dim")
    table.add_column("evidence, whole answer" if boundary.complete else "evidence, last boundary")
    for head in ("here", "usual", "part"):
        table.add_column(head, justify="right")
    parts = fusion.parts(boundary.terms)
    for name, weight in fusion.weights.items():
        here = f"{boundary.terms[name]:.3f}" if name in boundary.terms else "-"
        usual = f"{weight.mean:.3f} ± {weight.std:.3f}"
        part = f"{parts[name]:+.3f}" if name in parts else "-"
        table.add_row(TERMS[name].meaning, here, usual, part)
    table.add_row("intercept", "", "", f"{fusion.intercept:+.3f}", style="dim")
    threshold = fusion.threshold_full if boundary.complete else fusion.threshold_prefix
    passes = "accepts" if fusion.accepts(boundary.terms, complete=boundary.complete) else "rejects"
    needed = "nothing passes" if threshold == math.inf else f"needs more than {threshold:.3f}"
    console.print(table)
    score = f"score {fusion.score(boundary.terms):+.3f}: --accept fused {passes} it ({needed})"
    console.print(score, style="bold", highlight=False, soft_wrap=True)
