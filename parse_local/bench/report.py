"""Tables of finished runs; every figure is a ratio within one run or has an interval."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from parse_local.bench.runner import Run

_N_BOOTSTRAP = 2000


def wilson(n_right: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a share (95% by default)."""
    if n == 0:
        return 0.0, 1.0
    p = n_right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def speed_up(runs: Sequence[Run], base: Sequence[Run]) -> tuple[float, float, float]:
    """Ratio of tokens per second, with a bootstrap interval over problems (95%).

    Args:
        runs, base: one run a problem each, in the same order of problems.

    Returns:
        (ratio, lower, upper).
    """

    def ratio(chosen: Sequence[int]) -> float:
        def rate(of: Sequence[Run]) -> float:
            tokens = sum(of[i].result.usage.completion_tokens for i in chosen)
            return tokens / sum(of[i].result.timings.total_s for i in chosen)

        return rate(runs) / rate(base)

    n = len(runs)
    rng = random.Random(0)
    drawn = sorted(ratio(rng.choices(range(n), k=n)) for _ in range(_N_BOOTSTRAP))
    return ratio(range(n)), drawn[int(0.025 * _N_BOOTSTRAP)], drawn[int(0.975 * _N_BOOTSTRAP)]


def table(runs: Sequence[Run], base: str) -> str:
    """A Markdown table, one row a system.

    Args:
        runs: of all systems on the same problems.
        base: the system that speed-ups compare with.
    """
    by_system: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_system[run.system].append(run)
    for answers in by_system.values():
        answers.sort(key=lambda r: r.problem)
    same_text = {r.problem: r.result.text for r in by_system[base]}
    lines = [
        "| system | pass@1 (95% interval) | tok/s | speed-up (95% interval) | from the draft "
        "| text as the base's | prompt / draft / verify / fork / target, share of time "
        "| first final text, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for system, answers in by_system.items():
        n, right = len(answers), sum(r.correct for r in answers)
        low, high = wilson(right, n)
        results = [r.result for r in answers]
        tokens = sum(r.usage.completion_tokens for r in results)
        seconds = sum(r.timings.total_s for r in results)
        ratio, ratio_low, ratio_high = speed_up(answers, by_system[base])
        share = sum(r.tokens.n_accept for r in results) / max(1, tokens)
        same = sum(r.result.text == same_text[r.problem] for r in answers)
        phases = ("prompt_s", "draft_s", "verify_s", "fork_s", "target_s")
        split = " / ".join(
            f"{100 * sum(getattr(r.timings, p) for r in results) / seconds:.0f}" for p in phases
        )
        first = sorted(r.timings.ttft_s for r in results)[n // 2]
        lines.append(
            f"| {system} | {right}/{n} = {right / n:.2f} ({low:.2f}-{high:.2f}) "
            f"| {tokens / seconds:.1f} | {ratio:.2f} ({ratio_low:.2f}-{ratio_high:.2f}) "
            f"| {100 * share:.0f}% | {same}/{n} | {split} % | {first:.1f} |"
        )
    return "\n".join(lines)
