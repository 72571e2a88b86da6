"""The picture of a chat: what is there when, and how it looks."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from script_loader import load_script

load_script("write_cli_docs")  # scripts/ can be imported from now on

from terminal_svg import Frame, Shown, Style, intervals, paced, render  # noqa: E402

DIM, STRUCK = Style(dim=True), Style(color="red", struck=True)


def row(text: str, style: Style = Style()) -> tuple[tuple[int, str, Style], ...]:  # noqa: B008
    return ((0, text, style),)


def test_waits_are_cut_and_bursts_keep_their_last_frame() -> None:
    frames = [
        Frame(10.0, (row("a"),)),
        Frame(10.5, (row("b"),)),
        Frame(10.51, (row("c"),)),
        Frame(90.0, (row("d"),)),
    ]
    played = paced(frames, shortest=0.1, longest=1.0, struck=0, within=60)
    assert [f.rows[0][0][1] for f in played] == ["a", "c", "d"]
    assert [round(f.seconds, 3) for f in played] == [0.0, 0.5, 1.51]
    twice_as_fast = paced(frames, shortest=0.1, longest=1.0, struck=0, within=1.51 / 2)
    assert [round(f.seconds, 3) for f in twice_as_fast] == [0.0, 0.25, 0.755]


def test_struck_text_stays_long_enough_to_be_seen() -> None:
    rows = [row("draft", DIM), row("draft", STRUCK), row("answer"), row("answer.")]
    frames = [Frame(0.2 * i, (r,)) for i, r in enumerate(rows)]
    played = paced(frames, shortest=0.1, longest=1.0, struck=0.5, within=60)
    assert [round(f.seconds, 3) for f in played] == [0.0, 0.2, 0.7, 0.9]


def test_a_row_that_does_not_change_is_there_once() -> None:
    frames = [
        Frame(0, (row("> hi"),)),
        Frame(1, (row("> hi"), row("draft", DIM))),
        Frame(2, (row("> hi"), row("draft", STRUCK))),
        Frame(3, (row("> hi"), row("answer"))),
        Frame(4, (row("> hi"),)),
    ]
    assert intervals(frames) == [
        Shown(0, row("> hi"), 0, None),
        Shown(1, row("draft", DIM), 1, 2),
        Shown(1, row("draft", STRUCK), 2, 3),
        Shown(1, row("answer"), 3, 4),
    ]


def test_the_svg_shows_each_row_for_its_time() -> None:
    frames = [Frame(0, (row("1 < 2"),)), Frame(1, (row("1 < 2"), row("gone", STRUCK)))]
    svg = render(frames, columns=10, lines=2, hold=3, title="A & B")
    root = ET.fromstring(svg)
    assert root.get("aria-label") == "A & B"
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["1 < 2", "gone"]
    css = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    # The second row comes after one of four seconds; both are in the last frame.
    assert "@keyframes r1{0.00%{visibility:hidden}25.00%{visibility:visible}}" in css
    assert "animation:r1 4.00s step-end infinite" in css
    assert "@keyframes r0" not in css
    groups = [g.get("class") for g in root.iter("{http://www.w3.org/2000/svg}g")]
    assert groups == ["z", "r1 z"]
    assert "text-decoration:line-through" in css
    assert "prefers-color-scheme:dark" in css
    assert "prefers-reduced-motion" in css
