"""Rows → Markdown; every figure is a ratio within one run or has an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from parse_local.bench.summary import PHASES, Row

Column = tuple[str, Callable[[Row], str]]
"""Heading, and the text of a row."""

_ABSENT = "-"


def main_columns() -> list[Column]:
    """Accuracy and speed: what is asked first."""
    return [
        ("strategy", lambda r: r.strategy),
        ("right", lambda r: f"{r.n_right:g}/{r.n}"),
        ("accuracy (95%)", lambda r: _interval(r.accuracy)),
        ("only it / only the target right, p", _against),
        ("tok/s", lambda r: f"{r.tok_s:.2f}"),
        ("speed-up (95%)", lambda r: _interval(r.speedup)),
        ("bound", lambda r: _number(r.bound, "{:.2f}")),
        ("share of bound", lambda r: _percent(r.share_of_bound)),
        ("seconds a problem, ratio", lambda r: f"{r.seconds:.2f}, {r.time_ratio:.2f}"),
        ("first text, s", lambda r: f"{r.ttft_s:.2f}"),
    ]


def terminal_columns() -> list[Column]:
    """The least that says it all, for a screen of 80 columns."""
    return [
        ("strategy", lambda r: r.strategy),
        ("right (95%)", lambda r: _interval(r.accuracy)),
        ("tok/s", lambda r: f"{r.tok_s:.1f}"),
        ("speed-up (95%)", lambda r: _interval(r.speedup)),
        ("bound", lambda r: _number(r.bound, "{:.2f}")),
        ("first, s", lambda r: f"{r.ttft_s:.1f}"),
    ]


def detail_columns(rows: Sequence[Row]) -> list[Column]:
    """Where time and tokens went; columns that no row has anything for are left out."""
    columns: list[Column] = [
        ("strategy", lambda r: r.strategy),
        ("prompt / draft / verify / fork / target, % of time", _phases),
        ("accepted", lambda r: _percent(r.accepted)),
        ("exact", lambda r: _percent(r.accepted_exact)),
        ("semantic", lambda r: _percent(r.accepted_semantic)),
        ("rounds", lambda r: f"{r.n_rounds:.1f}"),
        ("forks", lambda r: f"{r.n_forks:.1f}"),
        ("proposals that held", lambda r: _percent(r.proposals)),
        ("tokens", lambda r: f"{r.n_tokens:.0f}"),
        ("text as the target's", lambda r: f"{r.same_text}"),
        ("memory, MB", lambda r: _number(r.peak_mb, "{:,.0f}")),
        ("energy, J", lambda r: _number(r.joules, "{:,.0f}")),
    ]
    kept = []
    for column in columns:
        if any(column[1](r) != _ABSENT for r in rows):
            kept.append(column)
    return kept


LEGEND = (
    "Speed-up is tokens per second, prompt included, against `target`, with a bootstrap interval "
    "over problems; ratio is the target's seconds per problem divided by the strategy's, which "
    "differs where answers differ in length. Accuracy has Wilson's interval; p is McNemar's exact "
    "test. The bound is the speed-up that the measured cost of the strategy's own decodes would "
    "allow if nothing else took time. Accepted is the share of answer tokens that the draft wrote "
    "(with `auto` also n-grams, between drafts or in place of them); exact are those of them that "
    "the target would have written too, semantic those that other evidence kept. Rounds, forks, "
    "tokens and energy are of one answer; memory is the most that the answering process held, "
    "with both models loaded."
)


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """The whole report.

    Args:
        rows: of all strategies.
        about: what was run, on what; printed in this order.
    """
    if not rows:
        return "No problem has been answered by every strategy yet.\n"
    facts = "".join(f"- {name}: {_cell(value)}\n" for name, value in about.items())
    tables = "\n".join(_table(c, rows) for c in (main_columns(), detail_columns(rows)))
    return f"{facts}\n{tables}\n{LEGEND}\n"


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    lines = [[heading for heading, _ in columns], ["---"] * len(columns)]
    lines += [[_cell(text(r)) for _, text in columns] for r in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _interval(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f}-{value[2]:.2f})"


def _number(value: float | None, form: str) -> str:
    return _ABSENT if value is None else form.format(value)


def _percent(value: float | None) -> str:
    return _ABSENT if value is None else f"{100 * value:.0f}%"


def _against(row: Row) -> str:
    return _ABSENT if row.p_value is None else f"{row.gained} / {row.lost}, {row.p_value:.2g}"


def _phases(row: Row) -> str:
    return " / ".join(f"{100 * row.phases[p]:.0f}" for p in PHASES) if row.phases else _ABSENT
