"""What a slash command is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from parse_local.terminal.dialogue import Dialogue

Completes = Literal["", "file", "pair", "session", "setting"]
"""Kinds of argument that Tab completes."""


@dataclass(frozen=True)
class Command:
    """One slash command.

    Args:
        name: with its slash.
        argument: how `/help` shows the argument, "" for none.
        help: one line.
        run: does it; gets the chat and the argument, "" where none was given. It may raise a
            ParseLocalError, which is shown.
        choices: what the argument may be; empty for free text or none.
        completes: what Tab offers besides the choices: files of the disk, or the names that the
            chat knows of this kind (`prompt.make_session`).
    """

    name: str
    argument: str
    help: str
    run: Callable[[Dialogue, str], None]
    choices: Sequence[str] = ()
    completes: Completes = ""


def is_command(text: str) -> bool:
    """Whether a message is a command; paths (`/usr/bin`) and `//` comments are not."""
    return re.match(r"\s*/(\?|[A-Za-z]+)(\s|$)", text) is not None


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice that was probably meant: the first that begins so, else the most similar."""
    begun = [choice for choice in choices if len(word) > 2 and choice.startswith(word)]
    found = begun or difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(word: str, choices: Sequence[str], otherwise: str) -> str:
    """A sentence that names the choice that was probably meant, else `otherwise`."""
    guess = nearest(word, choices)
    return f"Did you mean {guess}?" if guess else otherwise
