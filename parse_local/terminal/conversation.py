"""The turns of a chat, always alternating between user and assistant."""

from __future__ import annotations

from parse_local.chat_template import Message


class Conversation:
    """What has been said so far.

    Args:
        system: the system prompt, None for none.
    """

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[Message] = []

    @property
    def n_turns(self) -> int:
        """Answered questions."""
        return len(self._turns) // 2

    def asking(self, question: str) -> list[Message]:
        """The messages that ask `question` next; the conversation stays as it is."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._turns, {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        """Keep a question and its answer, finished or not."""
        self._turns += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._turns.clear()
