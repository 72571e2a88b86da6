"""Text to the clipboard: of this machine, or over ssh of the one that the terminal is on."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from parse_local.errors import UsageError
from parse_local.terminal.stats import count

_MOST_OSC52 = 74_994
"""Bytes of base64 that the strictest common terminal takes."""


def copy(
    text: str, *, environ: Mapping[str, str] = os.environ, terminal: TextIO | None = None
) -> str:
    """Copy, and return a sentence about what was done.

    Over ssh the programs of this machine would fill a clipboard that nobody pastes from, so
    the terminal is asked instead (the control sequence OSC 52). It gives no reply.

    Args:
        text: what to copy.
        environ: says whether this is an ssh session.
        terminal: where the terminal is; None for stderr or stdout, whichever is one.

    Raises:
        UsageError: there is no clipboard.
    """
    import pyperclip  # only the one command needs it

    if terminal is None:
        terminal = next((out for out in (sys.stderr, sys.stdout) if out.isatty()), None)
    remote = any(environ.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))
    reason = "there is no terminal"
    if not remote:
        try:
            pyperclip.copy(text)
        except pyperclip.PyperclipException:
            reason = "no wl-copy, xclip or xsel is installed"
        else:
            return f"Copied {count(len(text), 'character')}."
    if terminal is None:
        raise UsageError(f"There is no clipboard ({reason}); /save FILE writes a file.")
    coded = base64.b64encode(text.encode("utf-8", "replace"))
    if len(coded) > _MOST_OSC52:
        raise UsageError("The answer is too long for a terminal's clipboard; use /save FILE.")
    terminal.write(f"\x1b]52;c;{coded.decode('ascii')}\a")
    terminal.flush()
    return f"Sent {count(len(text), 'character')} to the terminal's clipboard, if it has one."
