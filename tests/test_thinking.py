"""Reasoning and answer, told apart in text that arrives in arbitrary pieces."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat_template import template, turns

from parse_local.channels import Parser, joined, show
from parse_local.harmony import Harmony
from parse_local.thinking import TAGS, Thinking, find_marks

HARMONY = Harmony()
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
MARKS = {tags.opening: tags for tags in TAGS}  # the last of two with the same
THINK = MARKS["<think>"]


def marks_of(name: str) -> object:
    """The marks found for a template of tests/chat_templates, by its source alone."""
    from test_chat_template import TEMPLATES

    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return find_marks(source, lambda text: False)


def split(parser: Parser, *pieces: str | bytes) -> tuple[str, str]:
    """Reasoning and answer of a text in pieces."""
    runs = []
    for piece in pieces:
        runs += parser.push(piece.encode() if isinstance(piece, str) else piece)
    runs += parser.finish()
    found = {"reasoning": b"", "answer": b""}
    for channel, data in runs:
        found[channel] += data
    return found["reasoning"].decode(), found["answer"].decode()


CASES = {
    # name of the template, thinking on, what the model writes, reasoning, answer
    "Qwen3": ("qwen3", True, "<think>\nHm.\n</think>\n\nIt is 42.", "Hm.\n", "It is 42."),
    "Qwen3, off": ("qwen3", False, "It is 42.", "", "It is 42."),
    "Qwen3, off, and thinks": ("qwen3", False, "<think>Hm.</think>42", "Hm.", "42"),
    "DeepSeek-R1": ("deepseek-r1", False, "Hm.\n</think>\n\nIt is 42.", "Hm.\n", "It is 42."),
    "unclosed": ("deepseek-r1", False, "Is <think> or </thi?", "Is <think> or </thi?", ""),
    "gpt-oss": ("harmony", False, f"{ANALYSIS}Hm.<|end|>{FINAL}42.<|return|>", "Hm.", "42."),
    "gpt-oss, at once": ("harmony", False, "<|channel|>final<|message|>42", "", "42"),
    "gpt-oss, twice": (
        "harmony",
        False,
        f"{ANALYSIS}Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look it up."
        f"<|end|><|start|>assistant{ANALYSIS} So.<|end|>{FINAL}42",
        "Hm. So.",
        "I look it up.42",
    ),
    "gpt-oss, without a header": ("harmony", False, "It is 42.", "", "It is 42."),
    "Gemma 3": ("gemma3", True, "<think> is a tag.", "", "<think> is a tag."),
    "Gemma 4": ("gemma4", True, "<|channel>thought\nHm.\n<channel|>42", "Hm.\n", "42"),
    "Gemma 4, off": ("gemma4", False, "42", "", "42"),
    "Gemma 4, another channel": ("gemma4", False, "<|channel>final 42", "", "final 42"),
    "Command A": (
        "command-r",
        True,
        "Hm.<|END_THINKING|><|START_RESPONSE|>42<|END_RESPONSE|>",
        "Hm.",
        "42",
    ),
    "Magistral": ("magistral", True, "[THINK]Hm.[/THINK]42", "Hm.", "42"),
    "Seed-OSS": ("seed-oss", True, "<seed:think>Hm.</seed:think>42", "Hm.", "42"),
    "Seed-OSS, off": ("seed-oss", False, "42", "", "42"),
    "Apriel": (
        "apriel",
        False,
        "Hm.\n[BEGIN FINAL RESPONSE]\n42\n[END FINAL RESPONSE]\n",
        "Hm.\n",
        "42\n",
    ),
    "a tag further on": ("qwen3", True, "Write <think>x</think>.", "", "Write <think>x</think>."),
    "closed, not opened": ("qwen3", False, "</think>\n\n42", "", "42"),
    "less than": ("qwen3", False, " <", "", " <"),
    "nothing": ("qwen3", True, "<think>\n\n</think>\n\n42", "", "42"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_each_format_in_pieces_of_any_size(case: str, size: int) -> None:
    name, thinking, text, reasoning, answer = CASES[case]
    prompt = template(name).render(turns("6 * 7?"), thinking=thinking)
    parser = Thinking(marks_of(name)).parser(prompt)
    assert split(parser, *(text[i : i + size] for i in range(0, len(text), size))) == (
        reasoning,
        answer,
    )


def test_what_an_earlier_turn_says_opens_nothing() -> None:
    asked = turns("What is <think>?", "A tag.", "And <think>")
    for name in ("qwen3", "seed-oss", "gemma4"):
        prompt = template(name).render(asked)
        assert split(Thinking(marks_of(name)).parser(prompt), "Hi") == ("", "Hi")


def test_which_models_think() -> None:
    assert {name: marks_of(name) for name in ("chatml", "qwen2.5", "llama3.1", "gemma3")} == (
        dict.fromkeys(("chatml", "qwen2.5", "llama3.1", "gemma3"))
    )
    assert marks_of("harmony") == HARMONY
    assert marks_of("gemma4") == MARKS["<|channel>thought"]
    # Older conversions of DeepSeek-R1 leave the tags to the model alone.
    assert find_marks("{{ messages }}", lambda text: text in ("<think>", "</think>")) == THINK
    assert find_marks("{{ messages }}", lambda text: False) is None
    # Hunyuan puts tags around its answer too.
    (hunyuan,) = [t for t in TAGS if "<answer>" in t.drops]
    assert find_marks("<think> </think> <answer>", lambda text: False) == hunyuan
    text = "<think>\nHm.\n</think>\n<answer>\n42\n</answer>"
    assert split(hunyuan.parser(""), *text) == ("Hm.\n", "42\n")


def test_when_reasoning_is_to_be_expected() -> None:
    def thinks(name: str, thinking: bool, written: str = "") -> bool:
        prompt = template(name).render(turns("6 * 7?"), thinking=thinking)
        parser = Thinking(marks_of(name)).parser(prompt)
        parser.push(written.encode())
        return parser.thinks

    assert [thinks(n, True) for n in ("qwen3", "gemma4", "seed-oss", "gemma3")] == [True] * 3 + [
        False
    ]
    assert not any(thinks(n, False) for n in ("qwen3", "gemma4", "seed-oss"))
    assert all(thinks(n, False) for n in ("deepseek-r1", "harmony", "apriel"))
    assert not thinks("deepseek-r1", False, "Hm.</think>")
    assert thinks("harmony", False, f"{ANALYSIS}Hm.<|end|>")
    assert not thinks("harmony", False, f"{ANALYSIS}Hm.<|end|>{FINAL}")


# any stream


@st.composite
def pieces(draw: st.DrawFn, *parts: str) -> list[bytes]:
    """A text made of `parts`, cut anywhere, also within a character or a marker."""
    text = "".join(draw(st.lists(st.sampled_from(parts), max_size=12))).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


TEXT = ("<think>", "</think>", "<thi", "</", "nk>", "<", " ", "\n", "é", "Hm.", "42")


def by_regex(text: str, *, opened: bool) -> tuple[str, str]:
    """What a whole text is, found in another way."""
    opening = r"\s*" if opened else r"\s*<think>\s*"
    if block := re.match(opening + r"(.*?)(?:</think>\s*(.*)|\Z)", text, re.DOTALL):
        inside, behind = block.groups()
        return ("" if not inside.strip() else inside, behind or "")
    return "", re.sub(r"^\s*</think>\s*", "", text)


@given(pieces(*TEXT), st.booleans())
def test_tags_do_not_depend_on_how_the_stream_is_cut(data: list[bytes], opened: bool) -> None:
    found = split(THINK.parser("<think>\n" if opened else "assistant\n"), *data)
    assert found == by_regex(b"".join(data).decode(), opened=opened)


@given(pieces(*TEXT))
def test_only_what_may_be_a_marker_is_held_back(data: list[bytes]) -> None:
    parser = THINK.parser("<think>\n")
    text, said = b"", b""
    for piece in data:
        text += piece
        said += b"".join(found for _, found in parser.push(piece))
        if not parser.in_reasoning:
            break
        held = text.removeprefix(text[: len(text) - len(text.lstrip())])[len(said) :]
        assert b"</think>".startswith(held)
        assert parser.in_marker == bool(held)


HEADERS = (
    "<|channel|>analysis<|message|>",
    f"<|end|>{FINAL}",
    f"<|end|><|start|>assistant{ANALYSIS}",
    "<|end",
    "<|",
    "é",
    "Hm.",
    "\n",
)


@given(pieces(*HEADERS))
def test_harmony_does_not_depend_on_how_the_stream_is_cut(data: list[bytes]) -> None:
    text = b"<|channel|>analysis<|message|>" + b"".join(data)
    found = split(HARMONY.parser("<|start|>assistant"), b"<|channel|>analysis<|message|>", *data)
    expected = {"reasoning": "", "final": ""}
    messages = re.split(r"<\|end\|><\|start\|>assistant", text.decode())
    for message in messages:
        # A second header within a message ends it, too.
        for part in re.split(r"(?=<\|channel\|>)", message):
            if header := re.match(r"<\|channel\|>(\w+)<\|message\|>", part):
                channel = "final" if header[1] == "final" else "reasoning"
                expected[channel] += part[header.end() :]
    assert found == (expected["reasoning"], expected["final"])


@given(pieces("<|channel|>", "<|message|>", "<|end|>", "x"))
def test_markers_that_are_control_tokens_may_be_written_about(data: list[bytes]) -> None:
    thinking = Thinking(HARMONY, {1: b"<|channel|>", 2: b"<|message|>", 3: b"<|end|>"})
    parser = thinking.parser("<|start|>assistant")
    parser.push(b"", b"<|channel|>")
    parser.push(b"final")
    parser.push(b"", b"<|message|>")
    assert split(parser, *data) == ("", b"".join(data).decode())


def test_control_tokens_within_an_answer_are_markers_wherever_they_stand() -> None:
    gemma = MARKS["<|channel>thought"]
    parser = gemma.parser("<|turn>model\n")
    runs = [*parser.push(b"4"), *parser.push(b"", b"<|channel>"), *parser.push(b"thought")]
    runs += [*parser.push(b"\nHm"), *parser.push(b"", b"<channel|>"), *parser.push(b"2")]
    runs += parser.push(b"", b"<channel|>")  # closes nothing
    assert joined([*runs, *parser.finish()]) == [
        ("answer", b"4"),
        ("reasoning", b"Hm"),
        ("answer", b"2"),
    ]


# drafts


def test_a_draft_shows_neither_markers_nor_a_place_to_cut_within_them() -> None:
    parser = THINK.parser("<think>\n")
    draft = show(parser, [(d, b"") for d in (b"A", b".", b"\n</", b"think", b">\n", b"\n")])
    assert (draft.channel, draft.closed) == ("reasoning", True)
    assert draft.pieces == [b"A", b".", b"\n", b"", b"", b""]
    # Nor behind the block: when it ends is for the target to choose.
    assert draft.in_marker == [False, False, True, True, True, True]
    assert parser.in_reasoning, "the draft is provisional"
    assert draft.head(2).closed is False


def test_a_draft_that_begins_in_half_a_marker_shows_what_turns_out_to_be_text() -> None:
    parser = THINK.parser("<think>\n")
    assert parser.push(b"1 <") == [("reasoning", b"1 ")]
    draft = show(parser, [(b" 2", b"")])
    assert (draft.pieces, draft.in_marker) == ([b"< 2"], [False])


# another model's words


@pytest.mark.parametrize(
    ("marks", "prompt", "written"),
    [
        (THINK, "assistant\n", "<think>\nHm.\n</think>\n\n42"),
        (THINK, "<think>\n", "Hm.\n</think>\n\n42"),
        (HARMONY, "<|start|>assistant", f"{ANALYSIS}Hm.\n<|end|>{FINAL}42"),
        (MARKS["[THINK]"], "", "[THINK]Hm.\n[/THINK]42"),
    ],
)
def test_the_same_is_said_in_any_format(marks: object, prompt: str, written: str) -> None:
    said = [("reasoning", "Hm.\n"), ("answer", "42")]
    thinking = Thinking(marks)
    found = list(thinking.writes(thinking.parser(prompt), said))
    assert "".join(text for text, _ in found) == written
    # What a model said is never read as a control token.
    assert [text for text, special in found if not special] == ["Hm.\n", "42"]
    assert split(thinking.parser(prompt), written) == ("Hm.\n", "42")
