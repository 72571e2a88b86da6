"""Who wrote what: an answer with the parts that came from the draft marked."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.text import Text

from parse_local.events import Result
from parse_local.terminal.cells import Row, flow, split, visible
from parse_local.terminal.stats import percent

ACCEPTED = "green underline"
"""The underline tells it apart where green is not seen, and with NO_COLOR."""


def print_colors(result: Result, console: Console) -> None:
    """Draw an answer with what the draft wrote coloured, and a legend.

    On a terminal accepted text is green and underlined, with NO_COLOR underlined only. Where
    nothing can be styled a mark in the left margin says of every row who wrote it: `│` the
    draft, `┆` both, nothing the target.

    Args:
        result: a finished answer.
        console: where to draw.
    """
    styled = console.color_system is not None
    margin = 0 if styled else 2
    cells = [
        cell
        for span in result.spans
        if span.channel == "answer"
        for cell in split(visible(span.text), ACCEPTED if span.source == "draft" else "")
    ]
    rows = flow(cells, max(console.width - margin, 10))
    if len(rows) > 1 and not rows[-1].cells:
        rows.pop()
    for row in rows:
        line = _to_text(row) if styled else Text(f"{_mark(row)} ") + _to_text(row)
        console.print(line, soft_wrap=True, highlight=False)
    for line in _legend(result, styled=styled):
        console.print(line, highlight=False)


def _legend(result: Result, *, styled: bool) -> list[Text]:
    n, n_draft = result.usage.completion_tokens, result.tokens.n_accept
    draft = (
        f" accepted from the draft: {n_draft:,} of {n:,} tokens ({percent(result.accepted_share)})"
    )
    target = f" written by the target: {n - n_draft:,}"
    if styled:
        return [
            Text.assemble(("abc", ACCEPTED), (draft, "dim")),
            Text.assemble("abc", (target, "dim")),
        ]
    return [Text(f"│{draft}, ┆ in part"), Text(f" {target}")]


def _to_text(row: Row) -> Text:
    text = Text()
    for style, cells in groupby(row.cells, key=lambda cell: cell.style):
        text.append("".join(cell.text for cell in cells), style=style)
    return text


def _mark(row: Row) -> str:
    styles = {cell.style for cell in row.cells if not cell.text.isspace()}
    return "│" if styles == {ACCEPTED} else "┆" if ACCEPTED in styles else " "
