"""A conversation that ends with the assistant's own words: the answer goes on with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import answer, ask
from tiny_gguf import READABLE

from parse_local.errors import ContextLengthError, UsageError

TOOL = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def pair(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    target = tiny(seed=1, bias=READABLE)
    return load_once(target=target, draft=tiny(seed=3, weights_from=1, bias=READABLE), n_ctx=512)


@pytest.mark.parametrize("n", [1, 7, 12])
@pytest.mark.parametrize(
    "how",
    [
        {"strategy": "target"},
        {"strategy": "auto"},
        {"window": 3},
        {"accept": "semantic", "tau_full": 1, "tau_prefix": 1},
    ],
    ids=str,
)
def test_what_follows_is_what_would_have_followed(pair: Any, how: dict[str, Any], n: int) -> None:
    whole = answer(pair, "hello", max_tokens=40, strategy="target").text
    assert whole[:n].isascii()  # whose characters are tokens here
    begun = {"role": "assistant", "content": whole[:n]}
    found = answer(pair, [*ask("hello"), begun], max_tokens=40 - n, **how)
    assert found.text == whole[n:]


def test_no_words_are_no_beginning(pair: Any) -> None:
    plain = answer(pair, "hello", max_tokens=10)
    for content in ("", None):
        begun = {"role": "assistant", "content": content}
        found = answer(pair, [*ask("hello"), begun], max_tokens=10)
        assert found.text == plain.text
        assert found.usage == plain.usage


def test_what_cannot_be(pair: Any) -> None:
    begun = {"role": "assistant", "content": "Well,"}
    with pytest.raises(UsageError, match="begun with words cannot be made a call"):
        pair.generate([*ask("hello"), begun], tools=[TOOL], tool_choice="required")
    for much in (600, 5_000_000):
        with pytest.raises(ContextLengthError, match="raise --ctx"):
            answer(pair, [*ask("hello"), {**begun, "content": "?" * much}])
