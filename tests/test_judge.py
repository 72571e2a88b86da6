"""Questions and labels in a real tokeniser's tokens, and the verdict's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_local.chat_template import ChatTemplate
from parse_local.errors import JudgeError
from parse_local.judge import make_judge, make_question, marks, verdicts
from parse_local.llama.model import Model
from parse_local.profile import JudgeWording
from parse_local.writer import template_of

MESSAGES = [{"role": "user", "content": "hello"}]
LABELS = ("Correct", "Incorrect")
# A reply follows "a: " directly, so a label may merge with that space.
SPACED = "{% for m in messages %}{{ m.role[0] + ': ' + m.content + '\n' }}{% endfor %}{{ 'a: ' }}"


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Iterator[Model]:
    model = Model(tiny(seed=1), headers_only=True)
    yield model
    model.close()


def tokens(model: Model, *spellings: str) -> list[int]:
    """Ids of single tokens by their text."""
    found = []
    for spelling in spellings:
        (token,) = model.tokenize(spelling, special=True)
        found.append(token)
    return found


def chatml(model: Model) -> ChatTemplate:
    return ChatTemplate(model.chat_template, eos="<|im_end|>")


def test_suffix_and_labels(model: Model) -> None:
    question = make_question(model, chatml(model), MESSAGES, "hell?", LABELS)
    assert list(question.suffix) == tokens(
        model,
        *("<|im_end|>", "\n"),
        *("<|im_start|>", "u", "s", "er", "\n", "hell", "?", "<|im_end|>", "\n"),
        *("<|im_start|>", "a", "s", "s", "i", "s", "t", "a", "n", "t", "\n"),
    )
    # Co-rr-ect and In-c-o-rr-ect in this vocabulary.
    assert list(question.labels) == tokens(model, "Co", "In")


def test_labels_are_spelled_as_they_are_behind_the_suffix(model: Model) -> None:
    question = make_question(model, ChatTemplate(SPACED), MESSAGES, "?", ("the", "two"))
    # Alone they would begin with "t" both; here the space belongs to them.
    assert list(question.labels) == tokens(model, " the", " t")
    assert model.detokenize(question.suffix) == b"\nu: ?\na:"


def test_a_suffix_that_ends_in_a_space_keeps_it_where_no_label_takes_it(model: Model) -> None:
    digits = make_question(model, ChatTemplate(SPACED), MESSAGES, "?", ("1", "0"))
    assert model.detokenize(digits.suffix) == b"\nu: ?\na: "
    assert list(digits.labels) == tokens(model, "1", "0")


@pytest.mark.parametrize(
    "labels",
    [
        ("Correct", "Corrupt"),  # Co-rr-ect, Co-rr-u-p-t
        ("Yes", "Yes"),
        ("right", "rong"),
        ("", "Incorrect"),
        ("Correct", ""),
    ],
)
def test_labels_that_one_token_cannot_tell_apart_are_refused(
    model: Model, labels: tuple[str, str]
) -> None:
    with pytest.raises(JudgeError, match=r"begin with the same token.*or use --accept exact\."):
        make_question(model, chatml(model), MESSAGES, "?", labels)


def test_a_label_behind_a_token_that_the_other_one_swallows_is_refused(model: Model) -> None:
    # "the" takes the suffix's space along and "1" does not: a space says nothing about either.
    with pytest.raises(JudgeError):
        make_question(model, ChatTemplate(SPACED), MESSAGES, "?", ("the", "1"))


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
def test_a_blank_question_is_refused(model: Model, blank: str) -> None:
    with pytest.raises(
        JudgeError, match=r"question is blank; .*\[wording\], or use --accept exact"
    ):
        make_question(model, chatml(model), MESSAGES, blank, LABELS)


def test_a_fallback_template_asks_as_the_same_template_in_the_file(
    model: Model, tiny: Callable[..., Path]
) -> None:
    bare = Model(tiny(seed=1, template=None), headers_only=True)
    assert bare.chat_template is None
    assert template_of(bare).is_fallback
    assert not template_of(model).is_fallback
    asked = [make_judge(m, template_of(m), MESSAGES, JudgeWording()) for m in (model, bare)]
    assert asked[0] == asked[1]
    bare.close()


def test_an_answer_is_closed_by_the_models_own_end_of_turn(tiny: Callable[..., Path]) -> None:
    # The template drops answers and closes only what a model is trained on.
    source = (
        "{% for m in messages if m.role == 'user' %}{{ '|' + m.content + '|' }}{% endfor %}"
        "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    )
    model = Model(tiny(seed=1, template=source), headers_only=True)
    question = make_question(model, template_of(model), MESSAGES, "?", LABELS)
    assert list(question.suffix) == tokens(model, "<|im_end|>", "\n", "|", "?", "|")
    model.close()


def test_a_finished_and_an_unfinished_answer_get_different_questions(model: Model) -> None:
    wording = JudgeWording("all?", "so far?", "Yes", "No")
    judge = make_judge(model, chatml(model), MESSAGES, wording)
    pieces = model.detokenize(judge.full.suffix), model.detokenize(judge.prefix.suffix)
    assert pieces == (b"\nuser\nall?\nassistant\n", b"\nuser\nso far?\nassistant\n")
    assert list(judge.full.labels) == list(judge.prefix.labels) == tokens(model, "Y", "N")


@pytest.mark.parametrize("vocab_seed", [None, 5])
def test_the_default_wording_works(tiny: Callable[..., Path], vocab_seed: int | None) -> None:
    model = Model(tiny(seed=1, vocab_seed=vocab_seed), headers_only=True)
    judge = make_judge(model, chatml(model), MESSAGES, JudgeWording())
    assert [model.piece(t) for t in judge.full.labels] == [b"Co", b"In"]
    assert judge.prefix.labels == judge.full.labels
    model.close()


def test_a_verdict_is_the_share_of_both_labels() -> None:
    found = np.log(np.array([[0.6, 0.2], [0.001, 0.003], [0.5, 0.5]], np.float32))
    p_correct, mass = verdicts(found)
    assert p_correct == pytest.approx([0.75, 0.25, 0.5], rel=1e-6)
    assert mass == pytest.approx([0.8, 0.004, 1.0], rel=1e-6)


def test_verdicts_of_nothing() -> None:
    p_correct, mass = verdicts(np.empty((0, 2), np.float32))
    assert p_correct.shape == mass.shape == (0,)


@pytest.mark.filterwarnings("error")
def test_a_certain_verdict_does_not_overflow() -> None:
    p_correct, mass = verdicts(np.array([[0, -2000], [-2000, 0]], np.float32))
    assert p_correct == pytest.approx([1.0, 0.0], abs=1e-300)
    assert mass.tolist() == [1.0, 1.0]


@pytest.mark.filterwarnings("error")
def test_an_impossible_label_is_a_certain_verdict_and_two_are_none() -> None:
    never = -np.inf
    p_correct, mass = verdicts(np.array([[0, never], [never, 0], [never, never]], np.float32))
    assert p_correct == pytest.approx([1.0, 0.0, 0.5], abs=1e-300)
    assert mass.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.filterwarnings("error")
def test_two_labels_that_hardly_happen_are_still_compared() -> None:
    # e^-200 against e^-199: 1 / (1 + e)
    p_correct, mass = verdicts(np.array([[-200, -199]], np.float32))
    assert p_correct == pytest.approx([0.2689414213699951], rel=1e-12)
    assert mass == pytest.approx([np.exp(-200) + np.exp(-199)], rel=1e-12)


@given(st.floats(-80, 0), st.floats(-80, 0))
def test_exchanged_labels_give_the_complement(correct: float, incorrect: float) -> None:
    (one, other), _ = verdicts(np.array([[correct, incorrect], [incorrect, correct]], np.float32))
    assert one + other == pytest.approx(1)
    assert (one > other) == (np.float32(correct) > np.float32(incorrect)) or one == other


# marks


def test_the_question_for_a_mark_begins_the_reply(model: Model) -> None:
    judge = make_judge(model, chatml(model), MESSAGES, JudgeWording(), score=True)
    assert judge.score is not None
    assert model.detokenize(judge.score.suffix).endswith(b"\nassistant\nScore: ")
    assert [model.piece(t) for t in judge.score.labels] == [b"%d" % i for i in range(10)]
    assert make_judge(model, chatml(model), MESSAGES, JudgeWording()).score is None


def test_a_mark_is_the_likeliest_digit_or_their_mean() -> None:
    p = np.zeros((2, 10), np.float32)
    p[0, [2, 7, 9]] = [0.1, 0.3, 0.2]  # six tenths of the mass are digits
    p[1, [0, 5]] = [0.25, 0.25]
    with np.errstate(divide="ignore"):
        found = np.log(p)
    greedy, mass = marks(found, by="greedy")
    assert greedy.tolist() == [7.0, 0.0]  # the lowest of several
    assert mass == pytest.approx([0.6, 0.5], rel=1e-6)
    mean, _ = marks(found, by="mean")
    assert mean == pytest.approx([(0.2 + 2.1 + 1.8) / 0.6, 2.5], rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_marks_of_nothing_and_of_the_impossible() -> None:
    assert marks(np.empty((0, 10), np.float32), by="greedy")[0].shape == (0,)
    assert marks(np.full((1, 10), -np.inf, np.float32), by="greedy")[0].tolist() == [0.0]
    assert np.isnan(marks(np.full((1, 10), np.nan, np.float32), by="greedy")[0]).all()


def test_ten_labels_that_cannot_be_told_apart(model: Model) -> None:
    with pytest.raises(JudgeError, match="Two labels between '0' and '9' begin with the same"):
        make_question(model, chatml(model), MESSAGES, "?", (*"012345678", "0", "9"))
