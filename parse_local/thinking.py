"""How models mark what they think before they answer (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parse_local.channels import Marks, Parser, Run, Written, overlap
from parse_local.events import Channel
from parse_local.harmony import Harmony


@dataclass(frozen=True)
class Tags(Marks):
    """A block at the beginning of an answer, between an opening and a closing marker.

    Args:
        opening, closing: the markers.
        pad: white space that the model puts inside the markers, and twice behind the closing.
        drops: markers around the answer itself, which are not shown.
        hint: what else a template with these marks contains.
    """

    opening: str
    closing: str
    pad: str = ""
    drops: tuple[str, ...] = ()
    hint: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """Both, and what goes around the answer; of `<|channel>thought` only the token."""
        return (re.sub(r"(?<=>)\w+$", "", self.opening), self.closing, *self.drops)

    @property
    def opening_text(self) -> str:
        """What begins a block of reasoning."""
        return self.opening + self.pad

    @property
    def closing_text(self) -> str:
        """What ends one, up to the answer."""
        return self.pad + self.closing + 2 * self.pad

    @property
    def skipping_text(self) -> str:
        """What ends a block in which nothing was thought."""
        return 2 * self.pad + self.closing + 2 * self.pad

    def fits(self, template: str) -> bool:
        """Whether a template's source has these marks."""
        found = self.opening in template or self.closing in template
        return found and self.hint in template

    def opens(self, prompt: str) -> bool:
        """Whether a prompt ends within a block."""
        return prompt.rstrip().endswith(self.opening)

    def parser(self, prompt: str, *, control_only: bool = False) -> Parser:
        """See `Marks`; the markers' text always counts, where a block may begin or end."""
        skipped = prompt.rstrip().endswith(self.closing)
        return TagParser(self, opened=self.opens(prompt), skipped=skipped)

    def writes(self, parser: Parser, runs: Sequence[tuple[Channel, str]]) -> Iterator[Written]:
        """See `Marks`."""
        inside, padded = parser.channel == "reasoning", False
        for channel, text in runs:
            if channel == "reasoning" and not inside:
                yield self.opening_text, True
            elif channel == "answer" and inside:
                yield self.closing_text[len(self.pad) * padded :], True
            inside, padded = channel == "reasoning", text.endswith(self.pad)
            yield text, False


class TagParser(Parser):
    """Of `Tags`. An opening marker counts in front of the answer only: one that is written
    about, further on, is text; as a control token it counts everywhere.

    Args:
        marks: the markers.
        opened: the prompt has begun a block.
        skipped: the prompt has closed one, so that hardly another will follow.
    """

    def __init__(self, marks: Tags, *, opened: bool, skipped: bool = False) -> None:
        self.marks = True
        self._opening, self._closing = marks.opening.encode(), marks.closing.encode()
        self._token = marks.markers[0].encode()
        self._drops = tuple(d.encode() for d in marks.drops)
        self._held = b""
        self._trims = opened  # white space behind a marker belongs to it
        self.undecided = not opened
        self._skipped = skipped
        self.channel = "reasoning" if opened else "answer"

    @property
    def thinks(self) -> bool:
        """See `Parser`."""
        return self.in_reasoning or (self.undecided and not self._skipped)

    @property
    def in_marker(self) -> bool:
        """See `Parser`."""
        return bool(self._held)

    def push(self, data: bytes, control: bytes = b"") -> list[Run]:
        """See `Parser`."""
        runs: list[Run] = []
        if self.channel == "reasoning" and control != self._closing:
            control = b""
        elif control and self.channel == "answer" and not self.undecided:
            if self._opening.startswith(control):
                runs += self._emit(self._held)
                self._held, self.undecided = b"", True
            elif control == self._closing:
                self._trims = True
                return runs
        self._held += data or control
        while step := self._step():
            found, again = step
            runs += found
            if not again:
                break
        return runs

    def finish(self) -> list[Run]:
        """See `Parser`."""
        held, self._held = self._held, b""
        return self._emit(held)

    def _step(self) -> tuple[list[Run], bool]:
        # What is certain, and whether the state has changed so that the rest is looked at anew.
        if self.channel == "reasoning":
            found, closed = self._until((self._closing,))
            if closed:
                self.channel, self._trims = "answer", True
                self.n_closed += 1
            return found, closed
        if self.undecided:
            return self._begin()
        found, dropped = self._until(self._drops)
        self._trims = self._trims or dropped
        return found, dropped

    def _begin(self) -> tuple[list[Run], bool]:
        text = self._held.lstrip()
        for marker in (self._opening, self._closing):
            if text.startswith(marker):
                self._held, self._trims, self.undecided = text[len(marker) :], True, False
                self.channel = "reasoning" if marker == self._opening else "answer"
                return [], True
            if marker.startswith(text):
                return [], False
        self.undecided = False
        if text.startswith(self._token):  # a block of another kind
            self._held = text[len(self._token) :]
        return [], True

    def _until(self, markers: Sequence[bytes]) -> tuple[list[Run], bool]:
        # Up to the first marker, or to what may become one.
        places = [(i, m) for m in markers if (i := self._held.find(m)) >= 0]
        if places:
            at, marker = min(places)
            found, self._held = self._held[:at], self._held[at + len(marker) :]
            return self._emit(found), True
        n = max((overlap(self._held, m) for m in markers), default=0)
        at = len(self._held) - n
        found, self._held = self._held[:at], self._held[at:]
        return self._emit(found), False

    def _emit(self, data: bytes) -> list[Run]:
        if self._trims:
            data = data.lstrip()
            self._trims = not data
        return [(self.channel, data)] if data else []


TAGS = (
    Tags(
        "<|START_THINKING|>", "<|END_THINKING|>", drops=("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|channel>thought", "<channel|>", pad="\n"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("◁think▷", "◁/think▷"),
    Tags("<thought>", "</thought>", pad="\n"),
    Tags(
        "Here are my reasoning steps:",
        "[BEGIN FINAL RESPONSE]",
        pad="\n",
        drops=("[END FINAL RESPONSE]",),
        hint="[BEGIN FINAL RESPONSE]",
    ),
    Tags("<think>", "</think>", pad="\n", drops=("<answer>", "</answer>"), hint="<answer>"),
    Tags("<think>", "</think>", pad="\n"),
)
"""Command A, Magistral, Seed-OSS, Gemma 4, Apertus, Kimi, EXAONE Deep, Apriel, Hunyuan, and most
others: Qwen3, DeepSeek-R1, GLM, Phi, MiniMax and their relatives."""

_WIDESPREAD = TAGS[-1]


def find_marks(template: str, is_token: Callable[[str], bool]) -> Marks | None:
    """The marks of a model; None for one that does not think.

    Args:
        template: source of its chat template.
        is_token: whether a text is one token of its vocabulary. A template may leave it to
            the model to open a block and to close it.
    """
    for marks in (Harmony(), *TAGS):
        if marks.fits(template):
            return marks
    if is_token(_WIDESPREAD.opening) and is_token(_WIDESPREAD.closing):
        return _WIDESPREAD
    return None


def skip_thinking(prompt: str) -> str:
    """Close a thinking block that the end of a generation prompt opens."""
    for marks in TAGS:
        if marks.opens(prompt):
            return prompt.rstrip() + marks.skipping_text
    return prompt


@dataclass(frozen=True)
class Thinking:
    """A model's marks, and which of its control tokens they are.

    Args:
        marks: None for a model that does not think.
        controls: markers by token.
    """

    marks: Marks | None = None
    controls: Mapping[int, bytes] = field(default_factory=dict, hash=False)

    def parser(self, prompt: str) -> Parser:
        """A parser for what the model writes behind a prompt."""
        if self.marks is None:
            return Parser()
        return self.marks.parser(prompt, control_only=b"<|message|>" in self.controls.values())

    def writes(self, parser: Parser, runs: Sequence[tuple[Channel, str]]) -> Iterator[Written]:
        """What the model would write to say `runs` in a parser's state."""
        if self.marks is None:
            yield from ((text, False) for _, text in runs)
        else:
            yield from self.marks.writes(parser, runs)
