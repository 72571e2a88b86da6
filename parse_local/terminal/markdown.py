"""Markdown as styled text, block by block while it is written.

Rendering takes marks away (`**`, `#`), puts signs in the place of others (`•` for `-`)
and lines tables up. Words, numbers and lines stay where they are, and what is not
understood stays as it was written. Pure: text in, cells out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token

from parse_local.terminal.cells import Cell, as_prose, flow, split
from parse_local.terminal.highlight import Highlighter
from parse_local.terminal.lines import as_written, is_indented

DIM, BOLD, ITALIC, UNDERLINE, STRUCK, CODE = "2", "1", "3", "4", "9", "36"

_PREFIX = re.compile(r"^((?:[\s>]|[-*+](?=\s)|\d+[.)](?=\s))*)")
_ESCAPED = frozenset("*_`#~<>|!+-.")
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*$")


BULLET, QUOTE, RULE, CROSS = "•", "│", "─", "┼"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    # Left out is whatever would change or hide words: entities, link definitions,
    # underlined headings (mostly a paragraph and a rule), indented code. Without
    # `text_join` escapes can be told from other text.
    parser.disable(["entity", "reference", "lheading", "code", "html_block", "text_join"])
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign]
    parser.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser


class MarkdownStream:
    """Renders the blocks of a growing text; the block that is not complete is `pending`.

    Args:
        columns: of the screen at this moment, for tables.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._parser = _parser()
        self._text = ""  # from the first block that is not complete
        self._n_shown = 0  # characters of it that stay as they were written
        self._fence: _Fence | None = None
        self._pending: list[Cell] = []

    @property
    def pending(self) -> Sequence[Cell]:
        """What may still be rendered, as it was written."""
        return self._pending

    def push(self, text: str) -> list[Cell]:
        """Take final text (`visible` already); returns the cells of blocks that it completes."""
        self._pending += self.written(text)
        self._text += text
        if "\n" not in text:
            return []
        done = self._settle(closing=False)
        self._pending = self._rest(self._text)
        return done

    def written(self, text: str, style: str = "") -> list[Cell]:
        """What may follow, as it is written: a draft."""
        return as_written(self._text, text, style, fence=self._fence.markup if self._fence else "")

    def give_up(self) -> list[Cell]:
        """Leave what is pending as it was written: it no longer fits the screen."""
        cells, self._pending = self._pending, []
        self._n_shown = len(self._text)
        return cells

    def finish(self) -> list[Cell]:
        """Nothing follows: render the rest."""
        whole = self._text.endswith("\n")
        if not whole:
            self._text += "\n"
        cells = self._settle(closing=True)
        self._text, self._n_shown, self._pending, self._fence = "", 0, [], None
        return cells if whole else cells[:-1]

    def _rest(self, text: str) -> list[Cell]:
        # Of the text in front, what does not stand there yet, as it was written.
        fence = self._fence.markup if self._fence else ""
        return as_written(text[: self._n_shown], text[self._n_shown :], fence=fence)

    def _settle(self, *, closing: bool) -> list[Cell]:
        done: list[Cell] = []
        while True:
            end = self._text.rfind("\n") + 1
            if self._fence is not None:
                n_lines = 1 if end else 0
            else:
                n_lines = self._n_complete(self._text[:end], closing)
            if not n_lines:
                return done
            done += self._take(n_lines)

    def _n_complete(self, text: str, closing: bool) -> int:
        """Lines of complete blocks at the start of a text of whole lines."""
        if not text:
            return 0
        tokens = self._parser.parse(text)
        tops = [t for t in tokens if t.level == 0 and t.nesting >= 0 and t.map]
        n_lines = text.count("\n")
        if not tops:
            return n_lines  # blank lines
        start, end = tops[0].map or (0, 0)
        if start:
            return start  # blank lines
        if tops[0].type == "fence":
            self._fence = _Fence(_language(tops[0]), tops[0].markup)
            return 1
        is_list = tops[0].type.endswith("list_open")
        if is_list:
            items = [
                t.map[0] for t in tokens if t.type == "list_item_open" and t.level == 1 and t.map
            ]
            if len(items) > 1 and items[1] < end:
                return items[1]
        complete = len(tops) > 1 or closing
        return end if complete or (end < n_lines and not is_list) else 0

    def _take(self, n_lines: int) -> list[Cell]:
        lines = self._text.split("\n", n_lines)
        block, self._text = "".join(f"{line}\n" for line in lines[:-1]), lines[-1]
        if self._n_shown:  # its beginning stands there as it was written
            rest = self._rest(block)
            self._n_shown = max(0, self._n_shown - len(block))
            if self._fence is not None:
                self._fence_line(block[:-1])
            return rest
        if self._fence is not None:
            return [*self._fence_line(block[:-1]), Cell("\n", 0)]
        return _Block(block, self._parser, self._columns()).cells()

    def _fence_line(self, text: str) -> list[Cell]:
        assert self._fence is not None
        cells = self._fence.line(text)
        if self._fence.closed:
            self._fence = None
        return cells


def _language(token: Token) -> str:
    words = token.info.split()
    return words[0] if words else ""


class _Fence:
    """A code block that is being written; its first line is the fence itself."""

    def __init__(self, language: str, markup: str) -> None:
        self.closed = False
        self.markup = markup
        self._highlighter = Highlighter(language)
        self._begun = False

    def line(self, text: str) -> list[Cell]:
        if not self._begun:
            self._begun = True
            return split(text, DIM)
        found = _FENCE.match(text)
        if found and found[1].startswith(self.markup) and not text.startswith("    "):
            self.closed = True
            return split(text, DIM)
        return self._highlighter.line(text)


class _Block:
    """One complete block, rendered line by line.

    Args:
        text: whole lines.
        parser: for it.
        columns: that a table may take.
    """

    def __init__(self, text: str, parser: MarkdownIt, columns: int) -> None:
        self._lines = text.split("\n")[:-1]
        self._columns = columns
        self._tokens = parser.parse(text)
        self._done: dict[int, list[Cell]] = {}  # by line
        self._fixed: set[int] = set()  # lines that are not wrapped at words

    def cells(self) -> list[Cell]:
        heading = ""
        for i, token in enumerate(self._tokens):
            if token.type == "heading_open":
                heading = BOLD + (";" + UNDERLINE if token.tag == "h1" else "")
            elif token.type == "heading_close":
                heading = ""
            elif token.type == "table_open":
                self._fixed.update(range(*token.map or (0, 0)))
                self._table(i)
            elif token.type == "paragraph_open" and not token.level:
                lines = range(*token.map or (0, 0))
                self._fixed.update(n for n in lines if is_indented(self._lines[n]))
            elif token.map is None or token.map[0] in self._done:
                continue
            elif token.type == "inline":
                self._inline(token, heading)
            elif token.type == "fence":
                self._fixed.update(range(*token.map))
                self._code(token)
            elif token.type == "hr":
                line = self._lines[token.map[0]]
                alone = set(line.strip()) <= set("-*_ \t")  # not behind the mark of a list
                self._done[token.map[0]] = split(RULE * 20, DIM) if alone else split(line)
        cells: list[Cell] = []
        for i, line in enumerate(self._lines):
            done = self._done[i] if i in self._done else self._prefixed(line, "")
            fixed = i in self._fixed or (is_indented(line) and not line.strip())
            cells += done if fixed else as_prose(done)
            cells.append(Cell("\n", 0))
        return cells

    def _prefixed(self, line: str, content: str) -> list[Cell]:
        # The marks in front of a line's content, with signs in their place.
        prefix = line[: len(line) - len(content)] if content else line
        if not _PREFIX.fullmatch(prefix):
            return split(prefix)
        cells: list[Cell] = []
        for char in prefix:
            if char == ">":
                cells += split(QUOTE, DIM)
            elif char in "-*+":
                cells += split(BULLET)
            else:
                cells += split(char)
        return cells

    def _inline(self, token: Token, heading: str) -> None:
        start, end = token.map or (0, 0)
        contents = [line.strip() for line in token.content.split("\n")]
        lines = _Inline(token.children or [], heading).lines()
        if lines is None or not len(contents) == len(lines) == end - start:
            for i in range(start, end):
                self._done[i] = split(self._lines[i])
            return
        for i, content, cells in zip(range(start, end), contents, lines, strict=True):
            line = self._lines[i]
            at = line.rfind(content)
            if heading and at >= 0:
                front = re.sub(r"#+\s*$", "", line[:at])
                self._done[i] = [*self._prefixed(front, ""), *cells]
            elif at >= 0:
                self._done[i] = [*self._prefixed(line[: at + len(content)], content), *cells]
            else:
                self._done[i] = split(line)

    def _code(self, token: Token) -> None:
        # A code block inside a list or a quotation.
        start, end = token.map or (0, 0)
        highlighter = Highlighter(_language(token))
        self._done[start] = split(self._lines[start], DIM)
        code = token.content.split("\n")[:-1]
        for i, content in zip(range(start + 1, end), code, strict=False):
            line = self._lines[i]
            cells = highlighter.line(content)
            front = line[: len(line) - len(content)]
            self._done[i] = [*split(front), *cells] if line.endswith(content) else split(line)
        for i in range(start + 1 + len(code), end):
            self._done[i] = split(self._lines[i], DIM)

    def _table(self, first: int) -> None:
        start, end = self._tokens[first].map or (0, 0)
        for i in range(start, end):
            self._done[i] = split(self._lines[i])
        if self._tokens[first].level:
            return  # in a list or a quotation
        rows: list[list[tuple[str, list[Cell]]]] = []
        for token, inner in zip(self._tokens[first:], self._tokens[first + 1 :], strict=False):
            if token.type == "table_close":
                break
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                head = BOLD if token.type == "th_open" else ""
                lines = _Inline(inner.children or [], head).lines()
                if lines is None or len(lines) != 1:
                    lines = [split(inner.content)]
                rows[-1].append((str((token.attrs or {}).get("style", "")), lines[0]))
        n_cells = [len(line.strip().strip("|").split("|")) for line in self._lines[start:end]]
        if len(rows) != end - start - 1 or any(n > len(rows[0]) for n in n_cells):
            return  # cells too many would be left out
        widths = [max(_width(row[c][1]) for row in rows) for c in range(len(rows[0]))]
        if sum(widths) + 3 * (len(widths) - 1) > self._columns:
            return
        bar = split(f" {QUOTE} ", DIM)
        rendered = []
        for row in rows:
            cells: list[Cell] = []
            for c, (align, content) in enumerate(row):
                cells += [*(bar if c else ()), *_aligned(content, widths[c], align)]
            rendered.append(cells)
        rule = split(
            f"{RULE}{CROSS}{RULE}".join(RULE * width for width in widths),
            DIM,
        )
        for i, cells in zip(range(start, end), [rendered[0], rule, *rendered[1:]], strict=True):
            self._done[i] = cells


def _width(cells: Sequence[Cell]) -> int:
    return flow(cells, 10**6)[-1].width


def _aligned(cells: Sequence[Cell], width: int, align: str) -> list[Cell]:
    n = width - _width(cells)
    left = n if "right" in align else n // 2 if "center" in align else 0
    return [*split(" " * left), *cells, *split(" " * (n - left))]


class _Inline:
    """The parts of one paragraph, heading or table cell.

    Args:
        tokens: children of an inline token.
        style: of all of it.
    """

    _MARKS: ClassVar = {"strong": BOLD, "em": ITALIC, "s": STRUCK, "link": UNDERLINE}

    def __init__(self, tokens: Sequence[Token], style: str) -> None:
        self._tokens = tokens
        self._styles = [style] if style else []
        self._lines: list[list[Cell]] = [[]]

    def lines(self) -> list[list[Cell]] | None:
        """Cells of each line; None where something is better left as it was written."""
        literal = self._literal_marks()
        links: list[tuple[str, int]] = []
        for i, token in enumerate(self._tokens):
            kind, _, end = token.type.rpartition("_")
            if token.type in ("softbreak", "hardbreak"):
                self._lines.append([])
            elif token.type == "text":
                self._add(token.content)
            elif token.type == "text_special":  # most other escapes are formulas
                self._add(token.content if token.content in _ESCAPED else token.markup)
            elif token.type == "code_inline":
                self._add(token.content, CODE)
            elif kind in self._MARKS and i in literal:
                self._add(token.markup)
            elif kind == "link" and end == "open":
                attributes = token.attrs or {}
                if "title" in attributes:
                    return None
                links.append((str(attributes.get("href", "")), i))
                self._styles.append(UNDERLINE)
            elif kind in self._MARKS and end == "open":
                self._styles.append(self._MARKS[kind])
            elif kind in self._MARKS:
                self._styles.pop()
                if kind == "link":
                    href, start = links.pop()
                    text = "".join(t.content for t in self._tokens[start:i])
                    if href and href != text:
                        self._add(f" ({href})", DIM)
            else:  # an image, or what a later version of the parser may yield
                return None
        return self._lines

    def _add(self, text: str, style: str = "") -> None:
        styles = dict.fromkeys([*self._styles, *([style] if style else [])])
        self._lines[-1] += split(text.replace("\n", " "), ";".join(styles))

    def _literal_marks(self) -> set[int]:
        # Inside a word asterisks are more likely to be multiplication: they stay.
        found: set[int] = set()
        opened: list[int] = []
        for i, token in enumerate(self._tokens):
            if token.type in ("em_open", "strong_open"):
                opened.append(i)
            elif token.type in ("em_close", "strong_close"):
                start = opened.pop()
                before = self._tokens[start - 1].content[-1:] if start else ""
                after = self._tokens[i + 1].content[:1] if i + 1 < len(self._tokens) else ""
                if before.isalnum() or after.isalnum():
                    found |= {start, i}
        return found
