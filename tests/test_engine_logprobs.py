"""Log-probabilities: the target's own, of every final token, in line with the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, check_contract
from tiny_gguf import READABLE

import parse_local.engine as engine_module
from parse_local import Options
from parse_local.errors import UsageError
from parse_local.events import Text, TokenLogprob
from parse_local.llama.context import Context

QUESTION = "hello there"
HOW: dict[str, dict[str, Any]] = {
    "parse": {"strategy": "parse", "accept": "exact", "window": 6},
    "auto": {"strategy": "auto"},
    "speculative": {"strategy": "speculative"},
    "target": {"strategy": "target"},
    "semantic": {"strategy": "parse", "accept": "semantic", "tau_full": 0.3, "tau_prefix": 0.5},
    "fly": {"strategy": "fly"},
}
TARGETS: dict[str, dict[str, Any]] = {
    "bytes": {},  # writes halves of characters, and what is none
    "readable": {"bias": {**READABLE, "<|im_end|>": 12.0}},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    return {
        name: load_once(
            target=tiny(seed=1, **more), draft=tiny(seed=2, weights_from=1, **more), spec="ngram"
        )
        for name, more in TARGETS.items()
    }


def written(
    engine: Any, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[int], list[TokenLogprob]]:
    """The result, its tokens, and what was reported of them, text by text."""
    answers: list[Any] = []

    class Kept(engine_module.Answer):
        def __post_init__(self) -> None:
            super().__post_init__()
            answers.append(self)

    monkeypatch.setattr(engine_module, "Answer", Kept)
    events = list(engine.stream(ask(QUESTION), Options(**options)))
    result = check_contract(events, max_tokens=options["max_tokens"])
    texts = [e for e in events if isinstance(e, Text)]
    shown, told = "", b""
    for text in texts:
        shown += text.text
        told += b"".join(t.text for t in text.tokens)
        # What is on the screen begins in tokens that have been reported, and not much more has.
        asked = "logprobs" in options
        assert told.decode("utf-8", "replace").startswith(shown) or "�" in shown or not asked
    return result, answers[-1].tokens, [t for text in texts for t in text.tokens]


def reference(engine: Any, tokens: list[int]) -> np.ndarray:
    """Log-probabilities of each position in a plain pass of the target, shape (n, n_vocab)."""
    context = Context(engine.target.model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    prompt = engine.target.prompt(ask(QUESTION))
    rows = [context.last_row(prompt)[0].astype(float)]
    rows += [context.last_row([t])[0].astype(float) for t in tokens[:-1]]
    context.close()
    logits = np.array(rows)
    return (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - (logits.max(1, keepdims=True))
    )


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("target", TARGETS)
def test_they_are_those_of_a_plain_pass(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch, target: str, how: str
) -> None:
    engine = engines[target]
    result, tokens, read = written(
        engine, monkeypatch, **HOW[how], max_tokens=40, logprobs=3, repeat_penalty=1.2
    )
    assert len(read) == len(tokens) > 10
    data = b"".join(t.text for t in read)
    assert data == engine.target.model.detokenize(tokens)
    assert data.decode("utf-8", "replace") == result.text
    expected = reference(engine, tokens)
    for i, token in enumerate(tokens):
        assert read[i].logprob == pytest.approx(expected[i, token], abs=1e-4)
        best = np.argsort(-expected[i], kind="stable")[:3]
        assert [p for _, p in read[i].top] == pytest.approx(expected[i, best].tolist(), abs=1e-4)
        assert [t for t, _ in read[i].top] == [engine.target.model.piece(int(t)) for t in best]


def test_with_a_temperature_they_are_those_before_the_samplers(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["readable"]
    for how in ("parse", "target"):
        _, tokens, read = written(
            engine, monkeypatch, **HOW[how], max_tokens=30, logprobs=0, temperature=1.5, seed=3
        )
        expected = reference(engine, tokens)
        wanted = [expected[i, token] for i, token in enumerate(tokens)]
        assert [t.logprob for t in read] == pytest.approx(wanted, abs=1e-4)
        assert {t.top for t in read} == {()}


def test_where_no_row_was_read_there_is_none(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"strategy": "confspec", "min_confidence": 0.0, "question": "correct"}
    result, tokens, read = written(
        engines["readable"], monkeypatch, **options, max_tokens=30, logprobs=2
    )
    assert result.tokens.n_accept == len(tokens) == len(read)
    assert {(t.logprob, t.top) for t in read} == {(None, ())}
    assert b"".join(t.text for t in read).decode("utf-8", "replace") == result.text


def test_tokens_of_a_stop_string_are_not_reported(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["readable"]
    whole, *_ = written(engine, monkeypatch, **HOW["target"], max_tokens=40)
    for n in (1, 2, 5):
        for how in ("target", "parse"):
            stop = whole.text[20 : 20 + n]
            result, _, read = written(
                engine, monkeypatch, **HOW[how], max_tokens=40, logprobs=1, stop=(stop,)
            )
            assert result.finish_reason == "stop"
            data = b"".join(t.text for t in read).decode("utf-8", "replace")
            assert data.startswith(result.text)
            assert len(data) - len(result.text) < len(read[-1].text)


def test_nobody_asked(engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    *_, read = written(engines["bytes"], monkeypatch, **HOW["parse"], max_tokens=10)
    assert read == []


@pytest.mark.parametrize("logprobs", [-1, 21])
def test_more_alternatives_than_there_may_be(logprobs: int) -> None:
    with pytest.raises(UsageError, match="logprobs must be between 0 and 20"):
        Options(logprobs=logprobs)
