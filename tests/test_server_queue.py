"""The generation thread: turns, a full queue, clients that leave, time that is up."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import QUESTION, Running, events, serving, until
from tiny_gguf import READABLE

from parse_local import Options, load_pair
from parse_local.errors import DecodeError
from parse_local.events import Event
from parse_local.llama.context import Context
from parse_local.server.settings import Limits, Settings

LONG = {"messages": QUESTION, "max_tokens": 900, "stream": True}


@pytest.fixture(scope="module")
def engine_loader(tiny: Callable[..., Path]) -> Callable[..., Any]:
    target = tiny(seed=1, bias=READABLE)

    def load() -> Any:
        return load_pair(
            target=target, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off", spec="none",
            n_cached=2,
        )  # fmt: skip

    return load


class Steps:
    """Counts decodes, and lets each one wait for a permit while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_run = 0
        self.open = threading.Event()
        self.open.set()
        run = Context._run

        def counted(context: Context, *decode: Any) -> None:
            assert self.open.wait(20)
            run(context, *decode)
            self.n_run += 1

        monkeypatch.setattr(Context, "_run", counted)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
def server(engine_loader: Callable[..., Any]) -> Iterator[Running]:
    options = Options(strategy="target", max_tokens=8)
    with serving(engine_loader, options=options, limits=Limits(queued=1)) as running:
        yield running


def asking(running: Running, body: dict[str, Any], found: list[Any]) -> threading.Thread:
    def ask() -> None:
        with running.client() as client:
            found.append(client.post("/v1/chat/completions", json=body))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def metric(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found, name
    return float(found[1])


def test_clients_wait_for_their_turn_and_a_full_queue_says_so(
    server: Running, steps: Steps
) -> None:
    body = {"messages": QUESTION}
    answers: list[httpx.Response] = []
    with server.client() as client:
        alone = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        until(lambda: server.worker.n_running == 0)
        steps.open.clear()
        threads = [asking(server, body, answers)]
        until(lambda: server.worker.n_running == 1)
        threads.append(asking(server, body, answers))
        until(lambda: server.worker.n_waiting == 1)
        assert metric(client, "parse_local_queue_length") == 1
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        steps.open.set()
        for thread in threads:
            thread.join(20)
    assert [a.status_code for a in answers] == [200, 200]
    assert all(a.json()["choices"][0]["message"] == alone for a in answers)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_answer_within_one_step(
    server: Running, steps: Steps, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    engine = server.worker.engine
    assert engine is not None
    n_at_cancel: list[int] = []
    cancel = engine.cancel

    def noted() -> None:
        n_at_cancel.append(steps.n_run)
        cancel()
        steps.open.set()

    monkeypatch.setattr(engine, "cancel", noted)
    client = server.client()
    with client.stream("POST", "/v1/chat/completions", json=LONG) as response:
        lines = response.iter_lines()
        for _ in range(8):
            next(lines)
        steps.open.clear()  # nothing is decoded until the cancel has come
    client.close()
    until(lambda: server.worker.n_running == 0)
    assert n_at_cancel
    assert steps.n_run <= n_at_cancel[0] + 1
    with server.client() as client:
        assert metric(client, 'parse_local_answers_total{reason="cancelled"}') == 1
        # The next one is not hurt by it.
        found = client.post("/v1/chat/completions", json={"messages": QUESTION}).json()
        assert found["usage"]["completion_tokens"] == 8


def test_a_client_that_leaves_while_it_waits_is_not_answered(server: Running, steps: Steps) -> None:
    steps.open.clear()
    answers: list[httpx.Response] = []
    thread = asking(server, {"messages": QUESTION}, answers)
    until(lambda: server.worker.n_running == 1)
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as link:
        link.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n"
            b'Content-Type: application/json\r\n\r\n{"prompt": "a"}'
        )
        until(lambda: server.worker.n_waiting == 1)
    until(lambda: server.worker.n_waiting == 0)
    steps.open.set()
    thread.join(20)
    assert answers[0].status_code == 200
    with server.client() as client:
        assert metric(client, 'parse_local_answers_total{reason="length"}') == 1


def test_prefixes_are_found_again_across_conversations(server: Running) -> None:
    def ask(client: httpx.Client, *texts: str) -> dict[str, Any]:
        roles = ("user", "assistant")
        turns = [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)]
        found = client.post("/v1/chat/completions", json={"messages": turns}).json()
        return {**found["usage"], "text": found["choices"][0]["message"]["content"]}

    with server.client() as client:
        first = ask(client, "x" * 50)
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        ask(client, "A different one")
        again = ask(client, "x" * 50, first["text"], "Go on")
        n_cached = again["prompt_tokens_details"]["cached_tokens"]
        assert first["prompt_tokens"] <= n_cached < again["prompt_tokens"]
        assert metric(client, 'parse_local_tokens_total{kind="cached"}') >= n_cached


def test_an_answer_ends_when_its_time_is_up(
    engine_loader: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Context._run

    def slow(context: Context, *decode: Any) -> None:
        time.sleep(0.01)
        run(context, *decode)

    monkeypatch.setattr(Context, "_run", slow)
    options = Options(strategy="target")
    limits = Limits(seconds=1.0)
    with serving(engine_loader, options=options, limits=limits) as running, running.client() as c:
        with c.stream("POST", "/v1/chat/completions", json=LONG) as response:
            chunks = events(response)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        n_texts = sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks)
        assert 0 < n_texts < 200


def test_limits_of_prompt_and_answer(engine_loader: Callable[..., Any]) -> None:
    limits = Limits(prompt_tokens=40, answer_tokens=5, messages=3)
    with serving(engine_loader, limits=limits, options=Options(strategy="target")) as running:
        client = running.client()
        body = {"messages": QUESTION, "max_tokens": 100}
        found = client.post("/v1/chat/completions", json=body).json()
        assert found["usage"]["completion_tokens"] == 5
        for path, long in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "y" * 60}]}),
            ("/v1/completions", {"prompt": "y" * 60}),
        ):
            refused = client.post(path, json=long)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "context_length_exceeded"
            assert "and the server takes 40" in refused.json()["error"]["message"]
        refused = client.post("/v1/chat/completions", json={"messages": QUESTION * 4})
        assert refused.json()["error"]["code"] == "too_many_messages"
        client.close()


def test_requests_wait_until_the_models_are_loaded(engine_loader: Callable[..., Any]) -> None:
    go = threading.Event()

    def load() -> Any:
        assert go.wait(20)
        return engine_loader()

    running = Running(load, Options(strategy="target", max_tokens=3), Settings(port=0))
    running.thread.start()
    try:
        with running.client() as client:
            until(lambda: running.server.started)
            health = client.get("/health")
            assert health.status_code == 503
            assert health.json()["status"] == "loading"
            refused = client.post("/v1/chat/completions", json={"messages": QUESTION})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "loading"
            assert refused.headers["retry-after"] == "2"
            assert client.get("/v1/models").status_code == 503
            go.set()
            running.wait()
            assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
    finally:
        go.set()
        running.stop()


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (DecodeError("llama.cpp failed."), 503, "engine_failed"),
        (RuntimeError("secret"), 500, "internal_error"),
    ],
)
def test_a_failure_ends_its_own_request_alone(
    server: Running, monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int, code: str
) -> None:
    engine = server.worker.engine
    assert engine is not None
    stream = engine.stream
    n_before = 0

    def failing(*arguments: Any, **options: Any) -> Iterator[Event]:
        for i, event in enumerate(stream(*arguments, **options)):
            if i == n_before:
                raise raised
            yield event

    with server.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "stream", failing)
            response = client.post("/v1/chat/completions", json={"messages": QUESTION})
            assert response.status_code == status
            assert response.json()["error"]["code"] == code
            assert "secret" not in response.text
            n_before = 3  # too late for a status: the stream ends with the error
            streamed = client.post("/v1/chat/completions", json=LONG)
            *_, last = [line for line in streamed.text.splitlines() if line]
            assert streamed.status_code == 200
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == code
        found = client.post("/v1/chat/completions", json={"messages": QUESTION})
        assert found.json()["usage"]["completion_tokens"] == 8
