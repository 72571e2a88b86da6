"""The page of a run: who wrote what, and nothing that a model wrote is taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from bench_records import boundary, record, round_

from parse_local.bench.page import Piece, answer_pieces, draft_pieces, page
from parse_local.bench.plots import plots
from parse_local.bench.summary import summarize
from parse_local.events import Span

VERDICTS = [
    ("P(Correct) 0.9000 up to here", "label mass 0.990", "mean logprob -0.500", "3 draft tokens"),
    ("P(Correct) 0.1000 up to here", "label mass 0.990", "mean logprob -0.500", "6 draft tokens"),
]


def test_an_answer_in_pieces() -> None:
    # Draft 1 is kept for 4 of 8 characters, 2 of them exact; the target writes "TT"; draft 2 is
    # kept whole and exact; the target ends.
    one = round_(8, 2, 4, draft="ABcdefgh", boundaries=[boundary(3, 0.9), boundary(6, 0.1)])
    two = round_(3, 3, 3, draft="XYZ", start=6)
    answer = record(
        "a",
        "parse",
        text="ABcdTTXYZt",
        spans=(Span("ABcd", "draft"), Span("TT", "target"), Span("XYZ", "draft"),
               Span("t", "target")),
        rounds=(one, two),
    )  # fmt: skip
    assert answer_pieces(answer) == [
        Piece("AB", "accepted"),
        Piece("c", "judged", VERDICTS[0]),
        Piece("d", "judged"),
        Piece("TT", "rewritten"),
        Piece("XYZ", "accepted"),
        Piece("t", "rewritten"),
    ]
    assert draft_pieces(one) == [
        Piece("AB", "accepted"),
        Piece("c", "judged", VERDICTS[0]),
        Piece("d", "judged"),
        Piece("ef", "rejected", VERDICTS[1]),
        Piece("gh", "rejected"),
    ]


def test_drafts_that_follow_each_other_share_a_span() -> None:
    one = round_(4, 1, 4, draft="abcd")
    two = round_(4, 2, 2, draft="efgh", start=4)
    answer = record(
        "a",
        "fly",
        text="abcdefT",
        spans=(Span("abcdef", "draft"), Span("T", "target")),
        rounds=(one, two),
    )
    assert answer_pieces(answer) == [
        Piece("a", "accepted"),
        Piece("bcd", "judged"),
        Piece("ef", "accepted"),
        Piece("T", "rewritten"),
    ]
    assert [p.text for p in draft_pieces(two)] == ["ef", "gh"]


def test_a_target_alone_is_one_piece() -> None:
    assert answer_pieces(record("a", "target", text="all")) == [Piece("all", "rewritten")]
    assert answer_pieces(record("a", "target", text="", spans=())) == []


EVIL = "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> &amp; \" '"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def render(**kwargs: object) -> str:
    evil_draft = round_(
        3, 0, 3, draft=EVIL, n_kept_chars=len(EVIL), boundaries=[boundary(5, 0.5, score=7.5)]
    )
    cut = round_(3, 0, 0, draft=EVIL, confidence=0.25)
    records = [
        record(EVIL, "target", text=EVIL),
        record(EVIL, "parse", text=EVIL, spans=(Span(EVIL, "draft"),), rounds=(evil_draft, cut)),
    ]
    rows = summarize(records, ["target", "parse"])
    values = {"title": EVIL, "about": {EVIL: EVIL}, "questions": {EVIL: EVIL}, "plots": {}}
    return page(rows, records, **{**values, **kwargs})  # type: ignore[arg-type]


def test_what_models_write_is_text() -> None:
    tags = Tags(render())
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "img", "iframe", "link", "object", "embed", "base", "a", "form"}
    for tag, attributes in tags.found:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    # title, heading, fact's name and value, problem, question, both answers, the cut draft
    assert tags.text.count("<script>alert(1)</script>") == 9
    policy = next(a for _, a in tags.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_verdicts_can_be_reached_with_the_keyboard() -> None:
    tags = Tags(render())
    verdicts = [a for _, a in tags.found if a.get("class") == "verdict" and "role" in a]
    assert [a["tabindex"] for a in verdicts] == ["0"]
    shown = ["P(Correct) 0.5000 up to here", "score 7.50", "label mass 0.990"]
    shown.append("mean logprob -0.500")
    assert verdicts[0]["aria-label"] == "; ".join([*shown, "5 draft tokens"])
    assert "\n".join([*shown, "5 draft tokens"]) in tags.text
    assert "0 of 3 tokens kept, 0 exact, 0 verdicts, confidence 0.250" in tags.text
    # A problem with its question, two answers, and the drafts that were cut.
    assert sum(tag == "details" for tag, _ in tags.found) == 1 + 1 + 2 + 1


def test_the_page_with_plots_asks_nobody() -> None:
    pytest.importorskip("matplotlib")
    records = [record("a", "target"), record("a", "cheap $x$")]
    rows = summarize(records, ["target", "cheap $x$"])
    drawn = plots(rows)
    assert list(drawn) == [
        "Accuracy against speed-up",
        "Speed-up and its bound",
        "Where the time goes",
    ]
    html = page(rows, records, title="t", about={}, questions={}, plots=drawn)
    assert html.count("<svg") == 3
    assert "cheap $x$" in drawn["Speed-up and its bound"]  # a name, not a formula
    tags = Tags(html)
    for tag, attributes in tags.found:
        for name in ("href", "xlink:href", "src", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import|<!DOCTYPE svg", html)
    identities = re.findall(r'xlink:href="#(\w+)"', html)
    assert all(html.count(f'id="{i}"') == 1 for i in identities)
