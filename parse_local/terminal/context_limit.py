"""When a conversation no longer fits into the context: what could be dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from parse_local.chat_template import Message
from parse_local.terminal.conversation import Conversation, Turn

ContextFull = Literal["ask", "drop", "stop"]
CONTEXT_FULL: tuple[ContextFull, ...] = get_args(ContextFull)

_LEAST_SHARE = 16
"""With less than this part of the context left, an answer would hardly begin."""
_ROOM_SHARE = 4
"""Dropping leaves this part free: after each drop the models read all that is left again."""


@dataclass(frozen=True)
class Fit:
    """How a question fits behind a conversation.

    Args:
        n_prompt: tokens with everything that is seen now.
        n_drop: the oldest turns that would have to go; 0 where it fits.
        n_after: tokens without them.
        n_ctx: tokens that the context holds.
    """

    n_prompt: int
    n_drop: int
    n_after: int
    n_ctx: int

    @property
    def possible(self) -> bool:
        """Whether an answer can begin at all, with or without dropping."""
        return self.n_after < self.n_ctx


def fit(
    conversation: Conversation,
    question: str,
    *,
    count: Callable[[list[Message]], int],
    n_ctx: int,
    max_tokens: int,
    replacing: Turn | None = None,
) -> Fit:
    """Count a question's prompt, and the turns that have to go where it leaves too little room.

    Args:
        conversation: what has been said.
        question: the next one.
        count: tokens of a prompt.
        n_ctx: tokens that the context holds.
        max_tokens: most tokens of the answer; more room than that is never needed.
        replacing: a turn in whose place the question is asked.
    """

    def n_tokens(n_dropped: int) -> int:
        messages = conversation.asking(question, replacing=replacing, n_dropped=n_dropped)
        return count(messages)

    n_prompt = n_tokens(0)
    if n_prompt + min(max_tokens, n_ctx // _LEAST_SHARE) <= n_ctx:
        return Fit(n_prompt, 0, n_prompt, n_ctx)
    n_seen = sum(turn is not replacing for turn in conversation.seen)
    n_drop, n_after = 0, n_prompt
    while n_drop < n_seen and n_after + min(max_tokens, n_ctx // _ROOM_SHARE) > n_ctx:
        n_drop += 1
        n_after = n_tokens(n_drop)
    return Fit(n_prompt, n_drop, n_after, n_ctx)
