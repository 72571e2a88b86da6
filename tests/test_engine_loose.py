"""`loose`: differing tokens pass by FLy's gate, and what is kept is what the gate says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask, greedy_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse_local.llama.context import Context

QUESTION = "hello there"
DRAFTS: dict[str, dict[str, Any]] = {
    "the target itself": {"seed": 1},
    "close": {"seed": 2, "weights_from": 1},
    "far": {"seed": 3},
    "ends early": {"seed": 2, "weights_from": 1, "bias": {"<|im_end|>": 12.0}},
    "other vocabulary": {"seed": 2, "weights_from": 1, "vocab_seed": 5},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    target = tiny(seed=1)
    return {name: load_once(target=target, draft=tiny(**draft)) for name, draft in DRAFTS.items()}


def plain_scores(engine: Any, tokens: list[int]) -> list[tuple[int, float]]:
    """Rank and entropy of each token of an answer, by plain passes and numpy alone."""
    context = Context(engine.target.model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    row = context.last_row(engine.target.prompt(ask(QUESTION)))
    found = []
    for token in tokens:
        logits = row[0].astype(np.float64)
        logprobs = logits - np.logaddexp.reduce(logits)
        entropy = -float((np.exp(logprobs) * logprobs).sum())
        found.append((int((logits > logits[token]).sum()), entropy))
        row = context.last_row([token])
    context.close()
    return found


@pytest.mark.parametrize("window", [0, 1, 3])
def test_what_is_kept_is_what_the_rule_says(engines: dict[str, Any], window: int) -> None:
    engine = engines["close"]
    tokens = greedy_text(engine.draft.model, engine.draft.prompt(ask(QUESTION)), 40)
    scores = plain_scores(engine, tokens)
    n_exact = next(i for i, (rank, _) in enumerate(scores) if rank)
    heights = sorted(entropy for rank, entropy in scores if rank)
    threshold = heights[len(heights) // 3]
    expected = n_exact
    while expected < len(scores):
        following = scores[expected + 1 : expected + 1 + window]
        agreed = len(following) == window and all(rank == 0 for rank, _ in following)
        if scores[expected][0] and not (scores[expected][1] >= threshold and agreed):
            break
        expected += 1
    found = answer(
        engine,
        QUESTION,
        accept="loose",
        window=0,
        after_reject="target",
        loose_entropy=threshold - 1e-5,
        loose_window=window,
        max_tokens=40,
    )
    (only,) = found.rounds
    assert (only.n_exact, only.n_accept, only.boundaries) == (n_exact, expected, ())
    assert found.tokens.suffix_decoded == 0
    assert found.spans[0].source == ("draft" if expected else "target")


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    draft=st.sampled_from(sorted(DRAFTS)),
    strategy=st.sampled_from(["parse", "fly"]),
    window=st.sampled_from([None, 0, 1, 5]),
    max_tokens=st.integers(1, 50),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    stop=st.sampled_from([(), ("X",), ("gw", "%")]),
)
def test_a_target_that_is_never_undecided_enough_writes_its_own_text(
    engines: dict[str, Any], draft: str, strategy: str, window: int | None, **common: Any
) -> None:
    engine = engines[draft]
    alone = answer(engine, QUESTION, strategy="target", **common)
    found = answer(
        engine,
        QUESTION,
        strategy=strategy,
        accept="loose",
        window=window,
        loose_entropy=100.0,  # a vocabulary of 271 tokens has at most log(271) = 5.6
        **common,
    )
    assert (found.text, found.finish_reason) == (alone.text, alone.finish_reason)
    assert all(r.n_accept == r.n_exact for r in found.rounds)


@pytest.mark.parametrize("draft", ["the target itself", "close", "far", "ends early"])
def test_a_gate_that_lets_everything_pass_keeps_the_drafts_text(
    engines: dict[str, Any], draft: str
) -> None:
    engine = engines[draft]
    alone = answer(engine, QUESTION, strategy="draft", max_tokens=30)
    gate = {"loose_entropy": 0.0, "loose_window": 0}
    found = answer(engine, QUESTION, accept="loose", window=0, max_tokens=30, **gate)
    first = found.rounds[0]
    assert first.n_accept == first.n_draft
    if draft == "ends early":  # where the target goes on
        assert found.text.startswith(alone.text.rstrip("\ufffd"))
    else:
        assert found.text == alone.text


def test_loose_keeps_more_than_exact(engines: dict[str, Any]) -> None:
    common = {"window": 0, "after_reject": "target", "max_tokens": 40}
    exact = answer(engines["close"], QUESTION, accept="exact", **common).rounds[0]
    gate = {"loose_entropy": 0.0, "loose_window": 1}
    loose = answer(engines["close"], QUESTION, accept="loose", **gate, **common).rounds[0]
    assert loose.n_exact == exact.n_accept
    assert exact.n_accept < loose.n_accept < loose.n_draft
