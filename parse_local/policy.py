"""Options of one answer, and what strategy, mode and profile make of them: the home of defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from parse_local.errors import UsageError
from parse_local.profile import Profile
from parse_local.segments import Cues
from parse_local.validation import check_choices, check_ranges

Strategy = Literal[
    "auto",
    "parse",
    "speculative",
    "fly",
    "confspec",
    "specreason",
    "speculative-thinking",
    "target",
    "draft",
]
AcceptMode = Literal["exact", "loose", "semantic", "fused"]
AcceptRule = Literal["first-failure", "longest"]
AfterReject = Literal["target", "redraft"]
Question = Literal["correct", "score"]
ScoreBy = Literal["greedy", "mean"]
TokenConfidence = Literal["mean", "min"]
ConfidenceBy = Literal[TokenConfidence, "verdict"]
Turns = Literal["windows", "segments", "takeovers"]

STRATEGIES: dict[Strategy, str] = {
    "auto": "as parse, as far and as often as measured costs and acceptance say that it pays",
    "parse": "the draft writes, the target verifies all prefixes at once and continues",
    "speculative": "the target with token-level speculation, lossless",
    "fly": "the draft writes; other words pass where the target is undecided",
    "confspec": "segment by segment; the target judges those of which the draft is unsure",
    "specreason": "segment by segment; the target gives each a mark from 0 to 9",
    "speculative-thinking": "the draft writes; the target takes over where it hesitates",
    "target": "the target alone, token by token",
    "draft": "the draft alone",
}
"""Every strategy with what it does."""

DEFAULT_PAIR = "qwen2.5-coder-1.5b"

MAX_LOGPROBS = 20
"""Alternatives of one token that OpenAI's API can be asked for."""
MIN_TEMPERATURE = 1e-6
"""Below it, logits divided by the temperature may not be finite."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How one answer is made. None means: the default of the acceptance mode.

    Args:
        strategy: a name in `STRATEGIES`; docs/strategies.md has them with their papers.
        accept: what makes a draft's prefix acceptable. "exact" keeps what the
            target would have written itself (lossless); "loose" also lets a differing token
            pass where the target is undecided and then agrees again (FLy; greedy only);
            "semantic" keeps what
            its verdict calls correct (PARSE, section 3); "fused" combines the verdict with the
            likelihood. None: "fused" where the pair has a calibrated profile, else "exact".
        window: tokens drafted before each verification; 0 is the whole answer.
            None: 16 for "exact" and "loose" (15 for "fly"), the whole answer otherwise. With
            "confspec" and "specreason" most tokens of a segment (None: 512), with
            "speculative-thinking" of an opening that is searched for cues (None: 20); with
            "auto" at most so many, None and 0 leave it to the plan.
        after_reject: who goes on after a rejected tail: "target" writes the rest
            (the paper), "redraft" drafts again. None: "redraft" for "exact" and "loose" and
            with "auto", "target" otherwise.
        rule: "first-failure" keeps what lies before the first boundary judged
            incorrect, "longest" the longest prefix judged correct.
        tau_full: P(Correct) that accepts a finished answer whole. None: the profile's, else 0.9.
        tau_prefix: P(Correct) that accepts an unfinished prefix. None: the profile's, else 0.9.
        loose_entropy: entropy (nats) of the target from which on a differing token may pass.
            None: 0.8, with "fly" 0.3.
        loose_window: tokens behind it that have to be the target's own choice. None: 6.
        question: what "specreason" and "confspec" ask of a segment: "score" a mark from 0 to 9,
            "correct" whether it is correct. None: "score" for "specreason", else "correct".
        min_score: mark that accepts a segment.
        score_by: the mark is the likeliest digit ("greedy", the paper) or their mean.
        min_confidence: confidence of the draft in its own words above which they need no verdict
            of the target:
            whole segments with "confspec" (None: 0.9), stretches between two boundaries with
            "parse" (None: every boundary is judged).
        confidence_by: that is the probability of its tokens, their geometric "mean" or their
            "min"imum; or, with "confspec", the draft model's own "verdict" on the segment.
        takeover: tokens that the target writes at a cue with "speculative-thinking".
        cues: the words that it looks for.
        min_progress: tokens that every redraft round adds at least, the
            target writing what the draft could not.
        draft_budget: most tokens drafted in one answer, as a multiple of max_tokens.
        delta: tokens between boundaries where the text offers none.
        max_forks: most boundaries judged in one round; at most the pair's own.
        max_tokens: most tokens of the answer.
        stop: strings that end the answer; they are not part of it.
        temperature: 0 is greedy, and so is what divides logits beyond the range of floats.
        top_k, top_p, min_p, repeat_penalty: llama.cpp's samplers of these names.
        seed: of the sampler; None draws one.
        thinking: let models think that can be told whether to, by their chat template. Others
            always do, or never. Reasoning counts towards `max_tokens`, and is in
            `Result.reasoning`.
        grammar: what the answer has to follow, in llama.cpp's GBNF; None for free text.
            `parse_local.grammar` makes one of a JSON schema.
        logprobs: report every token's log-probability under the target, and so many of the
            likeliest alternatives; None reports nothing.
    """

    strategy: Strategy = "auto"
    accept: AcceptMode | None = None
    window: int | None = None
    after_reject: AfterReject | None = None
    rule: AcceptRule = "first-failure"
    tau_full: float | None = None
    tau_prefix: float | None = None
    loose_entropy: float | None = None
    loose_window: int | None = None
    question: Question | None = None
    min_score: float = 7.0
    score_by: ScoreBy = "greedy"
    min_confidence: float | None = None
    confidence_by: ConfidenceBy = "mean"
    takeover: int = 20
    cues: Cues = field(default_factory=Cues)
    min_progress: int = 4
    draft_budget: float = 2.0
    delta: int = 32
    max_forks: int = 32
    max_tokens: int = 2048
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int | None = None
    thinking: bool = False
    grammar: str | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < MIN_TEMPERATURE and self.temperature > 0:
            object.__setattr__(self, "temperature", 0.0)
        if isinstance(self.stop, str):  # its letters would be stop strings of their own
            object.__setattr__(self, "stop", (self.stop,))
        check_choices(
            self,
            {
                "strategy": get_args(Strategy),
                "accept": (None, *get_args(AcceptMode)),
                "after_reject": (None, *get_args(AfterReject)),
                "rule": get_args(AcceptRule),
                "question": (None, *get_args(Question)),
                "score_by": get_args(ScoreBy),
                "confidence_by": get_args(ConfidenceBy),
            },
        )
        check_ranges(
            self,
            {
                "window": (0, None),
                "tau_full": (0, 1),
                "tau_prefix": (0, 1),
                "loose_entropy": (0, 1000),
                "loose_window": (0, None),
                "min_score": (0, 10),
                "min_confidence": (0, 1),
                "takeover": (1, None),
                "min_progress": (1, None),
                "draft_budget": (0, 1000),
                "delta": (1, None),
                "max_forks": (1, None),
                "max_tokens": (1, None),
                "temperature": (0, None),
                "top_k": (0, None),
                "top_p": (0, 1),
                "min_p": (0, 1),
                "repeat_penalty": (0.01, None),
                "seed": (0, None),
                "logprobs": (0, MAX_LOGPROBS),
            },
        )


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Options with every None replaced by what strategy, mode and profile say.

    `turns` says how drafts are cut up: "windows" of a fixed length, "segments" between blank
    lines, or "takeovers", of which none is judged (`accept` is None then).
    """

    turns: Turns
    accept: AcceptMode | None
    window: int
    after_reject: AfterReject
    rule: AcceptRule
    tau_full: float
    tau_prefix: float
    loose_entropy: float
    loose_window: int
    question: Question
    min_score: float
    score_by: ScoreBy
    min_confidence: float | None
    confidence_by: ConfidenceBy
    takeover: int
    cues: Cues
    min_progress: int
    draft_budget: float
    delta: int
    max_forks: int
    profile: Profile

    @property
    def accepts_boundaries(self) -> bool:
        """Whether acceptance looks at boundaries, not at single tokens only."""
        return self.accept in ("semantic", "fused")

    @property
    def asks_verdicts(self) -> bool:
        """Whether acceptance looks at verdicts at all; a profile may give them no weight."""
        fusion = self.profile.fusion
        fused = self.accept == "fused" and fusion is not None and fusion.needs_verdict
        return fused or self.accept == "semantic"

    @property
    def can_accept_prefixes(self) -> bool:
        """Whether a verdict may accept an unfinished prefix; a profile can rule that out.

        Forks are real work on a CPU, so none is made for a verdict that changes nothing.
        """
        fusion = self.profile.fusion
        return self.accept != "fused" or (fusion is not None and fusion.threshold_prefix < math.inf)

    @property
    def needs_logprobs(self) -> bool:
        """Whether acceptance looks at more of a drafted token than at whether it is exact."""
        fusion = self.profile.fusion
        fused = self.accept == "fused" and fusion is not None and fusion.needs_tokens
        return fused or self.accept == "loose"

    @property
    def asks_earlier(self) -> bool:
        """Whether a finished answer's verdict is compared with those of earlier boundaries."""
        fusion = self.profile.fusion
        return self.accept == "fused" and fusion is not None and fusion.needs_earlier


_FIXED: dict[str, tuple[Turns, AcceptMode | None]] = {
    "fly": ("windows", "loose"),
    "confspec": ("segments", "semantic"),
    "specreason": ("segments", "semantic"),
    "speculative-thinking": ("takeovers", None),
}
# Strategies that are an acceptance mode of their own.


def resolve(options: Options, profile: Profile) -> Policy:
    """Fill in the defaults of the strategy, of the acceptance mode and of the pair's profile.

    Raises:
        UsageError: "fused" was asked for and the profile holds no fusion weights; "loose"
            with a temperature; or a strategy with what contradicts it.
    """
    strategy = options.strategy
    mode: AcceptMode = options.accept or ("fused" if profile.calibrated else "exact")
    turns, accept = _FIXED.get(strategy, ("windows", mode))
    _check_fits(options, turns, accept)
    if accept == "fused" and profile.fusion is None:
        raise UsageError(
            "--accept fused needs a profile with fusion weights for this pair; "
            "give one with --profile FILE, or use --accept exact or semantic."
        )
    if accept == "loose" and options.temperature > 0:
        raise UsageError(
            "Loose acceptance compares a draft with the target's greedy choice; "
            "use --temperature 0, or --accept exact."
        )
    fly = strategy == "fly"
    planned = strategy == "auto"
    by_token = accept in ("exact", "loose")
    windows = {"auto": 0, "fly": 15, "confspec": 512, "specreason": 512, "speculative-thinking": 20}
    return Policy(
        turns=turns,
        accept=accept,
        window=_given(options.window, windows.get(strategy, 16 if by_token else 0)),
        after_reject=options.after_reject or ("redraft" if by_token or planned else "target"),
        rule=options.rule,
        tau_full=_given(options.tau_full, profile.tau_full),
        tau_prefix=_given(options.tau_prefix, profile.tau_prefix),
        loose_entropy=_given(options.loose_entropy, 0.3 if fly else 0.8),
        loose_window=_given(options.loose_window, 6),
        question=options.question or ("score" if strategy == "specreason" else "correct"),
        min_score=options.min_score,
        score_by=options.score_by,
        min_confidence=_given(options.min_confidence, 0.9 if strategy == "confspec" else None),
        confidence_by=options.confidence_by,
        takeover=options.takeover,
        cues=options.cues,
        min_progress=1 if fly else options.min_progress,
        draft_budget=options.draft_budget,
        delta=options.delta,
        max_forks=options.max_forks,
        profile=profile,
    )


def _check_fits(options: Options, turns: Turns, accept: AcceptMode | None) -> None:
    if options.strategy in _FIXED and options.accept not in (None, accept):
        raise UsageError(
            f"--strategy {options.strategy} has a way of accepting of its own; leave out "
            f"--accept {options.accept}, or use --strategy parse."
        )
    if turns != "windows" and options.after_reject is not None:
        raise UsageError(
            f"--strategy {options.strategy} says itself who goes on after a rejection; leave out "
            "--after-reject, or use --strategy parse."
        )
    if turns == "windows" and options.confidence_by == "verdict":
        raise UsageError(
            "The draft judges segments only; --confidence-by verdict needs --strategy confspec."
        )
    if turns == "windows" and options.question == "score":
        raise UsageError(
            "Marks are given to segments; --question score needs --strategy specreason or confspec."
        )


_Value = TypeVar("_Value")


def _given(value: _Value | None, default: _Value) -> _Value:
    return default if value is None else value
