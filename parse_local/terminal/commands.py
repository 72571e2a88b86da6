"""Slash commands of the chat: what they are called and what they do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rich.console import Console

from parse_local.errors import ParseLocalError
from parse_local.events import Result
from parse_local.policy import AcceptMode, Options, Strategy, resolve
from parse_local.profile import Profile
from parse_local.terminal.conversation import Conversation
from parse_local.terminal.stats import print_stats

AUTO = "auto"

Completes = Literal["", "file", "pair", "session", "setting"]
"""Kinds of argument that Tab completes."""


@dataclass(frozen=True)
class Command:
    """One slash command.

    Args:
        name: with its slash.
        argument: how `/help` shows the argument, "" for none.
        help: one line.
        choices: what the argument may be; empty for free text or none.
        completes: what Tab offers besides the choices: files of the disk, or the names that the
            chat knows of this kind (`prompt.make_session`).
    """

    name: str
    argument: str
    help: str
    choices: Sequence[str] = ()
    completes: Completes = ""


COMMANDS = (
    Command("/help", "", "Show this list."),
    Command("/exit", "", "Leave, as Ctrl-D does."),
    Command("/clear", "", "Forget the conversation; the system prompt stays."),
    Command("/system", "TEXT", "Set the system prompt; alone: show it; `-`: remove it."),
    Command("/stats", "", "Show what the last answer cost."),
    Command(
        "/strategy",
        "NAME",
        f"Who writes: {', '.join(get_args(Strategy))}.",
        get_args(Strategy),
    ),
    Command(
        "/accept",
        "MODE",
        "What makes a draft acceptable: exact, loose, semantic, fused or auto.",
        (*get_args(AcceptMode), AUTO),
    ),
)
_ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help", "/reset": "/clear"}
_KEYS = (
    ("Enter", "Send."),
    ("Alt-Enter", "New line."),
    ('"""', "Begins and ends a message of several lines."),
    ("Ctrl-C", "Stop the answer and keep what is final; at the prompt: clear the line."),
    ("Ctrl-D", "Leave."),
)


def is_command(text: str) -> bool:
    """Whether a message is a command; paths (`/usr/bin`) and `//` comments are not."""
    return re.match(r"\s*/(\?|[A-Za-z]+)(\s|$)", text) is not None


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice that was probably meant."""
    found = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return found[0] if found else None


class Commands:
    """Runs commands on the state of a chat.

    Args:
        conversation: what `/clear` and `/system` change.
        options: what `/strategy` and `/accept` replace.
        profile: of the pair; says which acceptance modes it has.
        console: where notes go.
    """

    def __init__(
        self, conversation: Conversation, options: Options, profile: Profile, console: Console
    ) -> None:
        self.conversation = conversation
        self.options = options
        self.last: Result | None = None
        self._profile = profile
        self._console = console

    def run(self, text: str) -> bool:
        """Run one command; False means: leave the chat."""
        word, *rest = text.strip().split(maxsplit=1)
        argument = rest[0] if rest else ""
        name = _ALIASES.get(word.lower(), word.lower())
        match name:
            case "/exit":
                return False
            case "/help":
                self._help()
            case "/clear":
                self.conversation.clear()
                self._say("The conversation is forgotten.")
            case "/system":
                self._system(argument)
            case "/stats":
                if self.last is None:
                    self._say("There is no answer yet.")
                else:
                    print_stats(self.last, self._console)
            case "/strategy":
                self._choose("strategy", argument, get_args(Strategy))
            case "/accept":
                self._choose("accept", argument, (*get_args(AcceptMode), AUTO))
            case _:
                guess = nearest(name, [c.name for c in COMMANDS])
                hint = f"Did you mean {guess}?" if guess else "/help lists the commands."
                self._say(f"There is no command {word}. {hint}")
        return True

    def _system(self, argument: str) -> None:
        if argument == "-":
            self.conversation.system = None
            self._say("The system prompt is removed.")
        elif argument:
            self.conversation.system = argument
            self._say("The system prompt is set; it holds from the next message on.")
        elif self.conversation.system:
            self._say(f"System prompt: {self.conversation.system}")
        else:
            self._say("There is no system prompt.")

    def _choose(self, field: str, argument: str, choices: Sequence[str]) -> None:
        if not argument:
            self._say(f"{field}: {getattr(self.options, field) or AUTO} (of {', '.join(choices)})")
            return
        value = argument.lower()
        if value not in choices:
            guess = nearest(value, choices)
            hint = f"Did you mean {guess}?" if guess else f"Choose from: {', '.join(choices)}."
            self._say(f"There is no {field} {argument}. {hint}")
            return
        change: dict[str, Any] = {field: None if value == AUTO else value}
        try:
            options = replace(self.options, **change)
            resolve(options, self._profile)
        except ParseLocalError as error:
            self._say(str(error))
            return
        self.options = options
        self._say(f"{field}: {value}")

    def _help(self) -> None:
        rows = [(f"{c.name} {c.argument}".rstrip(), c.help) for c in COMMANDS]
        for name, text in (*rows, *_KEYS):
            self._say(f"{name:<15} {text}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)
