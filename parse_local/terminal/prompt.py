"""The input line: keys, completion of commands, history."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from parse_local.terminal.commands import COMMANDS

QUOTES = '"""'


def unquote(text: str) -> str:
    """A message without the triple quotes that held it together."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES):
        return stripped
    return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def is_open(text: str) -> bool:
    """Whether a message began with triple quotes and has not ended with them."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES):
        return False
    return len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES)


class CommandCompleter(Completer):
    """Completes a slash command at the start of the message, then its argument."""

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """All commands, or choices, that begin with what is typed."""
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return
        word, space, argument = typed.partition(" ")
        for command in COMMANDS:
            if not space and command.name.startswith(word):
                name = command.name + " " if command.argument else command.name
                yield Completion(name, -len(word), display=command.name, display_meta=command.help)
            elif space and command.name == word:
                for choice in command.choices:
                    if choice.startswith(argument):
                        yield Completion(choice, -len(argument))


class _Recorded(FileHistory):
    """History on disk; a disk that fills up later costs the history, not the chat."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError):
            super().store_string(string)


def open_history(path: Path) -> tuple[History, str | None]:
    """The history in `path`, or one that lasts until the end with a note why.

    Args:
        path: made readable by its owner only; directories are created.

    Returns:
        The history, and a note for the user where it is not kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600))
    except OSError as error:
        reason = error.strerror or str(error)
        return InMemoryHistory(), f"Prompts are not kept: {path.parent}: {reason}."
    return _Recorded(str(path)), None


def make_session(history: History, output: Output | None = None) -> PromptSession[str]:
    """The prompt of the chat: Enter sends, Alt-Enter adds a line, Tab completes.

    Args:
        history: from `open_history`.
        output: where to draw; None for the application's own.
    """
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus("DEFAULT_BUFFER"))
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=has_focus("DEFAULT_BUFFER"))
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions & has_focus("DEFAULT_BUFFER"))
    def _take_completion(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        else:
            _send(event)

    def continuation(width: int, line: int, wrapped: int) -> str:
        return " " * width if wrapped else ". ".rjust(width)

    return PromptSession(
        history=history,
        key_bindings=keys,
        completer=CommandCompleter(),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=continuation,
        enable_history_search=True,
        output=output,
    )
