"""Is a text a grammar that llama.cpp can work with? GBNF, read far enough to say why not.

llama.cpp prints what is wrong with a grammar to the process's stderr, and some grammars it
takes and then never comes back from: it looks for left recursion without following rules that
are empty by way of others, and nests as deep as the text does. So it is asked last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from parse_local.errors import GrammarError

ROOT = "root"
MAX_CHARS = 200_000
MAX_RULES = 3000
"""llama.cpp calls itself for each rule that begins with another one; threads of macOS have a
stack of 512 KiB, which some 4,000 such calls fill."""
MAX_NESTING = 100
"""Parentheses in parentheses; llama.cpp's parser calls itself for each."""
MAX_EMPTY = 100
"""Ways in which a rule may be empty; llama.cpp follows each of them for every token."""
MAX_REPEAT = 2000
"""MAX_REPETITION_THRESHOLD of llama.cpp."""

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_DEFINES = re.compile(r"::=")
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
_LITERAL = re.compile(rf'"((?:[^"\\]|{_ESCAPE})*)"')
_CLASS = re.compile(rf"\[\^?((?:[^\]\\]|{_ESCAPE})*)\]")
_TOKEN = re.compile(r"!?<[^>]*>")
_CLOSE = re.compile(r"\)")
_REPEAT = re.compile(r"\{[ \t]*([0-9]+)[ \t]*(,[ \t]*([0-9]*))?[ \t]*\}")


@dataclass(frozen=True)
class _Group:
    # Alternatives, each a sequence. A name is a rule, None something that is not empty.
    alternatives: list[list[str | _Group | None]]
    times: int = 1

    def is_empty(self, empty: set[str]) -> bool:
        """Whether it may be, where the rules in `empty` may."""
        return any(all(_may_be_empty(i, empty) for i in a) for a in self.alternatives)

    def n_empty(self, ways: dict[str, int]) -> int:
        """In how many ways, where a rule is in so many; no more than one over `MAX_EMPTY`."""
        n = 0
        for alternative in self.alternatives:
            here = 1
            for item in alternative:
                inside = item.n_empty(ways) if isinstance(item, _Group) else ways.get(item or "", 0)
                here = min(here * inside, MAX_EMPTY + 1)
            n += here
        return int(min(min(n, MAX_EMPTY + 1) ** self.times, MAX_EMPTY + 1))

    def names(self) -> Iterator[str]:
        """Rules that are mentioned in it."""
        for alternative in self.alternatives:
            for item in alternative:
                if isinstance(item, str):
                    yield item
                elif item is not None:
                    yield from item.names()

    def begins_with(self, empty: set[str]) -> Iterator[str]:
        """Rules that it may begin with."""
        for alternative in self.alternatives:
            for item in alternative:
                if isinstance(item, str):
                    yield item
                elif item is not None:
                    yield from item.begins_with(empty)
                if not _may_be_empty(item, empty):
                    break


_NOTHING = _Group([[]])


def _may_be_empty(item: str | _Group | None, empty: set[str]) -> bool:
    return item.is_empty(empty) if isinstance(item, _Group) else item in empty


def check_grammar(text: str) -> None:
    """Raise unless llama.cpp can constrain an answer with this grammar.

    Raises:
        GrammarError: what is wrong, and in which line.
    """
    if not text.strip() or "\0" in text or not _is_unicode(text):
        raise GrammarError(
            "The grammar is empty or no text; give llama.cpp's GBNF with a rule `root ::= …`."
        )
    if len(text) > MAX_CHARS:
        raise GrammarError(f"The grammar has {len(text):,} characters; {MAX_CHARS:,} are the most.")
    try:
        _Checker(text).check()
    except RecursionError:  # "a"???…
        raise GrammarError("The grammar is nested too deeply; simplify it.") from None


def _empty_rules(rules: dict[str, _Group]) -> set[str]:
    # Looked at again only where a rule that is mentioned has turned out to be among them.
    mentions: dict[str, list[str]] = {name: [] for name in rules}
    for name, rule in rules.items():
        for mentioned in set(rule.names()):
            mentions[mentioned].append(name)
    empty: set[str] = set()
    open_ = list(rules)
    while open_:
        name = open_.pop()
        if name not in empty and rules[name].is_empty(empty):
            empty.add(name)
            open_ += mentions[name]
    return empty


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


class _Checker:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._used: dict[str, int] = {}  # name of a rule -> where it is used first
        self._loops: list[tuple[str | _Group | None, int]] = []  # repeated without an end

    def check(self) -> None:
        rules: dict[str, _Group] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._expect(_NAME, "the name of a rule (letters, digits and -)").group()
            self._skip()
            self._expect(_DEFINES, "::=")
            self._skip(lines=True)
            rules[name] = self._alternatives(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"{self._text[self._at]!r} makes no sense here")
            self._skip(lines=True)
        for name, place in self._used.items():
            if name not in rules:
                raise self._error(f"there is no rule `{name}`", place)
        if len(rules) > MAX_RULES:
            raise GrammarError(
                f"The grammar has {len(rules):,} rules; {MAX_RULES:,} are the most. Simplify it."
            )
        if ROOT not in rules:
            raise GrammarError(f"The grammar has no rule `{ROOT}`, where every answer begins.")
        self._check_recursion(rules)

    def _check_recursion(self, rules: dict[str, _Group]) -> None:
        empty = _empty_rules(rules)
        for item, place in self._loops:
            if _may_be_empty(item, empty):
                raise self._error("what may be empty is repeated without an end", place)
        begins = {name: set(rule.begins_with(empty)) for name, rule in rules.items()}
        try:
            order = list(TopologicalSorter(begins).static_order())
        except CycleError as error:
            name = error.args[1][0]
            raise GrammarError(
                f"Rule `{name}` of the grammar begins with itself, which never ends; put the "
                f"part that differs first, as in `{name} ::= item ({name})?`."
            ) from None
        ways: dict[str, int] = {}
        for name in order:
            ways[name] = rules[name].n_empty(ways)
            if ways[name] > MAX_EMPTY:
                raise GrammarError(
                    f"Rule `{name}` of the grammar may be empty in more than {MAX_EMPTY} ways; "
                    "leave one of them."
                )

    def _alternatives(self, depth: int) -> _Group:
        if depth > MAX_NESTING:
            raise self._error(f"more than {MAX_NESTING} parentheses are open")
        found = [self._sequence(depth)]
        while self._text[self._at : self._at + 1] == "|":
            self._at += 1
            self._skip(lines=True)
            found.append(self._sequence(depth))
        return _Group(found)

    def _sequence(self, depth: int) -> list[str | _Group | None]:
        items: list[str | _Group | None] = []
        while self._at < len(self._text):
            sign = self._text[self._at]
            if sign in "*+?{":
                if not items:
                    raise self._error(f"there is nothing in front of {sign!r} to repeat")
                items[-1] = self._repeated(items[-1], sign)
            elif sign == "(":
                self._at += 1
                self._skip(lines=True)
                items.append(self._alternatives(depth + 1))
                self._expect(_CLOSE, "a closing parenthesis")
            elif sign == '"':
                found = self._expect(_LITERAL, 'a text in quotes, with \\ before \\ and "')
                items.append(None if found[1] else _NOTHING)
            elif sign == "[":
                found = self._expect(_CLASS, "characters in brackets, with \\ before \\ and ]")
                items.append(None if found[1] else _NOTHING)
            elif sign in "<!":
                self._expect(_TOKEN, "a token in angle brackets")
                items.append(None)
            elif sign == ".":
                self._at += 1
                items.append(None)
            elif found_name := _NAME.match(self._text, self._at):
                self._used.setdefault(found_name.group(), self._at)
                items.append(found_name.group())
                self._at = found_name.end()
            else:
                break
            self._skip(lines=depth > 0)
        return items

    def _repeated(self, item: str | _Group | None, sign: str) -> str | _Group | None:
        place = self._at
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, None))
        if sign == "{":
            found = self._expect(_REPEAT, "{n}, {n,} or {n,m}")
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            if most is not None and most < least:
                raise self._error(f"{found[0]} asks for fewer than its least", place)
            if max(least, most or 0) > MAX_REPEAT:
                raise self._error(f"{found[0]} repeats more often than {MAX_REPEAT} times", place)
        else:
            self._at += 1
        if most is None:
            self._loops.append((item, place))
        times = max(least, most or 0)
        if times > 1:
            item = _Group([[item]], times)
        return _Group([[item], []]) if least == 0 else item

    def _skip(self, *, lines: bool = False) -> None:
        found = (_SPACE_AND_LINES if lines else _SPACE).match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return found

    def _error(self, reason: str, place: int | None = None) -> GrammarError:
        place = self._at if place is None else place
        line = self._text.count("\n", 0, place) + 1
        return GrammarError(
            f"The grammar is wrong in line {line}: {reason}. It has to be llama.cpp's GBNF."
        )
