"""Whose turn it is: where a draft ends, who has to look at it, and who writes on until where.

One object for each strategy that drafts; the engine's loop asks it and stays the same. What
they have in common: a draft is provisional until `settle` or the verifier has decided on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from parse_local.accept import confidence
from parse_local.answer import Answer
from parse_local.drafting import Draft, Stop
from parse_local.events import Round
from parse_local.policy import Policy
from parse_local.segments import CueStop, SegmentEnd, TokenCount, at_opening


@dataclass(frozen=True)
class Stretch:
    """What the target writes next.

    Args:
        n_tokens: at least so many; None leaves it to `stop`, or to the end of the answer.
        stop: ends it, exactly there.
    """

    n_tokens: int | None = None
    stop: Stop | None = None


class Windows:
    """Drafts of a fixed length, judged at every boundary (PARSE, section 3)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    @property
    def judged(self) -> bool:
        """Whether the next draft gets verdicts, where the mode asks for any."""
        return True

    def proposal(self, answer: Answer) -> list[int]:
        """Tokens to be verified in place of a new draft, which no decode has made; mostly none."""
        return []

    def limit(self, answer: Answer, n_unread: Callable[[], int]) -> int:
        """Most tokens of the next draft, 0 for none now.

        Args:
            answer: so far.
            n_unread: how many tokens of prompt and answer the draft model has not read.
        """
        budget = int(self._policy.draft_budget * answer.max_tokens)
        window = self._policy.window or answer.n_left
        return min(window, answer.n_left, budget - answer.n_drafted)

    def without_draft(self, answer: Answer) -> Stretch:
        """What the target writes where there is no draft: with no budget or room left, all."""
        return Stretch()

    def verified(self, answer: Answer, draft: Draft, found: Round) -> None:
        """A draft was verified; what is accepted is not yet in the answer."""

    def draft_stop(self, answer: Answer) -> Stop | None:
        """What ends the next draft before its limit."""
        return None

    def settle(self, draft: Draft) -> Round | None:
        """The round of a draft that needs no look by the target; None asks it."""
        return None

    def target_writes(self, answer: Answer, draft: Draft, found: Round) -> Iterator[Stretch]:
        """What the target adds before the next draft; resumed when each stretch is written.

        Args:
            answer: with what was accepted.
            draft: of this round.
            found: what became of it.
        """
        n = found.n_accept
        rejected = n < len(draft.tokens) or draft.complete
        if rejected and self._policy.after_reject == "target":
            yield Stretch()
        else:
            yield Stretch(self._policy.min_progress - n - 1 if rejected else 0)

    def finished(self, answer: Answer) -> None:
        """The answer has ended."""


class Segments(Windows):
    """One segment at a time, kept whole or written by the target instead.

    The target is not asked about a segment of which its own draft was sure, where the policy
    says from where on (SpecReason, arXiv 2504.07891; ConfSpec, 2602.18447).
    """

    def draft_stop(self, answer: Answer) -> Stop | None:
        """The draft ends with its segment."""
        return SegmentEnd(answer.text)

    def settle(self, draft: Draft) -> Round | None:
        """A segment that the draft is sure of stays unseen."""
        least = self._policy.min_confidence
        if least is None:
            return None
        if self._policy.confidence_by == "verdict":
            sure = draft.p_correct or 0.0
        else:
            sure = confidence(draft.logprobs, by=self._policy.confidence_by)
        return _kept_unseen(draft, confidence=sure) if sure > least else None

    def target_writes(self, answer: Answer, draft: Draft, found: Round) -> Iterator[Stretch]:
        """A rejected segment is the target's, which may write as many tokens as the draft."""
        if found.n_accept < len(draft.tokens) or not draft.tokens:
            most = TokenCount(self._policy.window or answer.n_left)
            yield Stretch(stop=_Either(SegmentEnd(answer.text), most))


class Takeovers(Windows):
    """The draft writes, and the target in its place where a segment opens with a cue.

    Nothing is judged. Checks that the draft begins are long takeovers, and so is the first
    opening behind too many doubts (Speculative Thinking, arXiv 2504.12329, section 3).
    """

    N_VERIFY = 125
    """Tokens that the target adds where it begins to check."""
    N_DOUBTS, N_DOUBTS_MORE, N_DOUBTS_MOST = 15, 5, 30
    """Openings with doubts until the target recapitulates; so many more after each time."""
    N_RECAP, N_RECAP_MORE, N_RECAP_MOST = 125, 25, 200
    """Tokens of such a recapitulation, likewise."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._cue: CueStop | None = None
        self._n_doubts = 0
        self._most_doubts = self.N_DOUBTS
        self._n_recap = self.N_RECAP

    def draft_stop(self, answer: Answer) -> Stop | None:
        """The draft ends with its segment, and in an opening at a cue."""
        self._cue = CueStop(self._policy.cues) if at_opening(answer.text) else None
        ends = SegmentEnd(answer.text)
        return ends if self._cue is None else _Either(self._cue, ends)

    def settle(self, draft: Draft) -> Round | None:
        """An opening with a cue goes, everything else stays."""
        if self._cue is not None and self._cue.found:
            return Round(n_draft=len(draft.tokens), n_exact=0, n_accept=0, read=False)
        return _kept_unseen(draft)

    def target_writes(self, answer: Answer, draft: Draft, found: Round) -> Iterator[Stretch]:
        """The target takes over for a bounded number of tokens."""
        if self._cue is not None and self._cue.found:
            before = len(answer.text)
            yield Stretch(stop=TokenCount(self._policy.takeover))
            written = answer.text[before:]
            self._n_doubts += self._policy.cues.reflects(written)
            if self._policy.cues.verifies(written):
                yield Stretch(stop=TokenCount(self.N_VERIFY))
        elif not found.n_accept:
            yield Stretch(1)
        elif self._n_doubts >= self._most_doubts and at_opening(answer.text):
            yield Stretch(stop=TokenCount(self._n_recap))
            self._n_doubts = 0
            self._n_recap = min(self._n_recap + self.N_RECAP_MORE, self.N_RECAP_MOST)
            self._most_doubts = min(self._most_doubts + self.N_DOUBTS_MORE, self.N_DOUBTS_MOST)


class _Either:
    # The first of two stops.
    def __init__(self, one: Stop, other: Stop) -> None:
        self._stops = (one, other)

    def push(self, text: str, logprob: float = math.nan) -> bool:
        found = [stop.push(text, logprob) for stop in self._stops]  # both see every token
        return any(found)


def _kept_unseen(draft: Draft, *, confidence: float | None = None) -> Round:
    n = len(draft.tokens)
    whole = draft.complete
    return Round(n, 0, n, whole=whole, confidence=confidence, read=False)


def make_turns(policy: Policy) -> Windows:
    """The object for a policy's way of drafting."""
    return {"windows": Windows, "segments": Segments, "takeovers": Takeovers}[policy.turns](policy)
