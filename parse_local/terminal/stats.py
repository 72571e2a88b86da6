"""What an answer cost: one line for stderr, tables for `/stats`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from parse_local.events import Result

_FEW = 0.1
"""Proposed tokens, as a share of the answer's, that are not worth a figure in one line."""


def count(n: int, noun: str) -> str:
    """`1 token`, `2 tokens`, `1,024 tokens`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def percent(share: float) -> str:
    """A share, 0 to 1, in whole percent; 0% and 100% only where that is exact."""
    rounded = round(100 * share)
    if rounded == 0 and share > 0:
        return "<1%"
    if rounded == 100 and share < 1:
        return ">99%"
    return f"{rounded}%"


def factor(times: float) -> str:
    """A speed-up: `1.8x`, and `0.97x` where a digit more shows that it is none."""
    return f"{times:.1f}x" if times >= 1.05 else f"{times:.2f}x"


def is_context_full(result: Result, n_ctx: int) -> bool:
    """Whether an answer ended because prompt and answer fill the context."""
    n_used = result.usage.prompt_tokens + result.usage.completion_tokens
    return result.finish_reason == "length" and n_used >= n_ctx


def stats_line(result: Result, *, n_ctx: int | None = None) -> str:
    """One line about a finished answer.

    Args:
        result: the answer.
        n_ctx: tokens of context; adds how many of them are in use.

    Returns:
        For example `128 tokens · 17.9 tok/s · 1.8x the target alone · 71% from the draft ·
        3 rounds`; the speed-up only where it was measured.
    """
    n_used = result.usage.prompt_tokens + result.usage.completion_tokens
    parts = [count(result.usage.completion_tokens, "token")]
    if result.tokens_per_second:
        parts.append(f"{result.tokens_per_second:.1f} tok/s")
    if result.speedup is not None:
        parts.append(f"{factor(result.speedup)} the target alone")
    if result.rounds:
        parts.append(f"{percent(result.accepted_share)} from the draft")
        parts.append(count(len(result.rounds), "round"))
    t = result.tokens
    if t.spec_proposed >= _FEW * result.usage.completion_tokens > 0:
        parts.append(f"{t.spec_accepted:,} of {count(t.spec_proposed, 'proposed token')} accepted")
    if n_ctx is not None:
        parts.append(f"context {n_used:,}/{n_ctx:,}")
    if result.finish_reason == "cancelled":
        parts.append("cancelled")
    elif result.finish_reason == "length":
        full = n_ctx is not None and is_context_full(result, n_ctx)
        parts.append("context full" if full else "stopped at --max-tokens")
    return " · ".join(parts)


def print_stats(result: Result, console: Console) -> None:
    """Tables about a finished answer: its rounds, tokens and time."""
    console.print(stats_line(result), highlight=False)
    if result.rounds:
        console.print(_rounds(result))
    console.print(_tokens(result))
    console.print(_times(result))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _rounds(result: Result) -> Table:
    table = _table("Rounds (tokens)")
    for name in ("round", "drafted", "exact", "accepted", "verdicts", "P(Correct)"):
        table.add_column(name, justify="right")
    for i, r in enumerate(result.rounds, 1):
        asked = [b.p_correct for b in r.boundaries if b.p_correct is not None]
        low, high = (min(asked), max(asked)) if asked else (0.0, 0.0)
        spread = f"{low:.2f} to {high:.2f}" if len(asked) > 1 else f"{low:.2f}" if asked else "-"
        table.add_row(
            str(i),
            f"{r.n_draft:,}",
            f"{r.n_exact:,}" if r.read else "-",
            f"{r.n_accept:,}",
            str(len(asked)) if asked else "-",
            spread,
        )
    return table


def _tokens(result: Result) -> Table:
    t, usage = result.tokens, result.usage
    table = _table("Tokens")
    table.add_column("what")
    table.add_column("n", justify="right")
    for what, n in (
        ("prompt", usage.prompt_tokens),
        ("prompt, found in the target's cache", t.reused),
        ("prompt, found in the draft's cache", t.reused_draft),
        ("answer", usage.completion_tokens),
        ("answer, from the draft", t.n_accept),
        ("decoded by the draft", t.draft_decoded),
        ("decoded by the target", t.target_decoded),
        ("decoded for verdicts", t.suffix_decoded),
        ("proposed by speculation", t.spec_proposed),
        ("proposed and accepted", t.spec_accepted),
    ):
        table.add_row(what, f"{n:,}")
    return table


def _times(result: Result) -> Table:
    t = result.timings
    table = _table("Time")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    phases = (
        ("prompt", t.prompt_s),
        ("drafting", t.draft_s),
        ("verifying", t.verify_s),
        ("verdicts", t.fork_s),
        ("target's own text", t.target_s),
    )
    rest = t.total_s - sum(seconds for _, seconds in phases)
    for phase, seconds in (*phases, ("other", max(0.0, rest)), ("total", t.total_s)):
        share = percent(seconds / t.total_s) if t.total_s else "-"
        table.add_row(phase, f"{seconds:.2f}", share)
    table.add_row("to the first final text", f"{t.ttft_s:.2f}", "")
    return table
