"""Pages that are generated from the code: written, or compared with what is committed."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def stale(page: Path, wanted: str) -> list[str]:
    """The differences between a page and what it should be, as a unified diff's lines."""
    found = page.read_text(encoding="utf-8") if page.exists() else ""
    name = page.name
    return list(
        difflib.unified_diff(
            found.splitlines(), wanted.splitlines(), name, f"{name}, generated", lineterm="", n=1
        )
    )


def main(script: str, page: Path, render: Callable[[], str]) -> int:
    """What a script that generates `page` does: write it, or with --check compare it.

    Args:
        script: path of the script below the repository's root, for messages.
        page: the page.
        render: makes its whole text.

    Returns:
        Exit status: 1 where --check finds a difference, else 0.
    """
    parser = argparse.ArgumentParser(description=f"Write {page.relative_to(ROOT)} from the code.")
    parser.add_argument("--check", action="store_true", help="Only say whether it is up to date.")
    if not parser.parse_args().check:
        page.write_text(render(), encoding="utf-8", newline="\n")
        return 0
    differences = stale(page, render())
    if differences:
        print("\n".join(differences))
        print(
            f"\n{page.relative_to(ROOT)} is stale: run .venv/bin/python {script}", file=sys.stderr
        )
    return 1 if differences else 0
