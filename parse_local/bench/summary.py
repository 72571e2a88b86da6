"""Records → one row of figures a strategy: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from parse_local.bench.bound import bound
from parse_local.bench.intervals import mcnemar, rate_ratio, wilson
from parse_local.bench.record import Record
from parse_local.bench.systems import BASE
from parse_local.costs import PairCosts

PHASES = ("prompt_s", "draft_s", "verify_s", "fork_s", "target_s")
Interval = tuple[float, float, float]
"""(value, lower, upper), 95%."""


@dataclass(frozen=True)
class Row:
    """What one strategy did, on the problems that every strategy has answered.

    With repeats a problem counts once: by its share of right answers, and by its mean times.

    Args:
        n: problems.
        n_right: how many were right.
        accuracy: with Wilson's interval.
        gained, lost: problems that this one has right and the base wrong, and the other way.
        p_value: McNemar's exact test of those two; None for the base itself.
        tok_s: answer tokens per second, prompt time included.
        speedup: ratio of `tok_s` to the base's, with a bootstrap interval over problems.
        time_ratio: the base's seconds per problem divided by this one's; differs from `speedup`
            where answers differ in length.
        bound: most that `speedup` could be (see `bound`); None where it is not known.
        seconds: of an answer.
        ttft_s: median time to the first final text.
        phases: share of the time, by `PHASES`; empty for other programs.
        n_tokens: of an answer.
        accepted: share of the answer's tokens that the draft, or n-grams in its place, wrote.
        accepted_exact: share that were the target's own choice too.
        accepted_semantic: share that other evidence accepted.
        n_forks, n_rounds: of an answer.
        proposals: share of token-level proposals that held; None where there were none.
        same_text: answers that are the base's to the last character.
        peak_mb: most memory, in 10^6 bytes; None where unknown.
        joules: of an answer; None where unknown.
    """

    strategy: str
    n: int
    n_right: float
    accuracy: Interval
    gained: int
    lost: int
    p_value: float | None
    tok_s: float
    speedup: Interval
    time_ratio: float
    bound: float | None
    seconds: float
    ttft_s: float
    phases: dict[str, float]
    n_tokens: float
    accepted: float
    accepted_exact: float
    accepted_semantic: float
    n_forks: float
    n_rounds: float
    proposals: float | None
    same_text: int
    peak_mb: float | None
    joules: float | None

    @property
    def share_of_bound(self) -> float | None:
        """How much of its bound the strategy reaches."""
        return self.speedup[0] / self.bound if self.bound else None

    def to_json(self) -> dict[str, Any]:
        """The strategy's object in summary.json."""
        ratio, ratio_low, ratio_high = self.speedup
        accuracy, low, high = self.accuracy
        return {
            "n": self.n,
            "accuracy": round(accuracy, 4),
            "accuracy_lo": round(low, 4),
            "accuracy_hi": round(high, 4),
            "tok_s": round(self.tok_s, 3),
            "speedup": round(ratio, 4),
            "speedup_lo": round(ratio_low, 4),
            "speedup_hi": round(ratio_high, 4),
            "bound": None if self.bound is None else round(self.bound, 4),
            "ttft_s": round(self.ttft_s, 4),
            "accepted_share": round(self.accepted, 4),
            "peak_mb": None if self.peak_mb is None else round(self.peak_mb, 1),
        }


def complete(records: Iterable[Record], strategies: Sequence[str], repeat: int) -> list[Record]:
    """Records of the problems that all strategies have answered all times."""
    by_problem: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_problem[record.problem].append(record)
    n = len(strategies) * repeat
    return [r for found in by_problem.values() if len(found) == n for r in found]


def summarize(
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    costs: PairCosts | None = None,
    draft_proposes: bool = False,
) -> list[Row]:
    """One row a strategy, in the order of `strategies`.

    Args:
        records: what `complete` returns.
        strategies: the base among them.
        costs: for the bound; None leaves it out.
        draft_proposes: as in `bound`.
    """
    answers: dict[str, dict[str, list[Record]]] = {s: defaultdict(list) for s in strategies}
    for record in sorted(records, key=lambda r: r.repeat):
        answers[record.strategy][record.problem].append(record)
    problems = list(answers[BASE])
    if not problems:
        return []
    base = [answers[BASE][p] for p in problems]
    return [
        _row(s, [answers[s][p] for p in problems], base, costs, draft_proposes=draft_proposes)
        for s in strategies
    ]


def _row(
    strategy: str,
    answers: list[list[Record]],
    base: list[list[Record]],
    costs: PairCosts | None,
    *,
    draft_proposes: bool,
) -> Row:
    every = [r for repeats in answers for r in repeats]
    n = len(answers)
    right, base_right = _right(answers), _right(base)
    n_right = sum(right)
    gained = sum(a > b for a, b in zip(right, base_right, strict=True))
    lost = sum(a < b for a, b in zip(right, base_right, strict=True))
    low, high = wilson(n_right, n)
    tokens = sum(r.n_tokens for r in every)
    seconds = sum(r.timings.total_s for r in every)
    base_seconds = sum(r.timings.total_s for repeats in base for r in repeats)
    base_texts = {r.key[:2]: r.text for repeats in base for r in repeats}
    exact = sum(_exact(rounds) for rounds in _rounds(every))
    semantic = sum(_semantic(rounds) for rounds in _rounds(every))
    proposed = sum(r.tokens.spec_proposed for r in every)
    peaks = [r.peak_bytes for r in every if r.peak_bytes is not None]
    joules = [r.joules for r in every if r.joules is not None]
    is_base = strategy == BASE
    return Row(
        strategy=strategy,
        n=n,
        n_right=n_right,
        accuracy=(n_right / n, low, high),
        gained=gained,
        lost=lost,
        p_value=None if is_base else mcnemar(gained, lost),
        tok_s=tokens / seconds,
        speedup=(1.0, 1.0, 1.0) if is_base else rate_ratio(_totals(answers), _totals(base)),
        time_ratio=base_seconds / seconds,
        bound=None
        if costs is None
        else bound(every, [r for rs in base for r in rs], costs, draft_proposes=draft_proposes),
        seconds=seconds / len(every),
        ttft_s=median(r.timings.ttft_s for r in every),
        phases=_phases(every, seconds),
        n_tokens=tokens / len(every),
        accepted=_share(sum(r.tokens.n_accept for r in every), tokens),
        accepted_exact=_share(exact, tokens),
        accepted_semantic=_share(semantic, tokens),
        n_forks=_mean(every, lambda r: sum(_asked(x) for x in r.rounds)),
        n_rounds=_mean(every, lambda r: len(r.rounds)),
        proposals=_share(sum(r.tokens.spec_accepted for r in every), proposed)
        if proposed
        else None,
        same_text=sum(r.text == base_texts[r.key[:2]] for r in every),
        peak_mb=max(peaks) / 1e6 if len(peaks) == len(every) else None,
        joules=fmean(joules) if len(joules) == len(every) else None,
    )


def _right(answers: list[list[Record]]) -> list[float]:
    return [fmean(r.correct for r in repeats) for repeats in answers]


def _totals(answers: list[list[Record]]) -> list[tuple[float, float]]:
    return [
        (sum(r.n_tokens for r in repeats), sum(r.timings.total_s for r in repeats))
        for repeats in answers
    ]


def _rounds(records: Sequence[Record]) -> list[tuple[dict[str, Any], ...]]:
    return [r.rounds for r in records]


def _exact(rounds: Sequence[dict[str, Any]]) -> int:
    return sum(min(r["n_exact"], r["n_accept"]) for r in rounds)


def _asked(round_: dict[str, Any]) -> int:
    # Where the draft's own confidence decided, the target was asked nothing.
    places = round_["boundaries"]
    return sum(b["p_correct"] is not None or b.get("score") is not None for b in places)


def _semantic(rounds: Sequence[dict[str, Any]]) -> int:
    return sum(max(0, r["n_accept"] - r["n_exact"]) for r in rounds)


def _phases(records: Sequence[Record], seconds: float) -> dict[str, float]:
    spent = {p: sum(getattr(r.timings, p) for r in records) for p in PHASES}
    counted = any(r.target_passes or r.draft_passes for r in records)
    return {p: s / seconds for p, s in spent.items()} if counted else {}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(records: Sequence[Record], of: Callable[[Record], float]) -> float:
    return fmean(of(r) for r in records)
