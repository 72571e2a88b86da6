"""The bound of a strategy: the speed-up that its own decodes allow, if nothing else took time.

Pure. The target alone costs its prompt and one decode a token:

    T = target(prompt) + n * target(1)

and a strategy what it decoded, each batch at its measured cost:

    S = draft(prompt) + draft tokens * draft(1)              the draft writes
      + target(prompt) + sum of target(verify pass)          the target reads
      + sum of target(suffixes of the forks, few rows)       and judges
      + tokens that the target wrote * target(1)             and writes the rest

The bound is T / S, in tokens per second as the speed-up itself is, so that answers of different
length compare. No sampling, no bookkeeping, no waiting is in it: what a strategy reaches
of its bound says how much of its time is decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parse_local.bench.record import Record
from parse_local.costs import Curve, PairCosts
from parse_local.events import Pass


def passes_seconds(passes: Iterable[Pass], bare: Curve, rows: Curve) -> float:
    """Seconds of some decodes.

    Args:
        passes: by shape.
        bare: cost of a decode with one output row.
        rows: cost of a decode with an output row for every token; with fewer rows the cost
            lies between the two in proportion.
    """
    total = 0.0
    for p in passes:
        share = 1.0 if p.n_tokens == 1 else max(0, p.n_rows - 1) / (p.n_tokens - 1)
        one = bare.seconds(p.n_tokens)
        total += p.n * (one + share * (rows.seconds(p.n_tokens) - one))
    return total


def decode_seconds(record: Record, costs: PairCosts, *, draft_proposes: bool = False) -> float:
    """Seconds of everything that was decoded for an answer.

    Args:
        record: the answer.
        costs: of the pair.
        draft_proposes: the draft model also makes the proposals of token-level speculation;
            other proposers cost nothing here.
    """
    seconds = passes_seconds(record.target_passes, costs.target_bare, costs.target)
    seconds += passes_seconds(record.draft_passes, costs.draft, costs.draft)
    if draft_proposes:
        seconds += record.tokens.spec_proposed * costs.draft.seconds(1)
    return seconds


def bound(
    records: Sequence[Record],
    base: Sequence[Record],
    costs: PairCosts,
    *,
    draft_proposes: bool = False,
) -> float | None:
    """The most that a strategy could be faster than the target alone.

    Args:
        records: its answers.
        base: the target's own answers to the same problems.
        costs: of the pair.
        draft_proposes: as `decode_seconds`.

    Returns:
        T / S of the module's text; None where decodes were not counted.
    """

    def rate(of: Sequence[Record]) -> float:
        seconds = sum(decode_seconds(r, costs, draft_proposes=draft_proposes) for r in of)
        return sum(r.n_tokens for r in of) / seconds if seconds else 0.0

    counted = all(r.target_passes or r.draft_passes for r in (*records, *base))
    return rate(records) / rate(base) if counted and rate(base) else None
