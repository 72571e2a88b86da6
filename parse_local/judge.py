"""The judge: question → suffix tokens and label tokens → P(Correct), or a mark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parse_local.channels import Marks
from parse_local.chat_template import ChatTemplate, Message
from parse_local.errors import JudgeError
from parse_local.events import Channel
from parse_local.policy import ScoreBy
from parse_local.profile import JudgeWording

DIGITS = tuple("0123456789")


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
        labels: first token of each reply that is looked at: "correct" and "incorrect", or
            the digits from 0 to 9.
    """

    suffix: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Judge:
    """The questions of a pair: for a finished answer, for an unfinished one, and for a mark.

    `reasoning` and `reasoning_score` are asked within a block of reasoning, which they close
    before the turn ends; None for a model that does not think.
    """

    full: Question
    prefix: Question
    score: Question | None = None
    reasoning: Question | None = None
    reasoning_score: Question | None = None

    def about(self, channel: Channel, *, complete: bool = False) -> Question:
        """The question for a verdict."""
        if channel == "reasoning":
            return self.reasoning or self.prefix
        return self.full if complete else self.prefix

    def mark(self, channel: Channel) -> Question | None:
        """The question for a mark; None where none is given."""
        thinks = channel == "reasoning" and self.reasoning_score is not None
        return self.reasoning_score if thinks else self.score


def make_question(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    question: str,
    labels: Sequence[str],
    *,
    lead: str = "",
    closing: str = "",
) -> Question:
    """Derive suffix and label tokens for one question.

    The labels are tokenised behind the suffix, because many tokenisers
    spell a word differently at the start of a text.

    Args:
        tokenizer: of the model that is asked.
        template: its chat template.
        messages: the conversation.
        question: the next user turn.
        labels: replies to tell apart, two or more.
        lead: how the reply begins before the label.
        closing: what ends a block of reasoning before the turn ends.

    Raises:
        JudgeError: two labels begin with the same token, so one token cannot tell them
            apart; or the question is blank.
        TemplateError: the template cannot render the question.
    """
    if not question.strip():
        raise JudgeError(
            "The verdict question is blank; write one into the profile's [wording], "
            "or use --accept exact."
        )
    text = closing + template.suffix(messages, question) + lead
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
        named = " and ".join(repr(label) for label in (labels[0], labels[-1]))
        which = f"The labels {named}" if len(labels) == 2 else f"Two labels between {named}"
        raise JudgeError(
            f"{which} begin with the same token for this model; "
            "choose others in the profile's [wording], or use --accept exact."
        )
    return Question(tuple(suffix[:n]), tuple(first))


def make_score_question(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    wording: JudgeWording,
    *,
    closing: str = "",
) -> Question:
    """The question for a mark, whose labels are the digits; raises as `make_question`.

    Source: SpecReason (arXiv 2504.07891), which begins the reply too.
    """
    question = wording.question_score
    return make_question(
        tokenizer, template, messages, question, DIGITS, lead="Score: ", closing=closing
    )


def make_judge(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    wording: JudgeWording,
    *,
    score: bool = False,
    marks: Marks | None = None,
) -> Judge:
    """The questions of a pair's profile for one conversation; raises as `make_question`.

    Args:
        tokenizer: of the model that is asked.
        template: its chat template.
        messages: the conversation.
        wording: of the pair's profile.
        score: also the one for a mark.
        marks: how the model marks its reasoning, None for one that does not think.
    """

    def verdict(question: str, closing: str = "") -> Question:
        labels = (wording.label_correct, wording.label_incorrect)
        return make_question(tokenizer, template, messages, question, labels, closing=closing)

    def mark(closing: str = "") -> Question:
        return make_score_question(tokenizer, template, messages, wording, closing=closing)

    thinks = marks is not None
    closing = marks.closing_text if marks is not None else ""
    return Judge(
        score=mark() if score else None,
        full=verdict(wording.question_full),
        prefix=verdict(wording.question_prefix),
        reasoning=verdict(wording.question_reasoning, closing) if thinks else None,
        reasoning_score=mark(closing) if thinks and score else None,
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


def marks(
    label_logprobs: npt.NDArray[np.float32], *, by: ScoreBy
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The mark of each reply, and the mass of all digits.

    Args:
        label_logprobs: log-probabilities (nats) of the digits, shape (n, 10), 0 first.
        by: "greedy" takes the likeliest digit, the lowest of several; "mean" the mean of
            their distribution.

    Returns:
        (mark, label_mass), each of shape (n,); marks from 0 to 9, NaN for a row without a
        distribution.

    Source: SpecReason (arXiv 2504.07891); both ways are in its published code.
    """
    logprobs = np.maximum(label_logprobs.astype(np.float64), -1e4)
    weights = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    mean = weights @ np.arange(weights.shape[1]) / weights.sum(axis=1)
    found = np.where(np.isnan(mean), np.nan, weights.argmax(axis=1)) if by == "greedy" else mean
    return found, np.exp(logprobs).sum(axis=1)
