"""Calls of functions in what a model writes, told from its text as the bytes arrive (pure).

Every family writes calls in its own way, and its chat template shows which. From an opening
marker on nothing is text until it is clear what it is: a call that is complete and names a
function, or text after all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parse_local.channels import overlap
from parse_local.events import ToolCall

Tool = dict[str, Any]


@dataclass(frozen=True)
class CallFormat:
    """How a family of models writes calls.

    Args:
        hint: what the chat templates of these models contain.
        openings: markers that begin calls.
        closing: what ends one; "" for the end of the answer.
        read: what stands between the two → calls, None where it is none.
        whole: what a call that is the whole answer begins with. Some models leave out markers.
        inner: further markers.
        written: one call, with `{call}` for an object of name and arguments, or with places for
            `{name}` and `{arguments}`.
        arguments: what the object calls its arguments.
    """

    hint: str
    openings: tuple[str, ...]
    closing: str
    read: Callable[[str, Mapping[str, Any]], list[ToolCall] | None]
    whole: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    written: str = "{call}"
    arguments: str = "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be control tokens of their own."""
        return tuple(m for m in (*self.openings, self.closing, *self.inner) if m)


def find_format(template: str) -> CallFormat | None:
    """The format that a chat template asks for; None where it knows no calls."""
    return next((f for f in FORMATS if f.hint in template), None)


class CallScanner:
    """Takes the bytes of an answer and gives back those that are text.

    Args:
        form: of the calls; None takes everything for text.
        tools: what may be called. Other names are text, not calls.
    """

    def __init__(self, form: CallFormat | None = None, tools: Sequence[Tool] = ()) -> None:
        self.calls: list[ToolCall] = []
        self._form = form
        self._parameters = {
            t["function"]["name"]: t["function"].get("parameters") or {} for t in tools
        }
        self._openings = [o.encode() for o in form.openings] if form else []
        self._whole = [o.encode() for o in form.whole] if form else []
        self._closing = form.closing.encode() if form else b""
        self._held = b""
        self._opened = b""  # the marker that has begun a call
        self._gap = b""  # white space in front of it, which goes with it
        self._begun = False  # the answer has text already

    @property
    def holding(self) -> bool:
        """Whether something is held back."""
        return bool(self._held or self._opened)

    def push(self, data: bytes) -> bytes:
        """Take bytes of the answer; returns what is certainly text."""
        if self._form is None:
            return data
        self._held += data
        text = b""
        while (found := self._step()) is not None:
            text += found
        return text

    def finish(self) -> bytes:
        """Nothing follows: what is held back is a call without its end, or text."""
        rest = self._gap + self._opened + self._held
        if self._opened and self._call(self._held):
            rest = b""
        self._gap = b""
        self._opened, self._held = b"", b""
        return self._text(rest, last=True)

    def _step(self) -> bytes | None:
        # What has become text; None where that takes more bytes.
        if self._opened:
            return self._within()
        places = [(i, o) for o in self._openings if (i := self._held.find(o)) >= 0]
        blank = len(self._held) - len(self._held.lstrip())
        if not self._begun:
            places += [(blank, o) for o in self._whole if self._held.startswith(o, blank)]
        if places:
            at, self._opened = min(places)
            text, self._held = self._held[:at], self._held[at + len(self._opened) :]
            self._gap = text[len(text.rstrip()) :]
            return self._text(text.rstrip())
        text = self._held[: len(self._held) - self._n_open()]
        if not text:
            return None
        self._held = self._held[len(text) :]
        return self._text(text)

    def _within(self) -> bytes | None:
        # The same behind an opening.
        whole = self._opened in self._whole
        if whole and _may_be_call(self._held, opened=self._opened):
            return None
        at = len(self._held) if whole else self._held.find(self._closing)
        if at < 0 or not (whole or self._closing):
            return None
        closing = b"" if whole else self._closing
        body, rest = self._held[:at], self._held[at + len(closing) :]
        text = self._gap + self._opened + body + closing
        is_call = not whole and self._call(body)
        self._gap, self._opened, self._held = b"", b"", rest
        return self._text(b"" if is_call else text)

    def _n_open(self) -> int:
        # Bytes at the end that may begin an opening marker, and white space before it.
        held = self._held
        if not self._begun and any(o.startswith(held.strip()) for o in self._whole):
            return len(held)
        longest = max((overlap(held, o) for o in self._openings), default=0)
        before = held[: len(held) - longest]
        return longest + len(before) - len(before.rstrip())

    def _text(self, text: bytes, *, last: bool = False) -> bytes:
        if self.calls and not text.strip():  # between calls, and behind them
            return b""
        self._begun = self._begun or bool(text.strip())
        return text

    def _call(self, body: bytes) -> bool:
        assert self._form is not None
        text = self._opened.decode() if self._opened in _PART_OF_CALL else ""
        text += body.decode("utf-8", "replace")
        if self._opened.startswith(b"```"):
            text = text.rstrip().removesuffix("```")
        found = self._form.read(text, self._parameters)
        known = bool(found) and all(call.name in self._parameters for call in found or ())
        if known:
            self.calls += found or ()
        return known


# JSON


def _values(text: str) -> Iterator[Any]:
    # JSON values that follow one another, with or without a separator.
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at] in " \t\r\n;,":
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield value


def _read_json(text: str, _: Mapping[str, Any]) -> list[ToolCall] | None:
    """One or several objects with a name and its arguments, or a list of them."""
    try:
        values = list(_values(text))
    except (ValueError, RecursionError):
        return None
    objects = [o for v in values for o in (v if isinstance(v, list) else [v])]
    calls = [_of_object(o) for o in objects]
    return None if not calls or None in calls else [c for c in calls if c is not None]


def _of_object(found: Any) -> ToolCall | None:
    if not isinstance(found, dict):
        return None
    if isinstance(found.get("function"), dict):  # as OpenAI's API has it
        found = found["function"]
    name = found.get("name") or found.get("function")
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):  # some models write JSON within JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return _written(name, arguments)


def _written(name: str, arguments: dict[str, Any]) -> ToolCall | None:
    # None where JSON cannot say them: Python reads NaN, and 1e999 as infinity.
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as an escape
        text = json.dumps(arguments)
    except (ValueError, RecursionError):
        return None
    return ToolCall(name, text)


def _named(name: str, arguments: str) -> ToolCall | None:
    return _of_object({"name": name, "arguments": arguments})


# other notations

_TAGGED = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_MISTRAL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?\[ARGS\]")


def _read_tagged(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """JSON; or `<function=name>` around JSON, or around a tag for each parameter."""
    if "<function=" not in text:
        return _read_json(text, parameters)
    calls = []
    for name, body in _TAGGED.findall(text):
        if body.strip().startswith("{"):
            calls.append(_named(name, body))
        else:
            types = parameters.get(name, {}).get("properties")
            types = types if isinstance(types, dict) else {}  # clients send anything
            arguments = {k: _value(v, types.get(k)) for k, v in _PARAMETER.findall(body)}
            calls.append(_written(name, arguments))
    return None if None in calls else [c for c in calls if c is not None]


def _value(text: str, schema: Any) -> Any:
    # A parameter is a text unless its schema says otherwise.
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON


def _read_mistral(text: str, parameters: Mapping[str, Any]) -> list[ToolCall] | None:
    """A list of objects; or names, each with `[ARGS]` and its arguments."""
    parts = [part for part in text.split("[TOOL_CALLS]") if part.strip()]
    calls: list[ToolCall] = []
    for part in parts:
        found = _MISTRAL.match(part)
        if found is None:
            more = _read_json(part, parameters)
        else:
            call = _named(found[1], part[found.end() :])
            more = None if call is None else [call]
        if more is None:
            return None
        calls += more
    return calls


_PART_OF_CALL = (b"{", b"<function=")
# Openings that are no mere markers.

FORMATS = (
    CallFormat(
        "[ARGS]",
        ("[TOOL_CALLS]",),
        "",
        _read_mistral,
        inner=("[ARGS]", "[CALL_ID]"),
        written="[TOOL_CALLS]{name}[ARGS]{arguments}",
    ),
    CallFormat(
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]",),
        "",
        _read_mistral,
        inner=("[ARGS]", "[CALL_ID]"),
        written="[TOOL_CALLS][{call}]",
    ),
    CallFormat(
        "<tool_call>",
        ("<tool_call>",),
        "</tool_call>",
        _read_tagged,
        whole=("{", "```json"),
        written="<tool_call>\n{call}\n</tool_call>",
    ),
    CallFormat(
        "<|tool_call|>", ("<|tool_call|>",), "", _read_json, written="<|tool_call|>[{call}]"
    ),
    CallFormat("functools[", ("functools",), "", _read_json, written="functools[{call}]"),
    CallFormat(
        "<function=",
        ("<function=",),
        "</function>",
        _read_tagged,
        written="<function={name}>{arguments}</function>",
    ),
    CallFormat(
        "<|python_tag|>",
        ("<|python_tag|>",),
        "",
        _read_json,
        whole=("{",),
        arguments="parameters",
    ),
    CallFormat('"parameters":', (), "", _read_json, whole=("{",), arguments="parameters"),
)
"""Mistral, later and earlier; Hermes, Qwen and many others, Qwen3-Coder's tags too; Granite and
Phi-4-mini; Firefunction; functionary for Llama 3.1; Llama 3.1 and later, whose calls are a whole
answer."""

_BEGINNINGS = tuple(
    start + key
    for start in (b"{", b"[{")
    for key in (b'"name":"', b'"type":"function"', b'"function":')
)


def _may_be_call(body: bytes, *, opened: bytes) -> bool:
    """Whether an answer of which this follows the opening may be a call as a whole."""
    text = (opened if opened in _PART_OF_CALL else b"") + body
    dense = b"".join(text.split())
    return any(b.startswith(dense[: len(b)]) for b in _BEGINNINGS)
