"""Texts from outside: files, standard input, arguments. Anything but text is refused."""

from __future__ import annotations

import sys
from pathlib import Path

from parse_local.errors import UsageError


def read_file(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text; convert it first.") from error


def file_or_text(value: str, *, is_text: bool) -> str:
    """The value itself, or what is in the file that it names; raises as `read_file`.

    Args:
        value: of an option that takes either.
        is_text: it reads like a text, so that there is no need to look for a file.
    """
    return value if is_text else read_file(Path(value))


def read_stdin() -> str:
    """All of standard input, in the terminal's encoding; raises as `require_text`."""
    try:
        return require_text(sys.stdin.read(), "What came on stdin")
    except UnicodeDecodeError as error:
        raise _not_text("What came on stdin") from error


def require_text(text: str, what: str) -> str:
    """Return `text` unless it carries bytes that were no text.

    Python hands such bytes on as lone surrogates (PEP 383), which no tokeniser knows.

    Raises:
        UsageError: it does.
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise _not_text(what)
    return text


def _not_text(what: str) -> UsageError:
    return UsageError(f"{what} is not {sys.stdin.encoding or 'UTF-8'} text; convert it first.")
