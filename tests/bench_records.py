"""Records of benchmarks for tests, with only what a test cares about."""

from __future__ import annotations

from typing import Any

from parse_local.bench.record import Record
from parse_local.events import Span, Timings, TokenCounts


def record(problem: str, strategy: str, **values: Any) -> Record:
    """A record; `seconds` and `tokens` make up its speed, other fields as in `Record`."""
    seconds = values.pop("seconds", 1.0)
    text = values.pop("text", "x")
    defaults: dict[str, Any] = {
        "repeat": 0,
        "correct": True,
        "finish_reason": "stop",
        "n_prompt": 10,
        "n_tokens": 10,
        "spans": (Span(text, "target"),),
        "rounds": (),
        "tokens": TokenCounts(),
        "timings": Timings(total_s=seconds, ttft_s=seconds / 2),
    }
    return Record(problem=problem, strategy=strategy, text=text, **{**defaults, **values})


def round_(n_draft: int, n_exact: int, n_accept: int, **values: Any) -> dict[str, Any]:
    """One round of a record whose tokens are one character each."""
    defaults = {
        "start": 0,
        "draft": "d" * n_draft,
        "n_kept_chars": n_accept,
        "n_exact_chars": n_exact,
        "boundaries": [],
        "whole": False,
    }
    return {"n_draft": n_draft, "n_exact": n_exact, "n_accept": n_accept, **defaults, **values}


def boundary(n: int, p_correct: float, **values: Any) -> dict[str, Any]:
    """A verdict behind `n` tokens of one character each."""
    defaults = {"label_mass": 0.99, "terms": {"mean_logprob": -0.5}, "complete": False}
    return {"n_tokens": n, "n_chars": n, "p_correct": p_correct, **defaults, **values}
