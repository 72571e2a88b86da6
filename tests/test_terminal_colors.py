import io

import pytest
from rich.console import Console

from parse_local.events import Result, Span, TokenCounts, Usage
from parse_local.terminal.colors import print_colors

RESULT = Result(
    "one two\nthree\nfour",
    usage=Usage(1, 4),
    tokens=TokenCounts(n_accept=2),
    spans=(Span("one two\nth", "draft"), Span("ree\nfour", "target")),
)


def colors(result: Result, **kwargs: object) -> str:
    out = io.StringIO()
    print_colors(result, Console(file=out, width=60, **kwargs))
    return out.getvalue()


def test_accepted_text_where_nothing_can_be_styled() -> None:
    assert colors(RESULT, no_color=True) == (
        "│ one two\n┆ three\n  four\n"
        "│ accepted from the draft: 2 of 4 tokens (50%), ┆ in part\n"
        "  written by the target: 2\n"
    )


def test_accepted_text_in_colour() -> None:
    text = colors(RESULT, force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[4;32mone two\x1b[0m\n\x1b[4;32mth\x1b[0mree\nfour\n" in text
    assert "\x1b[4;32mabc\x1b[0m\x1b[2m accepted from the draft: 2 of 4 tokens (50%)" in text


def test_without_colours_the_underline_is_left() -> None:
    text = colors(RESULT, force_terminal=True, color_system="standard", no_color=True)
    assert "\x1b[4mone two\x1b[0m\n\x1b[4mth\x1b[0mree\nfour\n" in text
    assert "32" not in text


@pytest.mark.parametrize("spans", [(), (Span("", "target"),)])
def test_an_empty_answer(spans: tuple[Span, ...]) -> None:
    assert "0 of 0 tokens (0%)" in colors(Result(spans=spans), no_color=True)
