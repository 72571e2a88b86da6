"""JSON Lines files that grow while a run goes on: an interrupted one ends in a torn line."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """The lines that are there from beginning to end, without their line feeds.

    Args:
        path: may not exist yet, which is no lines.

    Raises:
        OSError: the file cannot be read.
    """
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def drop_torn_line(path: Path) -> None:
    """Cut off what stands behind the last line feed, so that the next line is one of its own.

    Args:
        path: may not exist yet.

    Raises:
        OSError: the file cannot be read or written.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    n_whole = data.rfind(b"\n") + 1
    if n_whole != len(data):
        with path.open("r+b") as file:
            file.truncate(n_whole)
