"""Token-level speculation for the target's own text: propose, decode at once, keep what agrees.

Lossless: a proposed token stays only where the target's own choice (its arg-max, or
with a temperature its own draw from its own distribution) is that token. Who proposed it
and how likely it was plays no part, so that neither the text nor its distribution changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from parse_local.errors import SpeculatorError
from parse_local.events import TokenLogprob
from parse_local.learning import Account, Rate
from parse_local.llama.context import Context
from parse_local.llama.conversations import n_common
from parse_local.llama.logprobs import LogprobReader
from parse_local.llama.rows import Rows
from parse_local.llama.sampler import Sampler

LOOKUPS = ("tail", "ngram")
"""Sources whose proposals cost nothing to make."""


class Proposer(Protocol):
    """What `Speculation` needs of a `parse_local.llama.speculator.Speculator`."""

    kind: str

    def begin(self, sequence: Sequence[int]) -> None:
        """Start a continuation of `sequence`."""

    def propose(self, n_max: int) -> list[int]:
        """At most `n_max` tokens that may follow."""

    def accept(self, tokens: Sequence[int]) -> None:
        """The sequence goes on with `tokens`."""


@dataclass
class Tail:
    """The rejected tail of a draft as a guess at what the target writes instead.

    Mostly the target changes a word and goes on as the draft did. So where it has just
    left the tail its token is taken for a substitute; later on, the last tokens of the
    sequence have to be found in the tail.

    Args:
        tokens: the tail, in the target's tokens, from the first rejected one on.
    """

    tokens: list[int] = field(default_factory=list)
    _at: int = 1  # the tail's token that is expected next
    _fresh: bool = True  # the last token stands in for one of the tail's, as far as is known
    n_agreeing: int = 0
    """Tokens in front of what was proposed last that the sequence and the tail share."""

    MATCH = 8
    """Most tokens compared in front of a place."""

    def propose(self, sequence: Sequence[int], n_max: int) -> list[int]:
        """What may follow `sequence`: the tail from the place that resembles its end most.

        A place other than the expected one has to agree in two tokens.
        """
        best, place = 0, -1
        for j in range(1, len(self.tokens)):
            n = self._n_agreeing(sequence, j)
            expected = j == self._at
            if n < (0 if expected and self._fresh else 1 if expected else 2):
                continue
            if place < 0 or (n, -abs(j - self._at)) > (best, -abs(place - self._at)):
                best, place = n, j
        if place < 0:
            return []
        self._at, self.n_agreeing = place, best
        return self.tokens[place : place + n_max]

    def _n_agreeing(self, sequence: Sequence[int], j: int) -> int:
        n = 0
        limit = min(self.MATCH, j, len(sequence))
        while n < limit and self.tokens[j - 1 - n] == sequence[-1 - n]:
            n += 1
        return n

    def advance(self, n: int, *, followed: bool) -> None:
        """The sequence has grown by `n` tokens; `followed` if all but the last were the tail's."""
        self._at += n
        self._fresh = followed


class Governor:
    """Decides how many tokens are worth proposing, from what this run has measured.

    Proposing k tokens pays where (expected tokens) / (cost of that step) is better than a plain
    step's. Tokens expected come from each source's acceptance rate, costs from the steps so
    far: k tokens cost a plain step and a slope for each of them until k itself was measured.
    Losses are bounded by an account: seconds saved go in, seconds lost come out, every plain
    step adds 2% of its own time, and an empty account stops speculation.
    """

    SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    RATE = 0.7  # acceptance rate of a source that has not been tried
    PRIOR = 4.0  # tokens that this prior counts for
    KEEP = 0.98  # of what was counted, at each step: rates follow the text
    SLOPE = 0.5  # of a plain step, for each proposed token, until measured
    MARGIN = 1.03  # a step has to promise this much more than a plain one
    ALLOWANCE = 0.02  # of plain time may be lost
    START, MOST = 3.0, 20.0  # the account, in plain steps: at first, and at most

    def __init__(self) -> None:
        self.plain_s: float | None = None
        """Seconds of a plain step; nothing is proposed before one has been measured."""
        self._account = Account(self.START, self.MOST, self.ALLOWANCE)  # in plain steps
        self._rates: dict[str, Rate] = {}
        self._costs: dict[tuple[str, int], float] = {}  # seconds of a step
        self._slopes: dict[str, float] = {}  # seconds for each proposed token

    def rate(self, source: str) -> float:
        """Share of this source's tokens that the target agrees with."""
        return self._rate(source).value

    def _rate(self, source: str) -> Rate:
        return self._rates.setdefault(source, Rate(self.RATE, self.PRIOR, self.KEEP))

    def choose(self, source: str, n_max: int) -> int:
        """How many of at most `n_max` tokens to propose; 0 where none would pay."""
        if self.plain_s is None or self._account.balance <= 0:
            return 0
        p = min(self.rate(source), 0.99)
        best, chosen = self.MARGIN, 0
        for k in {*(k for k in self.SIZES if k < n_max), n_max}:
            expected = (1 - p ** (k + 1)) / (1 - p) if k > 0 else 0.0
            gain = expected * self.plain_s / self._cost(source, k)
            if gain > best:
                best, chosen = gain, k
        return chosen

    def _cost(self, source: str, k: int) -> float:
        assert self.plain_s is not None
        group = _group(source)
        slope = self._slopes.get(group, self.SLOPE * self.plain_s)
        return self._costs.get((group, k), self.plain_s + k * slope)

    def plain(self, seconds: float) -> None:
        """A step without proposals took this long."""
        if self.plain_s is None:
            self.plain_s = seconds
        # A stalled step says nothing about the next ones.
        self.plain_s += 0.2 * (min(seconds, 2 * self.plain_s) - self.plain_s)
        self._account.wrote(1)

    def speculated(self, source: str, n_proposed: int, n_tokens: int, seconds: float) -> None:
        """A step with `n_proposed` tokens of `source` took this long and gained `n_tokens`."""
        assert self.plain_s is not None
        n_accepted = min(n_tokens - 1, n_proposed)
        self._rate(source).update(n_accepted, min(n_proposed, n_accepted + 1))
        self._account.book(n_tokens - seconds / self.plain_s)
        if n_proposed:
            group, per_token = _group(source), (seconds - self.plain_s) / n_proposed
            old = self._costs.get((group, n_proposed), seconds)
            self._costs[group, n_proposed] = old + 0.3 * (min(seconds, 2 * old) - old)
            slope = self._slopes.get(group, per_token)
            self._slopes[group] = max(0.0, slope + 0.3 * (min(per_token, 2 * slope) - slope))


def _group(source: str) -> str:
    return "lookup" if source in LOOKUPS else source


class Speculation:
    """Writes with one model, several tokens a step where proposals hold.

    Args:
        context: of the model that writes.
        proposer: where proposals come from besides the tail; None for nowhere.
        n_max: most tokens proposed at once; 0 is plain decoding.
        governor: decides how many of them; None proposes as many as there are.
    """

    def __init__(
        self,
        context: Context,
        proposer: Proposer | None = None,
        *,
        n_max: int = 0,
        governor: Governor | None = None,
    ) -> None:
        self.context = context
        self._proposer = proposer
        self._by_ngrams = proposer is not None and proposer.kind.startswith("ngram")
        self._n_max = n_max
        self._governor = governor
        self._tail = Tail()
        self._failed = False
        self._reader: LogprobReader | None = None
        self.read: list[TokenLogprob] = []
        """What it has read of the tokens of the last step."""
        self.start_count()

    def start_count(self) -> None:
        """Reset the counters of proposed and accepted tokens."""
        self.n_proposed = 0
        self.n_accepted = 0

    def begin(
        self,
        sequence: Sequence[int],
        tail: Sequence[int] = (),
        reader: LogprobReader | None = None,
    ) -> None:
        """Start a continuation.

        Args:
            sequence: prompt and answer so far; its last token is not decoded yet.
            tail: what a draft had in place of that token and behind it.
            reader: reads log-probabilities of what is written, None where nobody asked.
        """
        self._reader = reader
        self._tail = Tail(list(tail))
        self._failed = False
        if self._proposer is not None:
            try:
                self._proposer.begin(sequence)
            except SpeculatorError:
                self._failed = True

    def lookup(self, sequence: list[int], limit: int) -> list[int]:
        """What n-grams propose behind `sequence`, at most `limit` tokens; nothing is decoded.

        Empty where proposals come from elsewhere. For whoever verifies them in a round of
        their own; a stretch of writing begins anew with `begin`.
        """
        if self._proposer is None or not self._by_ngrams:
            return []
        try:
            self._proposer.begin(sequence)
            return self._proposer.propose(min(limit, self._n_max))
        except SpeculatorError:
            return []

    @property
    def retraceable(self) -> bool:
        """Whether what it proposes depends on the text alone: n-grams, or nothing."""
        return self._proposer is None or self._by_ngrams

    def retrace(
        self, sequence: list[int], start: int, choose: Callable[[int], int]
    ) -> Iterator[tuple[int, int]]:
        """How n-grams alone would have written `sequence` from `start` on; nothing is decoded.

        Args:
            sequence: a prompt and what was written behind it.
            start: where to begin, above 0.
            choose: how many of so many proposed tokens to read.

        Yields:
            Of each step the tokens read and how many of them held; one of the target's own
            tokens follows them.
        """
        proposer = self._proposer if self._by_ngrams else None
        try:
            if proposer is not None:
                proposer.begin(sequence[:start])
            while start < len(sequence):
                found = proposer.propose(self._n_max) if proposer is not None else []
                found = found[: choose(len(found))]
                n_held = n_common(found, sequence[start : start + len(found)])
                yield len(found), n_held
                step = sequence[start : start + n_held + 1]
                if proposer is not None:
                    proposer.accept(step)
                start += n_held + 1
        except SpeculatorError:
            return

    def step(self, sequence: list[int], sampler: Sampler, limit: int) -> list[int]:
        """The next tokens: accepted proposals, and one that the model chose behind them.

        Args:
            sequence: prompt and answer so far; the cache holds all but the last token.
            sampler: of the model.
            limit: most tokens wanted.

        Returns:
            At least one token; an end-of-generation token is always the last. The cache
            holds all but the last.

        Raises:
            Cancelled, DecodeError, ContextLengthError: as `Context.decode`.
        """
        started = time.perf_counter()
        source, proposal = self._propose(sequence, min(limit - 1, self._n_max))
        for i, token in enumerate(proposal):
            if self.context.model.is_eog(token):  # nothing follows it
                del proposal[i + 1 :]
                break
        tokens = self._write(sequence, proposal, sampler)
        self._accept(tokens, from_tail=source == "tail")
        if len(proposal) >= len(tokens):
            self.context.rewind(len(sequence) + len(tokens) - 1)
        self._account(source, len(proposal), len(tokens), time.perf_counter() - started)
        return tokens

    def _write(self, sequence: list[int], proposal: list[int], sampler: Sampler) -> list[int]:
        self.read = []
        if not proposal and self._reader is None:
            return [sampler.advance(self.context, sequence[-1], sequence)]
        tokens: list[int] = []
        recent = sequence[-sampler.n_history :]
        rows = self._rows([sequence[-1], *proposal])
        for proposed, row in zip([*proposal, None], rows, strict=False):
            tokens.append(sampler.choose(row, recent + tokens))
            if self._reader is not None:
                self.read.append(self._reader.read(row, tokens[-1]))
            if tokens[-1] != proposed or self.context.model.is_eog(tokens[-1]):
                break
        return tokens

    def _rows(self, tokens: list[int]) -> Iterator[Rows]:
        # A memory that cannot be cut comes back to where the proposals begin.
        here = len(self.context.tokens)
        for _, rows in self.context.decode(tokens, n_rows=len(tokens), cuts=[here]):
            for i in range(len(rows)):
                yield rows.at(i)

    def _propose(self, sequence: list[int], n_max: int) -> tuple[str, list[int]]:
        # (source, tokens); "" where nobody was asked who costs time
        if n_max <= 0:
            return "", []
        tail = self._tail.propose(sequence, n_max)
        proposal = tail[: self._choose("tail", len(tail))]
        if proposal:
            return "tail", proposal
        if self._proposer is None or self._failed:
            return "", []
        source = "ngram" if self._by_ngrams else self._proposer.kind
        n = n_max if self._by_ngrams else self._choose(source, n_max)
        if not n:
            return "", []
        try:
            proposal = self._proposer.propose(n)
        except SpeculatorError:
            self._failed = True
            return "", []
        if self._by_ngrams:
            proposal = proposal[: self._choose(source, len(proposal))]
        return source if proposal or not self._by_ngrams else "", proposal

    def _choose(self, source: str, n_max: int) -> int:
        return n_max if self._governor is None else self._governor.choose(source, n_max)

    def _accept(self, tokens: list[int], *, from_tail: bool) -> None:
        self._tail.advance(len(tokens), followed=from_tail and len(tokens) > 1)
        if self._proposer is not None and not self._failed:
            try:
                self._proposer.accept(tokens)
            except SpeculatorError:
                self._failed = True

    def _account(self, source: str, n_proposed: int, n_tokens: int, seconds: float) -> None:
        self.n_proposed += n_proposed
        self.n_accepted += min(n_tokens - 1, n_proposed)
        if self._governor is None:
            return
        if source:
            self._governor.speculated(source, n_proposed, n_tokens, seconds)
        else:
            self._governor.plain(seconds)
