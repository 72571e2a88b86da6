"""The result as numbers and as JSON."""

from __future__ import annotations

import json

import pytest

from parse_local.events import Boundary, Result, Round, Span, Timings, TokenCounts, Usage

RESULT = Result(
    text="ab",
    finish_reason="length",
    usage=Usage(prompt_tokens=5, completion_tokens=4),
    rounds=(Round(6, 2, 3, (Boundary(2, 4, 0.75, 0.99), Boundary(6, 9, 0.5, 0.98, -1.0, True))),),
    tokens=TokenCounts(draft_decoded=11, target_decoded=12, suffix_decoded=20, n_accept=3),
    timings=Timings(prompt_s=0.123456, total_s=2.0),
    spans=(Span("a", "draft"), Span("b", "target")),
)


def test_rates() -> None:
    assert RESULT.tokens_per_second == 2.0
    assert RESULT.accepted_share == 0.75
    assert (Result().tokens_per_second, Result().accepted_share) == (0.0, 0.0)


def test_json_has_exactly_the_documented_fields() -> None:
    found = json.loads(json.dumps(RESULT.to_json()))
    assert list(found) == [
        "text", "reasoning", "finish_reason", "usage", "rounds", "tokens", "timings", "speedup",
    ]  # fmt: skip
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 4}
    assert found["rounds"] == [
        {
            "n_draft": 6,
            "n_exact": 2,
            "n_accept": 3,
            "boundaries": [2, 6],
            "p_correct": [0.75, 0.5],
            "label_mass": [0.99, 0.98],
        }
    ]
    assert found["tokens"] == {
        "draft_decoded": 11,
        "target_decoded": 12,
        "suffix_decoded": 20,
        "reused": 0,
        "spec_proposed": 0,
        "spec_accepted": 0,
    }
    assert set(found["timings"]) == {
        "prompt_s", "draft_s", "verify_s", "fork_s", "target_s", "total_s", "ttft_s",
    }  # fmt: skip
    assert found["timings"]["prompt_s"] == pytest.approx(0.1235)
