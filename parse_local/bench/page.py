"""One self-contained HTML page of a run: no script, no request, nothing trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parse_local.bench.record import Record
from parse_local.bench.report import LEGEND, detail_columns, main_columns
from parse_local.bench.summary import Row

Kind = Literal["accepted", "judged", "rewritten", "rejected"]
_TEMPLATE = Path(__file__).with_name("page.html.jinja")


@dataclass(frozen=True)
class Piece:
    """A stretch of an answer or of a draft, and the verdict at its end.

    Args:
        kind: "accepted" the draft wrote it and the target would have written the same;
            "judged" the draft wrote it and other evidence kept it; "rewritten" the target
            wrote it; "rejected" the draft wrote it and it was dropped.
        verdict: the evidence at the boundary that lies at its end, a line each.
    """

    text: str
    kind: Kind
    verdict: tuple[str, ...] = ()


def verdict_lines(boundary: Mapping[str, Any]) -> tuple[str, ...]:
    """What was found out at one boundary, a line each."""
    lines = []
    if boundary["p_correct"] is not None:
        place = "of the finished answer" if boundary["complete"] else "up to here"
        lines.append(f"P(Correct) {boundary['p_correct']:.4f} {place}")
    for name, form in (("score", ".2f"), ("confidence", ".3f"), ("label_mass", ".3f")):
        if boundary.get(name) is not None:
            lines.append(f"{name.replace('_', ' ')} {boundary[name]:{form}}")
    for name, value in boundary["terms"].items():
        if name not in ("p_correct", "label_mass"):  # they are there already
            lines.append(f"{name.replace('_', ' ')} {value:.3f}")
    return (*lines, f"{boundary['n_tokens']} draft tokens")


def answer_pieces(record: Record) -> list[Piece]:
    """An answer cut at its spans, at the ends of exact prefixes, and where it was judged."""
    ends: dict[int, Kind] = {}
    marks: dict[int, tuple[str, ...]] = {}
    at = 0
    for span in record.spans:
        at += len(span.text)
        ends[at] = "accepted" if span.source == "draft" else "rewritten"
    for round_ in record.rounds:
        start, kept = round_["start"], round_["n_kept_chars"]
        exact = min(round_["n_exact_chars"], kept)
        if exact:  # what goes before in the same span came from another draft
            ends.setdefault(start, _kind_at(ends, start))
            ends[start + exact] = "accepted"
        if round_["n_accept"] > round_["n_exact"] and kept > exact:
            ends.setdefault(start + exact, _kind_at(ends, start + exact))
            ends[start + kept] = "judged"
        for boundary in round_["boundaries"]:
            if boundary["n_chars"] <= kept:
                marks[start + boundary["n_chars"]] = verdict_lines(boundary)
    for place in marks:
        ends.setdefault(place, _kind_at(ends, place))
    return _cut(record.text, ends, marks)


def draft_pieces(round_: Mapping[str, Any]) -> list[Piece]:
    """A draft cut where the exact prefix and the accepted one end, and where it was judged."""
    text, kept = round_["draft"], round_["n_kept_chars"]
    ends: dict[int, Kind] = {len(text): "rejected"}
    if kept:
        ends[kept] = "judged" if round_["n_accept"] > round_["n_exact"] else "accepted"
    if exact := min(round_["n_exact_chars"], kept):
        ends[exact] = "accepted"
    marks = {b["n_chars"]: verdict_lines(b) for b in round_["boundaries"]}
    for place in marks:
        ends.setdefault(place, _kind_at(ends, place))
    return _cut(text, ends, marks)


def _kind_at(ends: Mapping[int, Kind], place: int) -> Kind:
    # The kind of the stretch that reaches to this place: that of the first end behind it.
    later = [end for end in ends if end >= place]
    return ends[min(later)] if later else "rewritten"


def _cut(text: str, ends: Mapping[int, Kind], marks: Mapping[int, tuple[str, ...]]) -> list[Piece]:
    found = []
    before = 0
    for end in sorted(e for e in ends if 0 < e <= len(text)):
        found.append(Piece(text[before:end], ends[end], marks.get(end, ())))
        before = end
    return found


def page(
    rows: Sequence[Row],
    records: Sequence[Record],
    *,
    title: str,
    about: Mapping[str, str],
    questions: Mapping[str, str],
    plots: Mapping[str, str],
) -> str:
    """The page.

    Args:
        rows: of all strategies.
        records: every answer that is there, of unfinished problems too.
        title: of the page.
        about: what was run, on what.
        questions: what each problem asked, by its name.
        plots: SVG by title, made here and therefore trusted.
    """
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        about=about,
        tables=[_cells(main_columns(), rows), _cells(detail_columns(rows), rows)] if rows else [],
        legend=LEGEND.replace("`", ""),
        plots=plots,
        problems=list(_problems(records, questions, [r.strategy for r in rows])),
    )


def _cells(columns: Any, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "headings": [heading for heading, _ in columns],
        "rows": [[text(row) for _, text in columns] for row in rows],
    }


def _problems(
    records: Sequence[Record], questions: Mapping[str, str], order: Sequence[str]
) -> Iterator[dict[str, Any]]:
    by_problem: dict[str, list[Record]] = {}
    for record in records:
        by_problem.setdefault(record.problem, []).append(record)
    for name, found in by_problem.items():
        found.sort(key=lambda r: (r.repeat, order.index(r.strategy) if r.strategy in order else 0))
        yield {
            "name": name,
            "question": questions.get(name, ""),
            "answers": [
                {
                    "record": r,
                    "pieces": answer_pieces(r),
                    "cut": [
                        {"round": x, "pieces": draft_pieces(x)}
                        for x in r.rounds
                        if x["n_accept"] < x["n_draft"]
                    ],
                }
                for r in found
            ],
            "n_right": sum(r.correct for r in found),
        }
