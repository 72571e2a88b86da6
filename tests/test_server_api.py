"""The server's answers: whole, streamed, and refused, on tiny models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import QUESTION, Running, events, serving
from tiny_gguf import READABLE

from parse_local import Options, load_pair

EXACT: dict[str, Any] = {
    "n_ctx": 1024,
    "n_threads": 1,
    "kv_type": "f32",
    "flash_attn": "off",
    "spec": "none",
}
DEFAULTS = Options(strategy="parse", accept="exact", window=4, max_tokens=20)


def pair(tiny: Callable[..., Path]) -> dict[str, Path]:
    return {
        "target": tiny(seed=1, bias=READABLE),
        "draft": tiny(seed=3, weights_from=1, bias=READABLE),
    }


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    files = pair(tiny)
    with serving(lambda: load_pair(**files, **EXACT), options=DEFAULTS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def expected(tiny: Callable[..., Path], load_once: Callable[..., Any]) -> Any:
    """What the engine says itself."""
    engine = load_once(**pair(tiny))
    return lambda **options: engine.generate(QUESTION, Options(**{"max_tokens": 20, **options}))


def ask(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": QUESTION, **body})


def test_an_answer_is_the_engines(client: httpx.Client, expected: Any) -> None:
    result = expected(strategy="target")
    found = ask(client).json()
    assert found["object"] == "chat.completion"
    assert found["model"] == client.get("/v1/models").json()["data"][0]["id"]
    (choice,) = found["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == result.text
    assert choice["finish_reason"] == "length"
    usage = found["usage"]
    assert usage["prompt_tokens"] == result.usage.prompt_tokens
    assert usage["completion_tokens"] == 20
    assert usage["total_tokens"] == result.usage.prompt_tokens + 20
    assert usage["parse"]["strategy"] == "parse"
    assert usage["parse"]["accept"] == "exact"
    assert usage["parse"]["accepted_share"] == usage["parse"]["tokens"]["accepted"] / 20 > 0


def test_a_stream_is_the_same_answer(client: httpx.Client, expected: Any) -> None:
    with client.stream(
        "POST",
        "/v1/chat/completions",
        json={"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}},
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first, *chunks, last, figures = events(response)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({chunk["id"] for chunk in (first, *chunks, last, figures)}) == 1
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert len(texts) > 2
    assert "".join(texts) == expected(strategy="target").text
    assert [c["choices"][0]["finish_reason"] for c in (*chunks, last)] == [None] * len(chunks) + [
        "length"
    ]
    assert last["choices"][0]["delta"] == {}
    assert figures["choices"] == []
    assert figures["usage"]["completion_tokens"] == 20
    assert all(chunk["usage"] is None for chunk in (first, *chunks, last))


def test_a_plain_stream_has_no_usage(client: httpx.Client) -> None:
    body = {"messages": QUESTION, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = events(response)
    assert not any("usage" in chunk or "parse" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 2}, "n", "`n`: 2 is not supported; it can be 1."),
    ({"audio": {}}, "audio", "`audio`: {} is not supported; it can be left out."),
    ({"nonsense": 1}, "nonsense", "`nonsense` is not supported."),
    ({"parse": {"nonsense": 1}}, "parse.nonsense", "`parse.nonsense` is not supported."),
    ({"messages": []}, "messages", "`messages`: List should have at least 1 item"),
    ({"max_tokens": "5"}, "max_tokens", "`max_tokens`: Input should be a valid integer."),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "`messages[0].content[0].type`: 'image_url' is not supported; it can be 'text'.",
    ),
]


@pytest.mark.parametrize(("body", "param", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_is_not_supported_is_named(
    client: httpx.Client, body: dict[str, Any], param: str, message: str
) -> None:
    response = ask(client, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(message)
    assert error["type"] == "invalid_request_error"
