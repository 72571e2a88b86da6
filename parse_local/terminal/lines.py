"""Which lines of Markdown are prose, before a parser has seen the whole block.

For text that is shown as it was written: what is pending, a draft, what was given up.
"""

from __future__ import annotations

import re

from parse_local.terminal.cells import Cell, split

_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_FENCE = re.compile(r"(?:[\s>]|[-*+]\s|\d+[.)]\s)*(```+(?!.*`)|~~~+)\s*(.*)")
_TABLE = re.compile(r"[\s>]*\|")


def as_written(before: str, text: str, style: str = "", *, fence: str = "") -> list[Cell]:
    """Text as cells, those of its prose to be wrapped at words.

    Lines of code, of tables, and what is indented like code outside of lists stay whole.

    Args:
        before: what stands in front of it, from the beginning of its block; may be empty.
        text: `visible` already.
        style: of all cells.
        fence: of the code block in which `before` begins; "" for none.
    """
    cells: list[Cell] = []
    in_list = False
    n_before = len(before)
    for line in (before + text).splitlines(keepends=True):
        if (line.strip() and not line[0].isspace()) or _ITEM.match(line):
            in_list = _ITEM.match(line) is not None
        found = _FENCE.match(line)
        code = bool(fence or found)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not found[2]:
            fence = ""
        fixed = code or _TABLE.match(line) or (is_indented(line) and not in_list)
        cells += split(line[n_before:], style, prose=not fixed)
        n_before = max(0, n_before - len(line))
    return cells


def is_indented(line: str) -> bool:
    """Whether a line is indented as code is in Markdown."""
    return line.startswith(("    ", "\t"))
