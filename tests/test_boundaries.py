"""Where a draft may be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_local.boundaries import candidate_boundaries, spread, token_offsets


def cuts(pieces: list[str], delta: int = 100) -> list[str]:
    """The prefixes that the candidate boundaries stand for."""
    data = [p.encode() for p in pieces]
    text = "".join(pieces)
    found = candidate_boundaries(text, token_offsets(data), delta=delta)
    return ["".join(pieces[:n]) for n in found]


def test_offsets_count_characters_and_skip_the_inside_of_one() -> None:
    cat = "猫".encode()  # three bytes
    assert token_offsets([b"a", cat[:1], cat[1:], b"b"]) == [1, None, 2, 3]
    assert token_offsets([b"a", cat[:2]]) == [1, None]
    assert token_offsets([b"\xff", b"a"]) == [1, 2]
    assert token_offsets([]) == []


def test_sentences() -> None:
    assert cuts(["One", ".", " Two", "!", " Three", "?"]) == [
        "One.",
        "One. Two!",
        "One. Two! Three?",
    ]


def test_a_dot_inside_a_word_or_a_number_ends_nothing() -> None:
    assert cuts(["foo", ".", "bar", " = 3", ".", "14"]) == ["foo.bar = 3.14"]


def test_closing_quotes_and_brackets_belong_to_the_sentence() -> None:
    assert cuts(["He said", ' "no', '."', " Then"]) == ['He said "no."', 'He said "no." Then']


def test_lines_of_code_and_list_items() -> None:
    assert cuts(["x = 1", "\n", "y = 2", "\n", "- a", "\n", "- b"]) == [
        "x = 1\n",
        "x = 1\ny = 2\n",
        "x = 1\ny = 2\n- a\n",
        "x = 1\ny = 2\n- a\n- b",
    ]


def test_the_number_of_a_list_item_is_no_sentence() -> None:
    assert cuts(["1", ".", " First", ".", "\n", "12", ".", " Next", "."]) == [
        "1. First.",
        "1. First.\n12. Next.",
    ]
    assert cuts(["It is", " 12", ".", " So"]) == ["It is 12.", "It is 12. So"]


def test_a_blank_line_is_one_boundary() -> None:
    assert cuts(["a", "\n", "\n", "b", "\n\n", "c"]) == ["a\n", "a\n\nb\n\n", "a\n\nb\n\nc"]


def test_east_asian_sentences_need_no_space() -> None:
    assert cuts(["猫", "。", "犬", "。"]) == ["猫。", "猫。犬。"]


def test_every_delta_tokens_where_nothing_else_falls() -> None:
    assert cuts(["a "] * 10, delta=4) == ["a " * 4, "a " * 8, "a " * 10]


def test_a_natural_boundary_starts_the_count_anew() -> None:
    pieces = ["a", " a", ".", " b", " b", " b", " b"]
    assert cuts(pieces, delta=4) == ["a a.", "a a. b b b b"]


def test_leading_white_space_is_no_boundary() -> None:
    assert cuts(["\n", "\n", "a"]) == ["\n\na"]


def test_an_empty_draft_has_none() -> None:
    assert candidate_boundaries("", [], delta=8) == []


def test_a_draft_that_ends_inside_a_character_ends_at_the_last_whole_token() -> None:
    cat = "猫".encode()
    pieces = [b"ab", cat[:1], cat[1:2]]
    text = b"".join(pieces).decode("utf-8", "replace")
    assert token_offsets(pieces) == [2, None, None]
    found = candidate_boundaries(text, token_offsets(pieces), delta=100)
    assert found == [1]
    assert candidate_boundaries(text, token_offsets(pieces), delta=1) == [1]


@given(
    text=st.text(alphabet=st.sampled_from("ab.!? \n猫🐈é"), max_size=80),
    seed=st.randoms(use_true_random=False),
    delta=st.integers(1, 20),
)
def test_boundaries_are_ascending_whole_and_dense(text: str, seed, delta: int) -> None:  # type: ignore[no-untyped-def]
    data = text.encode()
    pieces = []
    while data:
        n = seed.randint(1, 5)
        pieces.append(data[:n])
        data = data[n:]
    offsets = token_offsets(pieces)
    found = candidate_boundaries(text, offsets, delta=delta)
    assert found == sorted(set(found))
    for n in found:
        joined = b"".join(pieces[:n])
        assert joined.decode() == text[: offsets[n - 1]]  # raises inside a character
    if pieces:
        assert found[-1] == len(pieces)
    whole = [0] + [n for n, offset in enumerate(offsets, 1) if offset is not None]
    for before, after in zip([0, *found], found, strict=False):
        # Farther apart than delta only where no token ends on a character between.
        between = [n for n in whole if before + delta <= n < after]
        assert not between


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [10]),
        (2, [5, 10]),
        (5, [2, 4, 6, 8, 10]),
        (10, list(range(1, 11))),
        (99, list(range(1, 11))),
    ],
)
def test_spread(n: int, expected: list[int]) -> None:
    assert spread(list(range(1, 11)), n) == expected


@given(st.sets(st.integers(1, 500), min_size=1), st.integers(1, 40))
def test_spread_keeps_the_last_and_at_most_n(chosen: set[int], n: int) -> None:
    all_cuts = sorted(chosen)
    found = spread(all_cuts, n)
    assert len(found) == min(n, len(all_cuts))
    assert found[-1] == all_cuts[-1]
    assert found == sorted(set(found))
    assert set(found) <= chosen
