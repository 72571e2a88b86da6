"""An answer as it grows: tokens, final text, who wrote what, counts and times."""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

from parse_local.channels import Parser, Run, Shown, show
from parse_local.events import Channel, FinishReason, Round, Source, Span, Text, TokenLogprob
from parse_local.llama.logprobs import LogprobReader
from parse_local.tool_calls import CallScanner


class TextStream:
    """Bytes of tokens → text that is final.

    Holds back an unfinished UTF-8 character and whatever may still turn out to
    be the beginning of a stop string; nothing else.

    Args:
        stops: strings that end the text; they are not part of it.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stops = [s for s in stops if s]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def in_character(self) -> bool:
        """Whether the bytes so far end inside a UTF-8 character."""
        return bool(self._decoder.getstate()[0])

    @property
    def n_held(self) -> int:
        """Whole characters that are held back."""
        return len(self._held)

    def push(self, data: bytes) -> str:
        """Take the bytes of a token, return the text that became final."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """Nothing follows: return what was held back."""
        text = self._release(self._decoder.decode(b"", final=True))
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [(i + len(s), i) for s in self._stops if (i := text.find(s)) >= 0]
        if found:
            # The stop string that is complete first, however the text was cut into tokens.
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        n_held = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), n_held, -1):
                if text.endswith(stop[:n]):
                    n_held = n
                    break
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]


@dataclass
class Answer:
    """The growing answer of one call.

    Args:
        prompt: prompt tokens in the vocabulary of the model that writes the final text.
        max_tokens: most answer tokens.
        stops: stop strings; they end the answer, not what is thought before it.
        parser: tells reasoning from the answer; begins behind the prompt.
        controls: markers that are control tokens, by token.
        calls: tells calls of tools from the answer's text.
        call_controls: markers of calls that are control tokens.
        reader: reads log-probabilities, None where nobody asked.
    """

    prompt: list[int]
    max_tokens: int
    stops: tuple[str, ...] = ()
    parser: Parser = field(default_factory=Parser)
    controls: Mapping[int, bytes] = field(default_factory=dict)
    calls: CallScanner = field(default_factory=CallScanner)
    call_controls: Mapping[int, bytes] = field(default_factory=dict)
    reader: LogprobReader | None = None
    tokens: list[int] = field(default_factory=list)
    data: bytes = b""
    finish_reason: FinishReason | None = None
    rounds: list[Round] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    n_drafted: int = 0
    n_accept: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    first_text: float | None = None

    def __post_init__(self) -> None:
        self.stream = TextStream(self.stops)
        """The answer's; reasoning has one without stop strings."""
        self._streams: dict[Channel, TextStream] = {
            "answer": self.stream,
            "reasoning": TextStream(),
        }
        self._runs: list[tuple[Channel, bytearray]] = []
        self._sequence = self.prompt + self.tokens
        self._sources: list[Source] = []  # who wrote each character that is held back
        self._last_source: Source = "target"
        self._n_shown = 0  # characters
        self._reading: list[TokenLogprob] = []  # tokens that have added no character yet
        self._read: deque[tuple[int, TokenLogprob]] = deque()  # where they begin, not yet shown

    @property
    def done(self) -> bool:
        """Whether nothing may be appended any more."""
        return self.finish_reason is not None

    @property
    def n_left(self) -> int:
        """Tokens that may still be appended."""
        return self.max_tokens - len(self.tokens)

    @property
    def runs(self) -> list[Run]:
        """Bytes so far by channel, in order, what a stop string may hold back too.

        Without markers and what may become one.
        """
        return [(channel, bytes(data)) for channel, data in self._runs]

    @property
    def text(self) -> str:
        """All of `runs` without an unfinished character; a blank line between channels."""
        decoder = codecs.getincrementaldecoder("utf-8")
        return "\n\n".join(decoder("replace").decode(data) for _, data in self._runs)

    def seen(self, tokens: Sequence[int], pieces: Sequence[bytes]) -> Shown:
        """What may be seen of tokens that follow the answer so far."""
        controls = (self.controls.get(t, b"") for t in tokens)
        return show(self.parser, list(zip(pieces, controls, strict=True)))

    @property
    def in_half(self) -> bool:
        """Whether the tokens so far end inside a character or a marker."""
        return self.parser.in_marker or any(s.in_character for s in self._streams.values())

    def joined(self, channel: Channel) -> str:
        """What is final of one channel."""
        return "".join(span.text for span in self.spans if span.channel == channel)

    @property
    def age(self) -> float:
        """Seconds since the call began."""
        return time.perf_counter() - self.started

    @property
    def sequence(self) -> list[int]:
        """Prompt and answer, as the KV cache holds them.

        The same list each time, so that a long context is not copied for every token:
        it grows with the answer, and only the answer may change it.
        """
        return self._sequence

    def append(
        self,
        tokens: Sequence[int],
        pieces: Sequence[bytes],
        source: Source,
        read: Sequence[TokenLogprob] = (),
    ) -> Iterator[Text]:
        """Add final tokens; stops by itself at a stop string or at `max_tokens`.

        Args:
            tokens: of the model that writes the final text.
            pieces: their bytes.
            source: who wrote them.
            read: what was read of the first ones, or of all.
        """
        found: list[tuple[Channel, str]] = []
        for i, (token, piece) in enumerate(zip(tokens, pieces, strict=True)):
            if self.done:
                break
            self._last_source = source
            self.tokens.append(token)
            self._sequence.append(token)
            self.n_accept += source == "draft"
            self.data += piece
            before = self._n_known(found)
            data = piece or self.call_controls.get(token, b"")
            found += self._take(self.parser.push(data, self.controls.get(token, b"")))
            if self.reader is not None:
                self._reading.append(read[i] if i < len(read) else self.reader.unread(token))
                self._place(before, self._n_known(found))
            if self.stream.stopped:
                self.finish_reason = "stop"
            elif self.n_left <= 0:
                self.finish_reason = "length"
        yield from self._emit(found)

    def close(self, reason: FinishReason) -> Iterator[Text]:
        """End the answer (an earlier reason stays) and release held text."""
        self.finish_reason = self.finish_reason or reason
        before = self._n_known([])
        found = self._take(self.parser.finish())
        found.append(("answer", self.stream.push(self.calls.finish())))
        if self._runs:
            channel = self._runs[-1][0]
            found.append((channel, self._streams[channel].finish()))
        if self.calls.calls and self.finish_reason == "stop":
            self.finish_reason = "tool_calls"
        self._place(before, self._n_known(found))
        yield from self._emit(found)

    def _n_known(self, found: Sequence[tuple[Channel, str]]) -> int:
        # Characters that are shown, about to be, or held back as the possible beginning of a stop.
        n_held = sum(stream.n_held for stream in self._streams.values())
        return self._n_shown + sum(len(text) for _, text in found) + n_held

    def _place(self, before: int, behind: int) -> None:
        # Tokens that together have added characters begin with the first of these; those that
        # have come to nothing were a marker or a call.
        if behind > before:
            self._read += [(before, read) for read in self._reading]
        elif self.in_half or self.calls.holding:
            return
        self._reading.clear()

    def _take(self, runs: Sequence[Run]) -> list[tuple[Channel, str]]:
        # What becomes final. Nothing is held back in one channel once the other goes on.
        found: list[tuple[Channel, str]] = []
        for channel, data in runs:
            if not self._runs or self._runs[-1][0] != channel:
                if self._runs:
                    before = self._runs[-1][0]
                    found.append((before, self._streams[before].finish()))
                self._runs.append((channel, bytearray()))
            self._runs[-1][1].extend(data)
            data = self.calls.push(data) if channel == "answer" else data
            found.append((channel, self._streams[channel].push(data)))
        return found

    def _emit(self, found: Sequence[tuple[Channel, str]]) -> Iterator[Text]:
        # What was held back may be another model's than what releases it.
        characters = [(character, channel) for channel, text in found for character in text]
        n_held = sum(stream.n_held for stream in self._streams.values())
        n_new = len(characters) + n_held - len(self._sources)
        sources = self._sources + [self._last_source] * n_new
        self._sources = sources[len(characters) :]
        if characters and self.first_text is None:
            self.first_text = self.age
        told = [(source, *c) for source, c in zip(sources, characters, strict=False)]
        for (source, channel), run in groupby(told, key=lambda c: (c[0], c[2])):
            part = "".join(character for _, character, _ in run)
            last = self.spans[-1] if self.spans else None
            if last is not None and (last.source, last.channel) == (source, channel):
                self.spans[-1] = Span(last.text + part, source, channel)
            else:
                self.spans.append(Span(part, source, channel))
            self._n_shown += len(part)
            yield Text(part, source, channel, self._shown_tokens())

    def _shown_tokens(self) -> tuple[TokenLogprob, ...]:
        shown = []
        while self._read and self._read[0][0] < self._n_shown:
            shown.append(self._read.popleft()[1])
        return tuple(shown)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the block's wall-clock time to a phase of `Timings`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started
