"""Where a stretch of text ends, and the words that give the target its turn."""

from __future__ import annotations

import pytest

from parse_local.segments import (
    Cues,
    CueStop,
    SegmentEnd,
    TokenCount,
    at_opening,
    open_segment,
)


@pytest.mark.parametrize(
    ("text", "segment", "opening"),
    [
        ("", "", False),  # nothing precedes the first segment
        ("\n\n", "", False),
        ("One", "One", False),
        ("One\n", "One\n", False),
        ("One\n\n", "", True),
        ("One\n \t\n", "", True),
        ("One\n\n\n", "\n", True),
        ("One\n\n  ", "  ", True),
        ("One\n\nTwo", "Two", False),
        ("One\n\nTwo\n\nThree\nFour", "Three\nFour", False),
    ],
)
def test_the_segment_that_is_open(text: str, segment: str, opening: bool) -> None:
    assert open_segment(text) == segment
    assert at_opening(text) == opening


def pushed(pieces: list[str], before: str = "") -> int | None:
    """Number of pieces up to where the segment ends, None where it does not."""
    stop = SegmentEnd(before)
    return next((n for n, piece in enumerate(pieces, 1) if stop.push(piece)), None)


@pytest.mark.parametrize(
    ("pieces", "before", "expected"),
    [
        (["One", "\n", "\n", "Two"], "", 3),
        (["One", ".\n\n", "Two"], "", 2),
        (["One", "\n", "Two", "\n"], "", None),
        (["One\n", " ", " \n"], "", 3),  # only spaces between
        (["\n", "\n", "One", "\n\n"], "", 4),  # blank lines in front belong to what follows
        (["\n", "Two", "\n\n"], "One\n\n", 3),
        (["\n", "Two"], "One\n", 1),  # the blank line began before
        (["\n", "\n"], "One", 2),
        (["x\n\ny"], "", 1),
        (["", ""], "One\n\n", None),
    ],
)
def test_a_segment_ends_with_its_blank_line(
    pieces: list[str], before: str, expected: int | None
) -> None:
    assert pushed(pieces, before) == expected


def test_a_number_of_tokens() -> None:
    stop = TokenCount(3)
    assert [stop.push("x") for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "found", "verifies", "reflects"),
    [
        ("Wait, that is wrong", True, False, True),
        ("so, hold on", True, False, True),
        ("Yes. The final answer is 4", True, False, False),
        ("Let me check this", True, True, True),
        ("Checking", True, True, True),  # the beginning of a word
        ("unchecked", False, False, False),  # its middle is none
        ("Yes, but wait", True, False, True),  # as many doubts as affirmations
        ("Yes, yes, but wait", True, False, False),
        ("The sum is 4", False, False, False),
    ],
)
def test_cues(text: str, found: bool, verifies: bool, reflects: bool) -> None:
    cues = Cues()
    assert (cues.found(text), cues.verifies(text), cues.reflects(text)) == (
        found,
        verifies,
        reflects,
    )


def test_no_words_are_no_cues() -> None:
    assert not Cues((), (), ()).found("Wait, yes, check")


def test_a_cue_is_found_across_tokens() -> None:
    stop = CueStop(Cues())
    assert [stop.push(piece) for piece in ("Hm", ", ", "wa", "it", "!")] == [
        *(False, False, False),
        *(True, True),
    ]
    assert stop.found
