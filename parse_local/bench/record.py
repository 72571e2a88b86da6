"""One answer of a benchmark as it is kept: everything that tables, plots and the page need."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

from parse_local.events import Pass, Result, Span, Timings, TokenCounts


class Key(NamedTuple):
    """What a record is the answer of."""

    repeat: int
    problem: str
    strategy: str


@dataclass(frozen=True)
class Answered:
    """What a system hands back for one problem.

    Args:
        result: text, counts and times.
        rounds: of the engine, in order: the fields of `Round`, with `draft` (the text that was
            judged), `n_kept_chars` (how much of it was accepted), and `start` (characters of
            the answer before it).
    """

    result: Result
    rounds: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Record:
    """One line of answers.jsonl.

    Args:
        problem, strategy, repeat: what it is the answer of.
        correct: what the task's checker says.
        text, finish_reason: as in `Result`.
        spans: the answer's, without reasoning.
        n_prompt, n_tokens: tokens of prompt and answer.
        rounds: as in `Answered`.
        tokens, timings, target_passes, draft_passes: as in `Result`; no passes where another
            program answered.
        peak_bytes: most memory of the answering process while it answered, both models and what
            it had before included; None where it is not known.
        joules: energy of processors and GPUs meanwhile, all programs included; None where the
            platform does not say.
    """

    problem: str
    strategy: str
    repeat: int
    correct: bool
    text: str
    finish_reason: str
    n_prompt: int
    n_tokens: int
    spans: tuple[Span, ...]
    rounds: tuple[dict[str, Any], ...]
    tokens: TokenCounts
    timings: Timings
    target_passes: tuple[Pass, ...] = ()
    draft_passes: tuple[Pass, ...] = ()
    peak_bytes: int | None = None
    joules: float | None = None

    @property
    def key(self) -> Key:
        """What it is the answer of."""
        return Key(self.repeat, self.problem, self.strategy)

    @classmethod
    def of(cls, key: Key, answered: Answered, *, correct: bool, **usage: Any) -> Record:
        """The record of a finished answer; `usage` is `peak_bytes` and `joules`."""
        result = answered.result
        return cls(
            problem=key.problem,
            strategy=key.strategy,
            repeat=key.repeat,
            correct=correct,
            text=result.text,
            finish_reason=result.finish_reason,
            n_prompt=result.usage.prompt_tokens,
            n_tokens=result.usage.completion_tokens,
            spans=tuple(s for s in result.spans if s.channel == "answer"),
            rounds=answered.rounds,
            tokens=result.tokens,
            timings=result.timings,
            target_passes=result.target_passes,
            draft_passes=result.draft_passes,
            **usage,
        )

    def to_json(self) -> dict[str, Any]:
        """The object that is written; rounded to microseconds."""
        found = dataclasses.asdict(self)
        found["timings"] = {name: round(s, 6) for name, s in found["timings"].items()}
        return found

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Record:
        """Undo `to_json`.

        Raises:
            TypeError, KeyError: this is no record.
        """
        return cls(
            **{
                **value,
                "spans": tuple(Span(**span) for span in value["spans"]),
                "rounds": tuple(value["rounds"]),
                "tokens": TokenCounts(**value["tokens"]),
                "timings": Timings(**value["timings"]),
                "target_passes": tuple(Pass(**p) for p in value["target_passes"]),
                "draft_passes": tuple(Pass(**p) for p in value["draft_passes"]),
            }
        )
