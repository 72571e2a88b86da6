"""One line a round: what was drafted, what the verdicts said, what was kept."""

from __future__ import annotations

from rich.console import Console

from parse_local.events import Result, Round
from parse_local.terminal.stats import count

_SHOWN = 6
"""Prefix verdicts named one by one; of more, only the lowest and the highest."""


def print_rounds(result: Result, console: Console) -> None:
    """Print how every round of an answer went.

    For example `round 1: 126 tokens drafted, 40 exact, 126 accepted; P(Correct) of the
    whole answer 0.98`.
    """
    for i, r in enumerate(result.rounds, 1):
        exact = f"{r.n_exact:,} exact, " if r.read else ""
        line = f"round {i}: {count(r.n_draft, 'token')} drafted, {exact}{r.n_accept:,} accepted"
        line += "".join(f"; {part}" for part in _verdicts(r))
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
