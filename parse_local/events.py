"""What the engine yields while it answers, and the result it ends with.

The order within one round is: `Drafted` (many) → `Verified` → `Accepted`
and/or `RolledBack` → `Text`. Only `Text` is final: a consumer that ignores
everything else never shows anything that is taken back later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Source = Literal["draft", "target"]
Channel = Literal["answer", "reasoning"]
FinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


@dataclass(frozen=True)
class Drafted:
    """A piece of the draft, provisional until it is accepted.

    Args:
        text: the new piece (never ends inside a UTF-8 character; may be empty).
        n_draft: draft tokens written so far in this round.
        channel: "reasoning" where it is part of what the model thinks before its answer.
    """

    text: str
    n_draft: int
    channel: Channel = "answer"


@dataclass(frozen=True)
class Boundary:
    """One place where the draft may be cut, with the target's verdict on what is before it.

    Args:
        n_tokens: draft tokens, in the target's vocabulary, before the cut.
        n_chars: characters of the draft's text before the cut.
        p_correct: P(Correct) over the two labels; None where it was not asked.
        label_mass: probability of all labels together; None where not asked.
        complete: the boundary is the end of a finished answer (full question).
        terms: all evidence about the tokens before the cut, by the names of
            `calibration.features.TERMS`; what was not measured is left out.
        score: the target's mark from 0 to 9; None where P(Correct) was asked for.
        confidence: how sure the draft was of the tokens since the boundary before (see
            `accept.confidence`), where that alone decided; None where the target was asked.
    """

    n_tokens: int
    n_chars: int
    p_correct: float | None = None
    label_mass: float | None = None
    complete: bool = False
    terms: Mapping[str, float] = field(default_factory=dict, hash=False)
    score: float | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Round:
    """One draft → verify → accept cycle.

    Args:
        n_draft: tokens verified, in the target's vocabulary.
        n_exact: of these, how many from the start are the target's own choice; 0 where
            `read` is False.
        n_accept: how many were kept.
        boundaries: the places judged, in order.
        whole: the draft was a finished answer and all of it was accepted.
        n_exact_chars: characters of the draft's text in its first `n_exact` tokens.
        confidence: how sure the draft was of all its tokens (see `accept.confidence`), where
            it was kept for that; None otherwise.
        read: the target's output rows for the draft were read, so that `n_exact` means
            something; a segment gets a verdict alone, or is not looked at.
        channel: what the draft is part of; none is part of both.
    """

    n_draft: int
    n_exact: int
    n_accept: int
    boundaries: tuple[Boundary, ...] = ()
    whole: bool = False
    n_exact_chars: int = 0
    confidence: float | None = None
    read: bool = True
    channel: Channel = "answer"

    def to_json(self) -> dict[str, Any]:
        """One of the `rounds` that `parse-local run --json` prints."""
        found: dict[str, Any] = {
            "n_draft": self.n_draft,
            "n_exact": self.n_exact,
            "n_accept": self.n_accept,
            "boundaries": [b.n_tokens for b in self.boundaries],
            "p_correct": [b.p_correct for b in self.boundaries],
            "label_mass": [b.label_mass for b in self.boundaries],
        }
        if not self.read:
            found["read"] = False
        if self.channel != "answer":
            found["channel"] = self.channel
        if any(b.score is not None for b in self.boundaries):
            found["score"] = [b.score for b in self.boundaries]
        if self.confidence is not None:
            found["confidence"] = self.confidence
        return found


@dataclass(frozen=True)
class Verified:
    """It is decided what becomes of this round's draft: by the target, or without it."""

    round: Round
    text: str


@dataclass(frozen=True)
class Accepted:
    """The first `n_accept` tokens of the draft are kept.

    Their text follows as `Text` events (a stop string may still hold some of it back).
    """

    n_accept: int
    text: str


@dataclass(frozen=True)
class RolledBack:
    """The tail of the draft is dropped; `text` is what must leave the screen."""

    n_tokens: int
    text: str


@dataclass(frozen=True)
class TokenLogprob:
    """One final token, with what the target thought of it before any sampler.

    Args:
        text: its bytes, which may be part of a character.
        logprob: its log-probability (nats) at temperature 1; None where the target's output
            row was not read, as for a segment that has a verdict alone.
        top: the likeliest tokens there with theirs, best first; empty where none was asked
            for or the row was not read.
    """

    text: bytes
    logprob: float | None = None
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True)
class Text:
    """Final text, in order, never taken back; `source` says which model wrote it.

    The markers around a model's reasoning, `<think>` for example, are in no text.

    Args:
        text: what is added to the answer, or to the reasoning.
        source: who wrote it.
        channel: which of the two.
        tokens: the tokens that end in it, where `Options.logprobs` asks for them. All of an
            answer's joined are the bytes of its text, but for a last token that a stop
            string cuts.
    """

    text: str
    source: Source
    channel: Channel = "answer"
    tokens: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to have called.

    Args:
        name: of the function.
        arguments_json: a JSON object with its arguments.
    """

    name: str
    arguments_json: str = "{}"


@dataclass(frozen=True)
class Usage:
    """Token counts in the target's vocabulary (the draft's for strategy "draft")."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class TokenCounts:
    """Tokens that went through `llama_decode`, by purpose.

    Args:
        draft_decoded: tokens decoded by the draft model (its prompt included).
        target_decoded: tokens decoded by the target on its main sequence:
            prompt + verified draft + continuation + rejected proposals.
        suffix_decoded: judge-suffix tokens decoded by the target (forks times suffix).
        reused: prompt tokens found in the target's KV cache and not decoded.
        reused_draft: the same for the draft's cache.
        n_accept: answer tokens that came from the draft.
        spec_proposed: tokens proposed by token-level speculation while the target wrote.
        spec_accepted: how many of them the target agreed with.
    """

    draft_decoded: int = 0
    target_decoded: int = 0
    suffix_decoded: int = 0
    reused: int = 0
    reused_draft: int = 0
    n_accept: int = 0
    spec_proposed: int = 0
    spec_accepted: int = 0


@dataclass(frozen=True)
class Pass:
    """Calls of `llama_decode` that had the same shape.

    Args:
        n_tokens: tokens in the batch.
        n_rows: how many of them had their output row computed.
        n: how many calls.
    """

    n_tokens: int
    n_rows: int
    n: int


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds; `ttft_s` is the time to the first final text."""

    prompt_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    fork_s: float = 0.0
    target_s: float = 0.0
    total_s: float = 0.0
    ttft_s: float = 0.0


@dataclass(frozen=True)
class Span:
    """A stretch of the answer, or of the reasoning, and the model that wrote it."""

    text: str
    source: Source
    channel: Channel = "answer"


@dataclass(frozen=True)
class Result:
    """A finished answer.

    Args:
        text: the final answer; equals the concatenation of the `Text` events of its channel.
        reasoning: what the model thought before, likewise; "" where it did not think.
        finish_reason: "stop", "length", "cancelled", or "tool_calls" where it ends with calls.
        spans: reasoning and answer cut by who wrote them; those of either channel joined
            give its text.
        tool_calls: what the model wants to have called; no part of `text`.
        target_passes, draft_passes: what either model decoded, by shape of the batch.
        speedup: how many times faster than the target alone, from plain decodes of it timed in
            this process (`baseline.Baseline`); None where too few were, or where the target
            did write alone.
    """

    text: str = ""
    reasoning: str = ""
    finish_reason: FinishReason = "stop"
    usage: Usage = field(default_factory=Usage)
    rounds: tuple[Round, ...] = ()
    tokens: TokenCounts = field(default_factory=TokenCounts)
    timings: Timings = field(default_factory=Timings)
    spans: tuple[Span, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    target_passes: tuple[Pass, ...] = ()
    draft_passes: tuple[Pass, ...] = ()
    speedup: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens per second of the whole call, prompt time included."""
        return self.usage.completion_tokens / self.timings.total_s if self.timings.total_s else 0.0

    @property
    def accepted_share(self) -> float:
        """Share of the answer's tokens that came from the draft, 0 to 1."""
        n = self.usage.completion_tokens
        return self.tokens.n_accept / n if n else 0.0

    def to_json(self) -> dict[str, Any]:
        """The object that `parse-local run --json` prints."""
        calls = [{"name": c.name, "arguments": c.arguments_json} for c in self.tool_calls]
        return {
            **({"tool_calls": calls} if calls else {}),
            "text": self.text,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "usage": dataclasses.asdict(self.usage),
            "rounds": [r.to_json() for r in self.rounds],
            "tokens": {
                "draft_decoded": self.tokens.draft_decoded,
                "target_decoded": self.tokens.target_decoded,
                "suffix_decoded": self.tokens.suffix_decoded,
                "reused": self.tokens.reused,
                "spec_proposed": self.tokens.spec_proposed,
                "spec_accepted": self.tokens.spec_accepted,
            },
            "timings": {k: round(v, 4) for k, v in dataclasses.asdict(self.timings).items()},
            "speedup": None if self.speedup is None else round(self.speedup, 3),
        }


@dataclass(frozen=True)
class Progress:
    """How far the running answer is, for whoever watches it.

    Args:
        prompt_tokens: of the prompt.
        completion_tokens: final so far.
        n_accept: how many of these came from the draft.
        seconds: since the call began.
        speedup: so far, as `Result.speedup`.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    n_accept: int = 0
    seconds: float = 0.0
    speedup: float | None = None


@dataclass(frozen=True)
class Finished:
    """The last event of every answer, also of a cancelled one."""

    result: Result


Event = Drafted | Verified | Accepted | RolledBack | Text | Finished
