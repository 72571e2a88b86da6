"""The judge: question → suffix tokens and label tokens → P(Correct)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parse_local.chat_template import ChatTemplate, Message
from parse_local.errors import JudgeError
from parse_local.profile import JudgeWording


class Tokenizer(Protocol):
    """The part of `llama.model.Model` that is needed here."""

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text."""
        ...


@dataclass(frozen=True)
class Question:
    """A verdict question, ready to be decoded behind any prefix.

    Args:
        suffix: tokens from the end of the answer to where the reply begins.
        labels: first token of the reply "correct" and of the reply "incorrect".
    """

    suffix: tuple[int, ...]
    labels: tuple[int, int]


@dataclass(frozen=True)
class Judge:
    """Both questions of a pair: for a finished answer and for an unfinished one."""

    full: Question
    prefix: Question


def make_question(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    question: str,
    labels: tuple[str, str],
) -> Question:
    """Derive suffix and label tokens for one question.

    The labels are tokenised behind the suffix, because many tokenisers
    spell a word differently at the start of a text.

    Raises:
        JudgeError: both labels begin with the same token, so one token cannot tell them
            apart; or the question is blank.
        TemplateError: the template cannot render the question.
    """
    if not question.strip():
        raise JudgeError(
            "The verdict question is blank; write one into the profile's [wording], "
            "or use --accept exact."
        )
    text = template.suffix(messages, question)
    suffix = tokenizer.tokenize(text, special=True)
    spelled = [tokenizer.tokenize(text + label, special=True) for label in labels]
    # A label may merge with the suffix's last character; ask from the part
    # that is spelled the same with and without it.
    n = len(suffix)
    while n > 0 and any(s[:n] != suffix[:n] for s in spelled):
        n -= 1
    first = [s[n] for s in spelled if len(s) > n]
    # A label that leaves the suffix's last token as it is, while the other
    # merges with it, begins with a token that stands before either.
    shared = len(set(first)) < len(labels) or (n < len(suffix) and suffix[n] in first)
    if n == 0 or shared:
        raise JudgeError(
            f"The labels {labels[0]!r} and {labels[1]!r} begin with the same token for this model; "
            "choose others in the profile's [wording], or use --accept exact."
        )
    return Question(tuple(suffix[:n]), (first[0], first[1]))


def make_judge(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    wording: JudgeWording,
) -> Judge:
    """The questions of a pair's profile for one conversation; raises as `make_question`."""
    labels = (wording.label_correct, wording.label_incorrect)
    return Judge(
        full=make_question(tokenizer, template, messages, wording.question_full, labels),
        prefix=make_question(tokenizer, template, messages, wording.question_prefix, labels),
    )


def verdicts(
    label_logprobs: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """P(Correct) over the two labels, and the mass of both.

    Args:
        label_logprobs: log-probabilities (nats) of both labels, shape (n, 2), correct first.

    Returns:
        (p_correct, label_mass), each of shape (n,); 0.5 where neither label is possible.
    """
    # Below this everything is impossible; two labels of -inf would leave nothing to compare.
    logprobs = np.maximum(label_logprobs.astype(np.float64), -1e4)
    difference = np.clip(logprobs[:, 1] - logprobs[:, 0], -700, 700)
    return 1 / (1 + np.exp(difference)), np.exp(logprobs).sum(axis=1)
