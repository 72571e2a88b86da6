"""The draft: one window of the answer, written by the draft model, in the target's tokens."""

from __future__ import annotations

import codecs
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Protocol

from parse_local.answer import Answer, TextStream
from parse_local.boundaries import token_offsets
from parse_local.channels import Parser, Shown, joined
from parse_local.distribution import Distribution
from parse_local.errors import GrammarError
from parse_local.events import Channel, Drafted
from parse_local.judge import Judge, Question, verdicts
from parse_local.llama import scores
from parse_local.llama.model import Model
from parse_local.llama.sampler import Sampler
from parse_local.writer import Writer


@dataclass(frozen=True)
class Draft:
    """A draft in the target's vocabulary.

    Args:
        tokens: target tokens.
        pieces: their bytes.
        complete: the draft model (or a stop string) ended the answer here.
        proposals: distributions that the tokens, and the end token, were drawn from;
            None where they were not drawn or the vocabularies differ.
        end_token: the token that ended the draft, None where something else did.
        logprobs: log-probabilities (nats) under the draft model of its own tokens, the end
            token's last; empty where nobody asked. Where the vocabularies differ there may be
            more or fewer of them than `tokens`.
        aligned: `logprobs` begin with one for each of `tokens`.
        stopped: a `Stop` ended the draft here.
        p_correct: the draft model's own verdict on it, None where it was not asked.
        own_sizes: bytes of the draft model's own tokens, where they are others than `tokens`.
        shown: what may be seen of it; None for all of `pieces`.
    """

    tokens: list[int]
    pieces: list[bytes] = field(repr=False)
    complete: bool
    proposals: list[Distribution] | None = field(default=None, repr=False)
    end_token: int | None = None
    logprobs: list[float] = field(default_factory=list, repr=False)
    aligned: bool = False
    stopped: bool = False
    p_correct: float | None = None
    own_sizes: Sequence[int] | None = field(default=None, repr=False)
    shown: Shown | None = field(default=None, repr=False)

    @property
    def channel(self) -> Channel:
        """What it is part of; a draft ends where a block of reasoning does."""
        return "answer" if self.shown is None else self.shown.channel

    @property
    def visible(self) -> list[bytes]:
        """Bytes that each token adds to its text: `pieces` without markers."""
        return self.pieces if self.shown is None else self.shown.pieces

    def n_own_within(self, n: int) -> int:
        """Tokens of the draft model's own that lie within the first `n` of `tokens`."""
        if self.own_sizes is None:
            return n
        return bisect_right(list(accumulate(self.own_sizes)), sum(map(len, self.pieces[:n])))

    def cut(self, n: int) -> Draft:
        """Its first `n` tokens, which end nothing."""
        if n == len(self.tokens):
            return self
        return replace(
            self,
            tokens=self.tokens[:n],
            pieces=self.pieces[:n],
            shown=self.shown and self.shown.head(n),
            complete=False,
            proposals=self.proposals and self.proposals[: n + 1],
            end_token=None,
            logprobs=self.logprobs[:n] if self.aligned else self.logprobs,
            p_correct=None,
        )

    @cached_property
    def text(self) -> str:
        """The draft as text; a character cut in two ends it as U+FFFD."""
        return b"".join(self.visible).decode("utf-8", "replace")

    @cached_property
    def offsets(self) -> list[int | None]:
        """Character offset behind each token (see `boundaries.token_offsets`)."""
        return token_offsets(self.visible, self.shown.in_marker if self.shown else None)

    def head(self, n: int) -> str:
        """Text of the first `n` tokens without an unfinished character: a prefix of `text`."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(self.visible[:n]))


def in_target_tokens(
    tokens: list[int], model: Model, target: Model, *, shared: bool
) -> tuple[list[int], bool]:
    """What a draft model wrote, in the target's tokens, and whether they are the same ones.

    Args:
        tokens: of `model`.
        model: who wrote them.
        target: whose vocabulary they are wanted in.
        shared: token ids mean the same in both, up to padding.
    """
    if shared and all(t < target.n_vocab for t in tokens):
        return tokens, True
    return target.tokenize(model.detokenize(tokens).decode("utf-8", "ignore")), False


class Stop(Protocol):
    """Where writing ends before its limit; made anew for each stretch that is written."""

    def push(self, text: str, logprob: float = math.nan) -> bool:
        """Take a token that was written; True: it is the last one.

        Args:
            text: what it adds to the text; characters that are unfinished come with the
                token that finishes them.
            logprob: its log-probability (nats) under the model that writes, NaN where
                nobody asked.
        """
        ...


class Drafter:
    """Writes drafts for one answer.

    Args:
        writer: the draft model.
        target: whose vocabulary and marks the drafts are handed over in.
        shared_vocabulary: token ids mean the same in both models.
        sampler: of the draft model.
        prompt: the conversation in the draft model's tokens.
        parser: tells reasoning from the answer in what it writes behind that; needed where the
            vocabularies differ.
        logprobs: keep the log-probability of each token under the draft model; the row is
            then read a second time.
        judge: questions of which the draft model answers one about each of its own drafts;
            None asks it nothing.
        clock: told of every decode, and what reads its output: number of tokens, seconds.
    """

    FEW = 16
    """Missing tokens that are decoded together with the one whose output row is wanted."""

    def __init__(
        self,
        writer: Writer,
        target: Writer,
        *,
        shared_vocabulary: bool,
        sampler: Sampler,
        prompt: list[int],
        parser: Parser | None = None,
        logprobs: bool = False,
        judge: Judge | None = None,
        clock: Callable[[int, float], None] | None = None,
    ) -> None:
        self.context = writer.context
        self.prompt = prompt
        self._writer = writer
        self._start = parser or Parser()
        self._model = writer.model
        self._target = target
        self._marking = target.thinking if shared_vocabulary else writer.thinking
        self._shared = shared_vocabulary
        self._sampler = sampler
        self._wants_logprobs = logprobs
        self._judge = judge
        self._clock = clock
        self._resumed = False
        self.tokens: list[int] = []
        """What it has written of the draft that it is at, in its own tokens."""

    def n_missing(self, answer: Answer) -> int:
        """Tokens that have to be decoded before the first one can be drafted."""
        self._resume(answer)
        sequence = self.prompt + self._own_tokens(answer)
        return len(sequence) - self.context.n_shared(sequence)

    def write(
        self, answer: Answer, *, limit: int, stop: Stop | None = None
    ) -> Generator[Drafted, None, Draft | None]:
        """Draft the answer's next tokens.

        The cache is first rolled back to what the answer so far shares with it.

        Args:
            answer: what is final already.
            limit: most tokens to draft.
            stop: ends the draft before that.

        Returns:
            The draft, or None where there is no room for one or the grammar allows none.
        """
        sequence = self.prompt + self._own_tokens(answer)  # grows with the draft
        limit = min(limit, self.context.n_ctx - len(sequence))
        if limit <= 0:
            return None
        self._resume(answer)
        self._prefill(answer, sequence)
        tokens = self.tokens = []
        proposals: list[Distribution] = []
        logprobs: list[float] = []
        parser = self._parser(answer)
        n_closed = parser.n_closed
        shown = TextStream()
        stops = TextStream(answer.stops)
        stops.push(b"".join(data for channel, data in answer.runs if channel == "answer"))
        complete = stopped = False
        end_token: int | None = None
        while len(tokens) < limit and not (complete or stopped):
            try:
                with answer.timed("draft_s"):
                    token = self._next(sequence, proposals, logprobs)
            except GrammarError:  # it does not know the next character, or reads another one
                break
            answer.n_drafted += 1
            complete = self._model.is_eog(token)
            if complete:
                end_token = token
            else:
                tokens.append(token)
                sequence.append(token)
                runs = parser.push(*self._piece(token))
                channel = runs[0][0] if runs else parser.channel
                text = shown.push(b"".join(data for c, data in runs if c == channel))
                yield Drafted(text, len(tokens), channel)
                stops.push(b"".join(data for c, data in runs if c == "answer"))
                complete = stops.stopped
                if stop is not None:
                    stopped = stop.push(text, logprobs[-1] if logprobs else math.nan)
                stopped = stopped or parser.n_closed > n_closed
        if not tokens and not complete:
            return None
        draft = self._hand_over(answer, tokens, proposals, complete, end_token)
        aligned = self._shares(tokens) and bool(logprobs)
        p_correct = None
        if self._judge is not None and tokens:
            with answer.timed("draft_s"):
                channel = "reasoning" if parser.in_reasoning else "answer"
                question = self._judge.about(channel, complete=complete)
                p_correct = self._own_verdict(question, sequence)
        return replace(
            draft, logprobs=logprobs, aligned=aligned, stopped=stopped, p_correct=p_correct
        )

    def _own_verdict(self, question: Question, sequence: list[int]) -> float | None:
        # Behind the sequence itself: the next draft rolls the question back.
        if len(sequence) + len(question.suffix) > self.context.n_ctx:
            return None
        asked = [*sequence[len(self.context.tokens) :], *question.suffix]
        for _, row in self.context.decode(asked, cuts=[len(sequence) - 1]):  # noqa: B007
            pass
        p_correct, _ = verdicts(self.context.label_logprobs(row, question.labels))
        return float(p_correct[0])

    def _resume(self, answer: Answer) -> None:
        # Not before it is needed: the target's first token comes first.
        if not self._resumed:
            with answer.timed("prompt_s"):
                self.context.resume(self.prompt)
            self._resumed = True

    def _prefill(self, answer: Answer, sequence: list[int]) -> None:
        missing = len(sequence) - self.context.sync(sequence)
        cuttable = self._model.memory_kind.can_cut  # else a copy is taken behind the prefill
        if self._wants_logprobs and answer.n_drafted and missing <= self.FEW and cuttable:
            return
        with answer.timed("draft_s" if answer.n_drafted else "prompt_s"):
            started = time.perf_counter()
            self.context.prefill(sequence)
            self._tell(missing - 1, started)

    def _tell(self, n_tokens: int, started: float) -> None:
        if self._clock is not None and n_tokens:
            self._clock(n_tokens, time.perf_counter() - started)

    def _next(
        self, sequence: list[int], proposals: list[Distribution], logprobs: list[float]
    ) -> int:
        if self._sampler.greedy and not self._wants_logprobs:  # nobody asks how likely it was
            return self._sampler.advance(self.context, sequence[-1], sequence)
        started = time.perf_counter()
        missing = sequence[len(self.context.tokens) :]
        row = self.context.last_row(missing)
        distribution = self._sampler.distribution(row, sequence)
        token = distribution.sample(self._sampler.rng)
        if not self._sampler.greedy:
            proposals.append(distribution)
        if self._wants_logprobs:
            found = scores.token_scores(row, [token], n_threads=self.context.n_threads)
            logprobs.append(float(found.logprob[0]))
        self._tell(len(missing), started)
        return token

    def _own_tokens(self, answer: Answer) -> list[int]:
        # Vocabularies that are shared may still differ in padding behind their common part.
        if self._shared and all(t < self._model.n_vocab for t in answer.tokens):
            return answer.tokens
        said = [(channel, data.decode("utf-8", "ignore")) for channel, data in answer.runs]
        last = said[-1][0] if said else None
        if answer.parser.in_reasoning and last != "reasoning":
            said.append(("reasoning", ""))  # a block has been opened, no more
        elif last == "reasoning" and not answer.parser.in_reasoning:
            said.append(("answer", ""))
        written = self._writer.thinking.writes(self._start, said)
        return self._writer.encode_written(written)

    def _parser(self, answer: Answer) -> Parser:
        # In the state of the answer, of which another vocabulary has other marks.
        if self._shared:
            return answer.parser.copy()
        parser = self._start.copy()
        for token in self._own_tokens(answer):
            parser.push(*self._piece(token))
        return parser

    def _piece(self, token: int) -> tuple[bytes, bytes]:
        return self._model.piece(token), self._marking.controls.get(token, b"")

    def _shares(self, tokens: list[int]) -> bool:
        return self._shared and all(t < self._target.model.n_vocab for t in tokens)

    def _translated(self, answer: Answer, tokens: list[int]) -> list[int]:
        """The same text in the target's tokens, between the target's marks."""
        parser = self._parser(answer)
        n_closed = parser.n_closed
        runs = [run for token in tokens for run in parser.push(*self._piece(token))]
        said = [
            (c, data.decode("utf-8", "ignore")) for c, data in joined([*runs, *parser.finish()])
        ]
        if parser.n_closed > n_closed and not (said and said[-1][0] == "answer"):
            said.append(("answer", ""))
        return self._target.encode_written(self._target.thinking.writes(answer.parser, said))

    def _hand_over(
        self,
        answer: Answer,
        tokens: list[int],
        proposals: list[Distribution],
        complete: bool,
        end_token: int | None,
    ) -> Draft:
        shared = self._shares(tokens)
        own_sizes = None if shared else [len(self._model.piece(t)) for t in tokens]
        if not shared:
            tokens = self._translated(answer, tokens)
        complete = complete and len(tokens) <= answer.n_left
        tokens = tokens[: answer.n_left]
        drawn = shared and not self._sampler.greedy
        pieces = [self._target.model.piece(t) for t in tokens]
        shown = answer.seen(tokens, pieces)
        return Draft(
            tokens=tokens,
            pieces=pieces,
            # Ending within its reasoning, it has not answered.
            complete=complete and shown.channel == "answer",
            shown=shown,
            proposals=proposals if drawn else None,
            end_token=end_token,
            own_sizes=own_sizes,
        )
