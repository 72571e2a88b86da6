"""Final text: characters over several tokens, stop strings, limits, spans."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from parse_local.answer import Answer, TextStream
from parse_local.events import Span, Text


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream()
    cat = "🐈".encode()
    assert [stream.push(cat[i : i + 1]) for i in range(4)] == ["", "", "", "🐈"]
    assert not stream.in_character
    stream.push(cat[:2])
    assert stream.in_character
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}"


def test_only_a_possible_stop_prefix_is_held_back() -> None:
    stream = TextStream(["END", "</s>"])
    assert stream.push(b"abc E") == "abc "
    assert stream.push(b"N") == ""
    assert stream.push(b"C") == "ENC"
    assert stream.push(b"</") == ""
    assert stream.finish() == "</"
    assert not stream.stopped


def test_text_ends_before_the_first_stop_string() -> None:
    stream = TextStream(["END", "\n\n"])
    assert stream.push("猫 E".encode()) == "猫 "
    assert stream.push(b"ND and more") == ""
    assert stream.stopped
    assert stream.push(b"more") == ""
    assert stream.finish() == ""


def test_a_stop_string_that_begins_inside_another_ones_prefix() -> None:
    stream = TextStream(["aab"])
    assert stream.push(b"aaa") == "a"  # "aa" may still become "aab"
    assert stream.push(b"b") == ""
    assert stream.stopped


def test_the_stop_string_that_is_complete_first_wins_however_the_text_is_cut() -> None:
    for chunks in ([b"xabcd"], [b"xabc", b"d"], [b"xa", b"bcd"]):
        stream = TextStream(["abcd", "bc"])
        assert "".join([stream.push(c) for c in chunks]) + stream.finish() == "xa"


def test_empty_stop_strings_are_none() -> None:
    stream = TextStream([""])
    assert stream.push(b"a") == "a"
    assert not stream.stopped


@given(
    text=st.text(alphabet=st.sampled_from("abE🐈 é"), max_size=40),
    stops=st.lists(st.text(alphabet=st.sampled_from("abE🐈"), min_size=1, max_size=3), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_any_chopping_gives_the_text_before_the_first_stop(
    text: str, stops: list[str], seed: int
) -> None:
    # The stop string that is complete first ends the text, and of several at once the longest.
    ends = [
        (end, -len(s), end - len(s))
        for s in stops
        for end in range(len(s), len(text) + 1)
        if text[:end].endswith(s)
    ]
    expected = text[: min(ends)[2]] if ends else text
    rng = random.Random(seed)
    stream, data, out = TextStream(stops), text.encode(), ""
    while data:
        n = rng.randint(1, 3)
        before = out
        out += stream.push(data[:n])
        assert out.startswith(before)
        data = data[n:]
    out += stream.finish()
    assert out == expected
    assert stream.stopped == bool(ends)


def pieces(*texts: str) -> tuple[list[int], list[bytes]]:
    return list(range(len(texts))), [t.encode() for t in texts]


def test_append_stops_at_max_tokens_and_says_so() -> None:
    answer = Answer(prompt=[9], max_tokens=2)
    assert list(answer.append(*pieces("a", "b", "c"), "draft")) == [Text("ab", "draft")]
    assert (answer.finish_reason, answer.tokens, answer.n_accept) == ("length", [0, 1], 2)
    assert answer.sequence == [9, 0, 1]
    assert list(answer.append(*pieces("d"), "target")) == []


def test_a_stop_string_over_draft_and_target() -> None:
    answer = Answer(prompt=[], max_tokens=10, stops=("STOP",))
    assert list(answer.append(*pieces("x", "ST"), "draft")) == [Text("x", "draft")]
    assert list(answer.append(*pieces("OP"), "target")) == []
    assert answer.finish_reason == "stop"
    assert list(answer.close("length")) == []
    assert answer.finish_reason == "stop"
    assert answer.spans == [Span("x", "draft")]


def test_held_text_comes_out_at_the_end() -> None:
    answer = Answer(prompt=[], max_tokens=10, stops=("STOP",))
    list(answer.append(*pieces("x ST"), "target"))
    assert list(answer.close("stop")) == [Text("ST", "target")]
    assert answer.spans == [Span("x ST", "target")]


def test_held_text_stays_its_writers() -> None:
    answer = Answer(prompt=[], max_tokens=10, stops=("STOP",))
    assert list(answer.append(*pieces("x S"), "draft")) == [Text("x ", "draft")]
    assert list(answer.append(*pieces("T"), "target")) == []
    assert list(answer.append(*pieces("A!"), "target")) == [
        Text("S", "draft"),
        Text("TA!", "target"),
    ]
    assert list(answer.append(*pieces("ST"), "draft")) == []
    assert list(answer.close("stop")) == [Text("ST", "draft")]
    assert answer.spans == [Span("x S", "draft"), Span("TA!", "target"), Span("ST", "draft")]


def test_a_stop_string_that_begins_in_held_text_takes_it_along() -> None:
    answer = Answer(prompt=[], max_tokens=10, stops=("aab",))
    assert list(answer.append(*pieces("xa", "a"), "draft")) == [Text("x", "draft")]
    assert list(answer.append(*pieces("a"), "target")) == [Text("a", "draft")]
    assert list(answer.append(*pieces("b"), "target")) == []
    assert answer.spans == [Span("xa", "draft")]
    assert answer.finish_reason == "stop"


def test_a_character_is_its_last_bytes_writers() -> None:
    answer = Answer(prompt=[], max_tokens=10)
    cat = "🐈".encode()
    assert list(answer.append([1], [cat[:3]], "draft")) == []
    assert list(answer.append([2, 3], [cat[3:], cat[:1]], "target")) == [Text("🐈", "target")]
    assert list(answer.close("cancelled")) == [Text("\N{REPLACEMENT CHARACTER}", "target")]
    assert answer.finish_reason == "cancelled"


def test_spans_join_neighbours_of_one_source() -> None:
    answer = Answer(prompt=[], max_tokens=10)
    for source in ("draft", "draft", "target", "draft"):
        list(answer.append(*pieces("a"), source))  # type: ignore[arg-type]
    assert answer.spans == [Span("aa", "draft"), Span("a", "target"), Span("a", "draft")]
    assert answer.n_accept == 3


def test_time_goes_to_its_phase_and_adds_up() -> None:
    answer = Answer(prompt=[], max_tokens=10)
    assert answer.first_text is None
    for _ in range(2):
        with answer.timed("draft_s"):
            sum(range(10_000))
    once = answer.seconds["draft_s"]
    assert 0 < once <= answer.age
    list(answer.append(*pieces("a"), "target"))
    assert answer.first_text is not None
    assert once <= answer.first_text <= answer.age
