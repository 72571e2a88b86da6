"""What `parse-local tune` shows: before and after, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from parse_local.costs import SIZES, CostCurve, PairCosts
from parse_local.hub.storage import format_size
from parse_local.tune.check import Role
from parse_local.tune.measure import MARGIN, WINDOW
from parse_local.tune.store import Record, Setting

Records = Mapping[Role, Record]


def bounds(records: Records) -> dict[str, float] | None:
    """The most that the pair can gain over its target alone, if every token is accepted.

    Target decode / (draft decode + target verify), each for a token.

    Returns:
        "before" and "after" tuning with windows of `WINDOW` tokens, and "best" with the best
        window; None unless both models were measured.
    """
    if "draft" not in records or "target" not in records:
        return None
    draft, target = records["draft"], records["target"]
    assert target.rows is not None
    costs = PairCosts(draft.bare, target.rows, target.bare)
    decode = target.rows.seconds(1) * target.speeds.decode
    verify = target.rows.per_token(WINDOW) * target.speeds.verify
    before = decode / (draft.bare.seconds(1) * draft.speeds.decode + verify)
    return {"before": before, "after": costs.bound(sizes=(WINDOW,)), "best": costs.bound()}


def to_json(records: Records) -> dict[str, Any]:
    """Everything that was found."""
    return {
        **{role: record.to_json() for role, record in records.items()},
        "bound": bounds(records),
    }


def print_report(records: Records, console: Console) -> None:
    """Print the report for people."""
    console.print(_summary(records))
    console.print(_curves(records))
    for role, record in records.items():
        if record.candidates:
            console.print(_candidates(role, record))
    gains = bounds(records)
    if gains:
        console.print(
            f"If every drafted token is accepted: {gains['before']:.2f}x of the target alone "
            f"before, {gains['after']:.2f}x now, with windows of {WINDOW} tokens; "
            f"{gains['best']:.2f}x with the best window.",
            soft_wrap=True,
        )
    for role, record in records.items():
        for setting, gain in _not_taken(record):
            if setting.kv_type != "f16":
                what = f"a {setting.kv_type} KV cache, which changes the text slightly"
                option = f"--kv-type {setting.kv_type}"
            else:
                what = "other attention, which rounds differently alone and in a batch"
                option = f"--flash-attn {setting.flash_attn}"
            console.print(
                f"The {role} would run at {gain:.2f}x with {what} and is left to you ({option}).",
                soft_wrap=True,
            )


def _not_taken(record: Record) -> list[tuple[Setting, float]]:
    """Settings that would be faster than the chosen ones, and how much."""

    def key(s: Setting) -> tuple[int, str, str]:
        return s.n_threads, s.flash_attn, s.kv_type

    taken = (record.n_threads, record.flash_attn, "f16")
    speeds = [s.speed for s in record.settings if key(s) == taken]
    others = [s for s in record.settings if s.n_threads == record.n_threads and key(s) != taken]
    return [(s, s.speed / now) for s in others for now in speeds if s.speed > MARGIN * now]


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def _summary(records: Records) -> Table:
    table = _table(
        "Settings", "", "runs as", "threads", "flash", "ms/token written", "ms/token verified"
    )
    for role, record in records.items():
        decode = record.bare.seconds(1)
        verify = (
            ""
            if record.rows is None
            else _change(record.rows.per_token(WINDOW), record.speeds.verify)
        )
        table.add_row(
            role,
            record.requantised.recipe if record.requantised else "it is",
            str(record.n_threads),
            record.flash_attn,
            _change(decode, record.speeds.decode),
            verify,
        )
    return table


def _change(seconds: float, speed: float) -> str:
    now = f"{seconds * 1e3:.3g}"
    return now if speed == 1.0 else f"{seconds * speed * 1e3:.3g} → {now}"


def _curves(records: Records) -> Table:
    curves = [
        (f"{role}{name}", curve)
        for role, record in records.items()
        for name, curve in (("", record.bare), (", every row", record.rows))
        if curve is not None
    ]
    table = _table("Milliseconds a token", "in one decode", *(name for name, _ in curves))
    for n in SIZES:
        tokens = "1 token" if n == 1 else f"{n} tokens"
        table.add_row(tokens, *(_per_token(curve, n) for _, curve in curves))
    return table


def _per_token(curve: CostCurve, n: int) -> str:
    # Beyond the last size that there was time for the curve goes on with its slope.
    return ("~" if n > curve.points[-1][0] else "") + f"{curve.per_token(n) * 1e3:.3g}"


def _candidates(role: Role, record: Record) -> Table:
    table = _table(f"Requantisations of the {role}", "", "size", "speed", "agrees", "perplexity")
    table.add_column("", overflow="fold")
    for c in record.candidates:
        q = c.quality
        table.add_row(
            c.recipe,
            format_size(c.n_bytes),
            "" if c.speed is None else f"{c.speed:.2f}x",
            "" if q is None else f"{q.agreement:.1%}",
            "" if q is None else f"x{q.perplexity:.3f}",
            c.verdict,
        )
    return table
