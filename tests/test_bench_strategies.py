"""What --strategies and --peer take, and how they say no."""

from __future__ import annotations

import sys

import pytest

from parse_local.bench.peers import parse_peer
from parse_local.bench.systems import parse_strategies
from parse_local.errors import UsageError


def test_items_keep_their_names_and_their_options() -> None:
    found = parse_strategies(
        "parse, target,parse:accept=semantic,window=64,draft-budget=1.5,speculative"
    )
    assert [item.name for item in found] == [
        "parse",
        "target",
        "parse:accept=semantic,window=64,draft-budget=1.5",
        "speculative",
    ]
    semantic = found[2].options
    assert (semantic.strategy, semantic.accept, semantic.window) == ("parse", "semantic", 64)
    assert semantic.draft_budget == 1.5
    assert found[3].options.strategy == "speculative"


def test_the_target_is_always_among_them() -> None:
    assert [i.name for i in parse_strategies("parse")] == ["target", "parse"]
    assert [i.name for i in parse_strategies("")] == ["target"]
    # With options it is something else.
    assert [i.name for i in parse_strategies("target:temperature=1")] == [
        "target",
        "target:temperature=1",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prase", "There is no strategy 'prase'; --strategies takes: "),
        ("parse:acept=exact", "'parse:acept=exact' has no option 'acept'; there are: accept, "),
        ("parse:window", "'parse:window' has no option 'window'"),
        ("parse:window=ten", "window in 'parse:window=ten' must be a number, not 'ten'."),
        ("parse:thinking=yes", "must be true or false, not 'yes'."),
        ("parse:accept=nice", "'parse:accept=nice' does not work: accept='nice' is not one of"),
        ("parse:tau_full=2", "does not work: tau_full must be between 0 and 1"),
        ("parse:max_tokens=5", "has no option 'max_tokens'"),
        ("parse,parse", "--strategies names 'parse' twice; leave one out."),
        ("window=5", "There is no strategy 'window=5'"),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_strategies(text)
    assert said in str(raised.value)


def test_peers() -> None:
    server = parse_peer("llama-server=/opt/llama-server,modes=target+ngram")
    assert (server.kind, server.where) == ("llama-server", "/opt/llama-server")
    assert server.options == {"modes": "target+ngram"}
    url = parse_peer("openai=http://localhost:1/v1,model=a/b")
    assert (url.kind, url.where, url.options["model"]) == ("openai", "http://localhost:1/v1", "a/b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llama-server", "'llama-server' is none of: llama-server=PATH, openai=URL, mlx_lm=MODEL"),
        ("ollama=x", "is none of"),
        ("openai=http://x,key=secret", "is none of"),
        ("llama-server=x,modes=target+turbo", "has no mode 'turbo'; there are: target+draft-16+"),
    ],
)
def test_mistaken_peers(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_peer(text)
    assert said in str(raised.value)


@pytest.mark.skipif(sys.platform == "darwin", reason="it may run here")
def test_mlx_is_for_apple() -> None:
    with pytest.raises(UsageError, match="runs on Apple Silicon only; leave it out here"):
        parse_peer("mlx_lm=some/model")
