"""What was drafted in each round of an answer, what the verdicts said, what was kept."""

from __future__ import annotations

from rich.console import Console

from parse_local.events import Result, Round
from parse_local.terminal.stats import count

_SHOWN = 6
"""Prefix verdicts, or rounds without any, named one by one; more are summed up."""


def print_rounds(result: Result, console: Console) -> None:
    """Print how every round of an answer went.

    For example `round 1: 126 tokens drafted, 40 exact, 126 accepted; P(Correct) of the
    whole answer 0.98`. Many rounds without verdicts, as `auto` makes them, share one line.
    """
    rounds = [(r, _verdicts(r)) for r in result.rounds]
    without = [r for r, verdicts in rounds if not verdicts]
    summed_up = len(without) > _SHOWN
    if summed_up:
        n_draft = count(sum(r.n_draft for r in without), "token")
        n_accept = sum(r.n_accept for r in without)
        line = f"{len(without):,} rounds: {n_draft} drafted, {n_accept:,} accepted"
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    for i, (r, verdicts) in enumerate(rounds, 1):
        if summed_up and not verdicts:
            continue
        exact = f"{r.n_exact:,} exact, " if r.read else ""
        line = f"round {i}: {count(r.n_draft, 'token')} drafted, {exact}{r.n_accept:,} accepted"
        line += "".join(f"; {part}" for part in verdicts)
        console.print(line, style="dim", highlight=False, soft_wrap=True)


def _verdicts(r: Round) -> list[str]:
    parts = [
        f"P(Correct) of the whole answer {b.p_correct:.3f}"
        for b in r.boundaries
        if b.complete and b.p_correct is not None
    ]
    asked = [b.p_correct for b in r.boundaries if not b.complete and b.p_correct is not None]
    if len(asked) > _SHOWN:
        parts.append(f"of {len(asked)} prefixes {min(asked):.3f} to {max(asked):.3f}")
    elif asked:
        parts.append("of its prefixes " + ", ".join(f"{p:.3f}" for p in asked))
    parts += [f"mark {b.score:.3g} of 9" for b in r.boundaries if b.score is not None]
    if r.confidence is not None:
        parts.append(f"the draft is sure of it ({r.confidence:.2f})")
    return parts
