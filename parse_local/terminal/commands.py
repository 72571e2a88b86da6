"""Slash commands of the chat: one table of small handlers."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from parse_local.errors import Cancelled, ParseLocalError, UsageError
from parse_local.terminal.dialogue import Dialogue
from parse_local.terminal.handlers.keeping import KEEPING
from parse_local.terminal.handlers.models import MODELS
from parse_local.terminal.handlers.settings import SETTINGS
from parse_local.terminal.handlers.showing import SHOWING
from parse_local.terminal.handlers.table import (
    Command,
    Completes,
    is_command,
    nearest,
    suggestion,
)
from parse_local.terminal.handlers.talking import TALKING

__all__ = ["COMMANDS", "KEYS", "Command", "Completes", "is_command", "nearest", "run_command"]

KEYS = (
    ("Enter", "Send."),
    ("Alt-Enter", "New line."),
    ('"""', "Begins and ends a message of several lines."),
    ("Ctrl-G", "Write the message in $VISUAL or $EDITOR."),
    ("Tab", "Complete a command, a file, or a name."),
    ("Up, Ctrl-R", "Earlier messages; search them."),
    ("Ctrl-T", "Show what the model thought before the last answer."),
    ("Ctrl-C", "Stop the answer and keep what is final; at the prompt: clear the line."),
    ("Ctrl-D", "Leave."),
)
"""Every key that does something, for `/help`."""


def _help(chat: Dialogue, argument: str) -> None:
    table = Table.grid(padding=(0, 2))
    for c in COMMANDS:
        table.add_row(Text(f"{c.name} {c.argument}".rstrip()), Text(c.help))
    table.add_row()
    for key, help in KEYS:
        table.add_row(Text(key), Text(help))
    chat.console.print(table)


def _exit(chat: Dialogue, argument: str) -> None:
    chat.leaving = True


COMMANDS = (
    Command("/help", "", "Show this list.", _help),
    Command("/exit", "", "Leave, as Ctrl-D does.", _exit),
    *TALKING,
    *SETTINGS,
    *SHOWING,
    *KEEPING,
    *MODELS,
)
_ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help", "/reset": "/clear", "/load": "/model"}


def run_command(chat: Dialogue, text: str) -> None:
    """Run one command; its errors and unknown names are said."""
    word, *rest = text.strip().split(maxsplit=1)
    name = _ALIASES.get(word.lower(), word.lower())
    found = [command for command in COMMANDS if command.name == name]
    if not found:
        hint = suggestion(name, [c.name for c in COMMANDS], "/help lists the commands.")
        chat.say(f"There is no command {word}. {hint}")
        return
    try:
        found[0].run(chat, rest[0].strip() if rest else "")
    except Cancelled:
        chat.note("Stopped.")
    except UsageError as error:  # an answer to what was typed, rather than a failure
        chat.say(str(error))
    except ParseLocalError as error:
        chat.complain(error)
