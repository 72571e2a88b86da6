"""The turns of a chat, always alternating between user and assistant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parse_local.chat_template import Message
from parse_local.sessions.record import StoredMessage


@dataclass(frozen=True)
class Turn:
    """A question and its answer, finished or not."""

    question: StoredMessage
    answer: StoredMessage

    @property
    def in_context(self) -> bool:
        """Whether the models see it."""
        return self.question.in_context and self.answer.in_context

    @property
    def messages(self) -> tuple[StoredMessage, StoredMessage]:
        """Both."""
        return self.question, self.answer

    def left_out(self) -> Turn:
        """The same turn, no longer seen by the models."""
        return Turn(
            replace(self.question, in_context=False), replace(self.answer, in_context=False)
        )


class Conversation:
    """What has been said so far.

    Args:
        system: the system prompt, None for none.
        messages: of an earlier session; questions that were never answered are not asked again.

    Attributes:
        turns: answered questions, also those that the models no longer see.
        unanswered: the last question, where it got no answer.
        thought: what a model only thought about it; None where it did not.
    """

    def __init__(self, system: str | None = None, messages: Sequence[StoredMessage] = ()) -> None:
        self.system = system
        self.turns: list[Turn] = []
        self.unanswered: StoredMessage | None = None
        self.thought: StoredMessage | None = None
        for message in messages:
            if message.role == "user":
                self.leave_unanswered(message)
            elif self.unanswered is not None:
                if message.content:
                    self.add(Turn(self.unanswered, message))
                else:
                    self.leave_unanswered(self.unanswered, message)

    @property
    def seen(self) -> list[Turn]:
        """The turns that the models see."""
        return [turn for turn in self.turns if turn.in_context]

    @property
    def messages(self) -> list[StoredMessage]:
        """Everything in order."""
        last = (self.unanswered, self.thought)
        return [
            *(m for turn in self.turns for m in turn.messages),
            *(m for m in last if m is not None),
        ]

    def asking(
        self, question: str, *, replacing: Turn | None = None, n_dropped: int = 0
    ) -> list[Message]:
        """The messages that ask `question` next; the conversation stays as it is.

        Args:
            question: the next one.
            replacing: a turn that is left out, since this one takes its place.
            n_dropped: so many of the oldest turns are left out as well.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        seen = [turn for turn in self.seen if turn is not replacing][n_dropped:]
        said = [message for turn in seen for message in _to_chat(turn)]
        return [*system, *said, {"role": "user", "content": question}]

    def add(self, turn: Turn, *, replacing: Turn | None = None) -> None:
        """Keep a turn, in place of another one where that is named."""
        self.turns = [other for other in self.turns if other is not replacing]
        self.turns.append(turn)
        self.unanswered = self.thought = None

    def leave_unanswered(
        self, question: StoredMessage, thought: StoredMessage | None = None
    ) -> None:
        """Keep a question that got no answer, and what was thought about it."""
        self.unanswered, self.thought = question, thought

    def take_back(self) -> list[StoredMessage]:
        """Forget the last turn, or the question that got no answer; returns its messages."""
        if self.unanswered is not None:
            taken = [m for m in (self.unanswered, self.thought) if m is not None]
            self.unanswered = self.thought = None
            return taken
        return list(self.turns.pop().messages) if self.turns else []

    def drop(self, n: int) -> list[Turn]:
        """Let the models no longer see the `n` oldest turns that they see; returns these."""
        dropped = self.seen[:n]
        self.turns = [t.left_out() if any(t is d for d in dropped) else t for t in self.turns]
        return dropped

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()
        self.unanswered = self.thought = None


def _to_chat(turn: Turn) -> list[Message]:
    answer = {"role": "assistant", "content": turn.answer.content}
    if turn.answer.reasoning:  # whether earlier reasoning is read again is the template's choice
        answer["reasoning_content"] = turn.answer.reasoning
    return [{"role": "user", "content": turn.question.content}, answer]
