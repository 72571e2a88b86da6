"""One answer on the screen, as `parse-local run` and the chat both show it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol, TextIO

from parse_local.chat_template import Message
from parse_local.events import Event, Progress, Result, Round
from parse_local.policy import Options
from parse_local.profile import Profile
from parse_local.terminal.interrupt import interruptible, silent_keyboard
from parse_local.terminal.live import AnswerView
from parse_local.terminal.reasoning import ReasoningView
from parse_local.terminal.status import Status


class AnswersProtocol(Protocol):
    """What the screen needs of an engine."""

    @property
    def pair_name(self) -> str:
        """Name of the loaded pair."""

    @property
    def n_ctx(self) -> int:
        """Tokens of context for prompt and answer."""

    @property
    def can_think(self) -> bool:
        """Whether the target may think before it answers."""

    @property
    def profile(self) -> Profile:
        """Thresholds and wording of the pair."""

    @property
    def progress(self) -> Progress:
        """How far the running answer is."""

    def stream(self, messages: list[Message], options: Options) -> Iterator[Event]:
        """Answer the last message; `Finished` is the last event."""

    def n_prompt(self, messages: list[Message], options: Options) -> int:
        """Tokens of the prompt that `stream` would read."""

    def cancel(self) -> None:
        """Stop the running answer soon; what is final stays."""

    def verify(self, messages: list[Message], text: str, *, options: Options) -> Round:
        """Judge an answer that is already written."""

    def close(self) -> None:
        """Free the models."""


def show_answer(
    engine: AnswersProtocol,
    messages: list[Message],
    options: Options,
    *,
    out: TextIO | None = None,
    markdown: bool = True,
    status: bool = True,
    watch: Callable[[Event], None] | None = None,
) -> Result:
    """Answer and draw it as it is written; Ctrl-C stops it and keeps what is final.

    Args:
        engine: a loaded pair.
        messages: the conversation, the question last.
        options: how to answer.
        out: where to draw, stdout unless given.
        markdown: render what is final, on a terminal.
        status: show figures under the answer while it runs, on a terminal.
        watch: gets every event, in the caller's thread, once it has been shown.

    Returns:
        The result, with finish reason "cancelled" after Ctrl-C.

    Raises:
        ParseLocalError: as `Engine.stream`; text that was final by then stays on the screen.
    """
    markdown = markdown and options.grammar is None  # whoever asks for a form wants it as it is
    figures = Status(lambda: engine.progress, engine.n_ctx, options.strategy) if status else None
    view = AnswerView(out, markdown=markdown, status=figures)
    events = interruptible(engine, engine.stream(messages, options), view.idle)
    reasoning = ReasoningView(sys.stdout) if out is None else None
    with silent_keyboard(), view, closing(events):
        for event in events:
            if reasoning is not None:
                reasoning.show(event)
            view.show(event)
            if watch is not None:
                watch(event)
    return view.result or Result()
