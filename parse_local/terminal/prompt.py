"""The input line: keys, completion, history, the toolbar under it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions, has_focus
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from parse_local.terminal.commands import COMMANDS, Completes
from parse_local.terminal.pastes import Pastes

QUOTES = '"""'

Names = Mapping[Completes, Callable[[], Iterable[str]]]
"""What Tab offers for each kind of argument, asked when it is pressed."""

# No colours: the toolbar is as readable as the terminal's own text, light or dark.
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "bottom-toolbar.text": "dim"})


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
    """Completes a slash command at the start of the message, then its argument.

    Args:
        names: of pairs, sessions and settings; files are looked up here.
    """

    def __init__(self, names: Names | None = None) -> None:
        self._names = names or {}
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """All commands, or arguments of one, that begin with what is typed."""
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return
        word, space, argument = typed.partition(" ")
        for command in COMMANDS:
            if not space and command.name.startswith(word):
                name = command.name + " " if command.argument else command.name
                yield Completion(name, -len(word), display=command.name, display_meta=command.help)
            elif space and command.name == word:
                if command.completes == "file":
                    yield from self._paths.get_completions(Document(argument), event)
                known = self._names.get(command.completes)
                for choice in (*command.choices, *(known() if known else ())):
                    # Of settings first their names, then the values that one of them has.
                    if choice.startswith(argument) and choice.count(" ") <= argument.count(" "):
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


class ChatPrompt(PromptSession[str]):
    """A prompt in which long pastes are folded; what it returns is whole.

    Args:
        pastes: what was folded, as the key bindings know it.
        **kwargs: of `PromptSession`.
    """

    def __init__(self, pastes: Pastes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._pastes = pastes

    def prompt(self, *args: Any, **kwargs: Any) -> str:
        """Read a message; raises as `PromptSession.prompt`."""
        return self._pastes.unfold(super().prompt(*args, **kwargs))


class _Unfolding(History):
    """Another history that gets pastes whole, since a folded one is worth nothing later."""

    def __init__(self, history: History, pastes: Pastes) -> None:
        super().__init__()
        self._history = history
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        super().append_string(self._pastes.unfold(string))

    def load_history_strings(self) -> Iterable[str]:
        return self._history.load_history_strings()

    def store_string(self, string: str) -> None:
        self._history.append_string(string)


def make_session(
    history: History,
    output: Output | None = None,
    *,
    toolbar: Callable[[], AnyFormattedText] | None = None,
    names: Names | None = None,
    on_thinking: Callable[[], None] | None = None,
) -> PromptSession[str]:
    """The prompt of the chat: Enter sends, Alt-Enter adds a line, Tab completes.

    Args:
        history: from `open_history`.
        output: where to draw; None for the application's own.
        toolbar: what stands under the prompt, asked at every redraw; None for nothing.
        names: what Tab completes besides commands, their choices and files.
        on_thinking: shows the last answer's reasoning (Ctrl-T); it may print.
    """
    pastes = Pastes()
    return ChatPrompt(
        pastes,
        history=_Unfolding(history, pastes),
        key_bindings=_keys(pastes, on_thinking),
        completer=CommandCompleter(names),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=_continuation,
        enable_history_search=True,
        enable_open_in_editor=False,  # bound to Ctrl-G below, in both editing modes
        tempfile_suffix=".md",
        bottom_toolbar=toolbar,
        style=_STYLE,
        output=output,
    )


def _continuation(width: int, line: int, wrapped: int) -> str:
    return " " * width if wrapped else ". ".rjust(width)


def _keys(pastes: Pastes, on_thinking: Callable[[], None] | None) -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus("DEFAULT_BUFFER")

    @keys.add("enter", filter=typing)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions & typing)
    def _take_completion(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        else:
            _send(event)

    @keys.add("c-g", filter=typing)
    def _edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        buffer.text = pastes.unfold(buffer.text)
        buffer.open_in_editor()

    @keys.add(Keys.BracketedPaste, filter=typing)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(pastes.fold(text))

    if on_thinking is not None:
        show = on_thinking

        @keys.add("c-t", filter=typing)
        def _show_thinking(event: KeyPressEvent) -> None:
            from prompt_toolkit.application import run_in_terminal

            run_in_terminal(show)

    return keys
