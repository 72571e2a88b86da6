"""Colours of code, for the answer on the screen: the terminal's own, readable on dark and light."""

from __future__ import annotations

import contextlib

from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

from parse_local.terminal.cells import Cell, split

# SGR parameters. No white, black, yellow or blue: each vanishes on some background.
_STYLES: dict[_TokenType, str] = {
    Token.Comment: "2;3",
    Token.Keyword: "35",
    Token.Keyword.Constant: "36",
    Token.Literal.Number: "36",
    Token.Literal.String: "32",
    Token.Name.Builtin: "36",
    Token.Name.Class: "1",
    Token.Name.Decorator: "36",
    Token.Name.Function: "1",
    Token.Name.Tag: "35",
    Token.Operator.Word: "35",
    Token.Generic.Deleted: "31",
    Token.Generic.Inserted: "32",
    Token.Generic.Heading: "1",
    Token.Generic.Subheading: "36",
}

_REMEMBERED = 60
"""Lines before one that decide on its colours, at least."""


class Highlighter:
    """Styles the lines of one code block as they come.

    Args:
        language: as the block names it; unknown ones stay plain.
    """

    def __init__(self, language: str) -> None:
        self._lexer: Lexer | None = None
        self._lines: list[str] = []
        if language:
            with contextlib.suppress(ClassNotFound):
                self._lexer = get_lexer_by_name(language, stripnl=False)

    def line(self, text: str) -> list[Cell]:
        """The next line, without its line break; its characters stay as they are."""
        if self._lexer is None:
            return split(text)
        self._lines.append(text)
        if len(self._lines) > 2 * _REMEMBERED:  # or a long block would be read again and again
            del self._lines[:_REMEMBERED]
        cells: list[Cell] = []
        last = cells
        for kind, value in lex("".join(f"{line}\n" for line in self._lines), self._lexer):
            for i, part in enumerate(value.split("\n")):
                if i:  # only the last line is wanted, and it ends with a line break
                    last, cells = cells, []
                cells += split(part, _style(kind))
        if "".join(cell.text for cell in last) != text:
            return split(text)
        return last


def _style(kind: _TokenType) -> str:
    while kind not in _STYLES and kind.parent is not None:
        kind = kind.parent
    return _STYLES.get(kind, "")
