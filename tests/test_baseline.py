from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.baseline import Baseline

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def test_nothing_is_said_before_three_decodes() -> None:
    baseline = Baseline()
    baseline.observe(0.1)
    baseline.observe(0.1)
    assert (baseline.token_s, baseline.n_missing) == (None, 1)
    assert baseline.speedup(10, 0, 1) is None


def test_a_stalled_decode_does_not_count_much() -> None:
    baseline = Baseline()
    for seconds in (0.1, 5.0, 0.1):
        baseline.observe(seconds)
    # 2 s of prompt and 20 tokens of 0.1 s alone, 3 s as it went.
    assert baseline.speedup(20, 2.0, 3.0) == pytest.approx(4 / 3)


def test_the_last_decodes_decide() -> None:
    baseline = Baseline()
    for seconds in [0.1] * 1000 + [0.2] * (Baseline.KEPT // 2 + 1):
        baseline.observe(seconds)
    assert baseline.token_s == 0.2


def test_an_answer_without_anything_is_not_faster() -> None:
    baseline = Baseline()
    for _ in range(3):
        baseline.observe(0.1)
    assert baseline.speedup(0, 1.0, 1.0) is None


@pytest.fixture(scope="module")
def engine(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    target = tiny(seed=1, bias=READABLE)
    return load_once(target=target, draft=tiny(seed=2, bias=READABLE), spec="none")


def test_an_engine_measures_before_it_says_anything(engine: Any) -> None:
    engine.forget()
    engine.controller.baseline = Baseline()
    drafted = engine.generate(MESSAGES, Options(strategy="parse", max_tokens=8, window=8))
    alone = engine.generate(MESSAGES, Options(strategy="target", max_tokens=8))
    assert engine.controller.baseline.n_missing == 0
    again = engine.generate(MESSAGES, Options(strategy="parse", max_tokens=8, window=8))
    # Two models of random weights agree on nothing: the target wrote some by itself too,
    # which may have been enough for a figure in the first answer.
    assert alone.speedup is None
    plain_s = engine.controller.baseline.token_s
    n = again.usage.completion_tokens + (again.finish_reason == "stop")
    alone_s = again.timings.prompt_s + n * plain_s
    assert again.speedup == pytest.approx(alone_s / again.timings.total_s, rel=0.05)
    assert drafted.text == alone.text == again.text


def test_the_first_planned_answer_has_a_figure(engine: Any) -> None:
    engine.forget()
    engine.controller.baseline = Baseline()
    result = engine.generate(MESSAGES, Options(strategy="auto", max_tokens=12))
    helped = bool(result.tokens.draft_decoded)
    assert engine.controller.baseline.n_missing == 0
    assert (result.speedup is not None) == helped


def test_progress_of_a_running_answer(engine: Any) -> None:
    stream = engine.stream(MESSAGES, Options(strategy="target", max_tokens=8))
    next(stream)
    first = engine.progress
    assert first.prompt_tokens > 0
    assert first.completion_tokens >= 1
    *_, finished = stream
    usage = finished.result.usage
    last = engine.progress
    assert (last.prompt_tokens, last.completion_tokens) == (
        usage.prompt_tokens,
        usage.completion_tokens,
    )
    assert first.n_accept == 0
