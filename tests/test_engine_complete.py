"""`Engine.complete`: a text is gone on with, without a chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import check_contract, greedy_text

from parse_local import Options
from parse_local.errors import ContextLengthError, UsageError

PROMPT = "hello there<|im_start|>"


@pytest.fixture(scope="module")
def pair(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    return load_once(target=tiny(seed=1), draft=tiny(seed=2, weights_from=1))


def complete(engine: Any, prompt: str, **options: Any) -> Any:
    options = {"strategy": "parse", "max_tokens": 24, **options}
    events = list(engine.complete(prompt, Options(**options)))
    return check_contract(events, max_tokens=options["max_tokens"])


def test_the_prompt_is_the_text_and_nothing_else(pair: Any) -> None:
    model = pair.target.model
    tokens = model.tokenize("hello there") + model.tokenize("<|im_start|>", special=True)
    found = complete(pair, PROMPT)
    assert found.usage.prompt_tokens == len(tokens)
    assert found.text == model.detokenize(greedy_text(model, tokens, 24)).decode("utf-8", "replace")


@pytest.mark.parametrize("strategy", ["auto", "parse", "target", "speculative-thinking"])
def test_drafted_as_any_answer(pair: Any, strategy: str) -> None:
    found = complete(pair, PROMPT, strategy=strategy)
    assert found.usage.completion_tokens == 24
    if strategy != "speculative-thinking":  # which is not the target's own text
        assert found.text == complete(pair, PROMPT, strategy="target").text
    if strategy == "parse":
        assert found.tokens.n_accept > 0
    assert found.tokens.suffix_decoded == 0


@pytest.mark.parametrize(
    "options", [{"accept": "semantic"}, {"strategy": "confspec"}, {"strategy": "specreason"}]
)
def test_there_is_no_question_to_judge(pair: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="has no question"):
        complete(pair, PROMPT, **options)


def test_prompts_that_cannot_be_gone_on_with(pair: Any) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        complete(pair, "")
    with pytest.raises(ContextLengthError, match="raise --ctx"):
        complete(pair, "?!" * 600)


def test_what_cannot_fit_is_not_given_to_the_tokenizer(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three times its length takes llama.cpp nine times as long, for texts such as this one.
    model, n_ctx = pair.target.model, pair.n_ctx
    assert model.longest_token == max(
        len(model.token_text(t).encode()) for t in range(model.n_vocab)
    )
    text = "a" * (n_ctx * max(16, model.longest_token) + 1)
    monkeypatch.setattr(model, "tokenize", None)
    with pytest.raises(ContextLengthError, match=r"at least [\d]+ tokens .* raise --ctx"):
        complete(pair, text)
