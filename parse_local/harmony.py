"""The message format of gpt-oss, in which every message names its channel (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parse_local.channels import Marks, Parser, Run, Written, overlap
from parse_local.events import Channel

CALL_OPENING, CALL_CLOSING = "<functions.", "</functions>"
"""What `Parser.tells_calls` puts around a message to a function, with `>` behind its name."""
_TO_FUNCTION = re.compile(rb"\bto=functions\.([^\s<]+)")


@dataclass(frozen=True)
class Harmony(Marks):
    """Messages, each with a header that names its channel, as gpt-oss writes them."""

    markers: tuple[str, ...] = (
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    )
    closing_text: str = ""
    """The end of the turn ends a message of any channel."""

    def fits(self, template: str) -> bool:
        """Whether a template's source has these marks."""
        return "<|channel|>" in template and "<|message|>" in template

    def parser(self, prompt: str, *, control_only: bool = False) -> Parser:
        """See `Marks`."""
        parser = HarmonyParser(self, control_only=False)
        # From the beginning of the message that the prompt leaves open.
        parser.push(prompt[max(prompt.rfind("<|start|>"), 0) :].encode())
        parser.begin(control_only=control_only)
        return parser

    def writes(self, parser: Parser, runs: Sequence[tuple[Channel, str]]) -> Iterator[Written]:
        """See `Marks`."""
        last: Channel | None = None if parser.undecided else parser.channel
        for channel, text in runs:
            if channel != last:
                name = "analysis" if channel == "reasoning" else "final"
                between = "" if last is None else "<|end|><|start|>assistant"
                yield f"{between}<|channel|>{name}<|message|>", True
            last = channel
            yield text, False


class HarmonyParser(Parser):
    """Of `Harmony`. What stands where a header should is the answer of a model that has none.

    Args:
        marks: the markers.
        control_only: their text means nothing.
    """

    MOST = 256  # bytes of a header

    def __init__(self, marks: Harmony, *, control_only: bool) -> None:
        self._markers = tuple(m.encode() for m in marks.markers)
        self.marks = True
        self._control_only = control_only
        self._held = b""
        self._header = b"assistant"
        self._in_header = False  # behind its first token
        self._in_call = False
        self.undecided = True
        self.channel = "answer"

    def begin(self, *, control_only: bool) -> None:
        """The prompt is read, the answer begins."""
        self._control_only = control_only
        self._held = b""
        self._in_header = self._in_call = False
        self.n_closed = 0

    @property
    def in_marker(self) -> bool:
        """See `Parser`."""
        return bool(self._held) or self._in_header

    def push(self, data: bytes, control: bytes = b"") -> list[Run]:
        """See `Parser`."""
        if self._control_only:
            return [*self._text(data), *(self._marker(control) if control else [])]
        runs: list[Run] = []
        self._held += data or control
        while True:
            places = [(i, m) for m in self._markers if (i := self._held.find(m)) >= 0]
            if not places:
                break
            at, marker = min(places)
            found, self._held = self._held[:at], self._held[at + len(marker) :]
            runs += [*self._text(found), *self._marker(marker)]
        at = len(self._held) - max(overlap(self._held, m) for m in self._markers)
        found, self._held = self._held[:at], self._held[at:]
        return runs + self._text(found)

    def finish(self) -> list[Run]:
        """See `Parser`."""
        held, self._held = self._held, b""
        return self._text(held)

    def _text(self, data: bytes) -> list[Run]:
        if not data:
            return []
        if not self.undecided:
            return [(self.channel, data)]
        self._header, self._in_header = self._header + data, True
        if _may_be_header(self._header) and len(self._header) <= self.MOST:
            return []
        text = self._header.partition(b"<|channel|>")[0].removeprefix(b"assistant")
        self._header, self._in_header = b"", False
        self.undecided, self.channel = False, "answer"
        return [("answer", text)] if text else []

    def _marker(self, marker: bytes) -> list[Run]:
        if marker == b"<|message|>":
            return self._open()
        if marker == b"<|constrain|>":
            return []
        self.n_closed += not self.undecided
        kept = self._header if self.undecided else b""
        self._header = kept + marker if marker == b"<|channel|>" else b""
        self.undecided = True
        self._in_header = marker in (b"<|start|>", b"<|channel|>")
        was_call, self._in_call = self._in_call, False
        return [("answer", CALL_CLOSING.encode())] if was_call else []

    def _open(self) -> list[Run]:
        # The header is complete.
        call = _TO_FUNCTION.search(self._header) if self.tells_calls else None
        _, named, channel = self._header.partition(b"<|channel|>")
        thinks = bool(named) and channel.strip().startswith(b"analysis") and call is None
        self.channel, self.undecided = ("reasoning" if thinks else "answer"), False
        self._in_header, self._in_call = False, call is not None
        return [] if call is None else [("answer", CALL_OPENING.encode() + call[1] + b">")]


def _may_be_header(header: bytes) -> bool:
    role, named, _ = header.partition(b"<|channel|>")
    if named:
        return b"\n" not in header
    return (
        b"assistant".startswith(role)
        or re.match(rb"assistant(\s*$|\s+t?$|\s+to)", role) is not None
    )
