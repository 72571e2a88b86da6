"""Calls of functions in what a model writes, told from its text as the bytes arrive (pure).

Every family writes calls in its own way (`call_formats`). From an opening marker on nothing is
text until it is clear what it is: a call that is complete and names a function, or text after all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parse_local.call_formats import PART_OF_CALL, CallFormat
from parse_local.channels import overlap
from parse_local.events import ToolCall

Tool = dict[str, Any]


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
        text = self._opened.decode() if self._opened in PART_OF_CALL else ""
        text += body.decode("utf-8", "replace")
        if self._opened.startswith(b"```"):
            text = text.rstrip().removesuffix("```")
        found = self._form.read(text, self._parameters)
        known = bool(found) and all(call.name in self._parameters for call in found or ())
        if known:
            self.calls += found or ()
        return known


_BEGINNINGS = tuple(
    start + key
    for start in (b"{", b"[{")
    for key in (b'"name":"', b'"type":"function"', b'"function":')
)


def _may_be_call(body: bytes, *, opened: bytes) -> bool:
    """Whether an answer of which this follows the opening may be a call as a whole."""
    text = (opened if opened in PART_OF_CALL else b"") + body
    dense = b"".join(text.split())
    return any(b.startswith(dense[: len(b)]) for b in _BEGINNINGS)
