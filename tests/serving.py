"""A real server in a thread of this process, and clients for it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tiny_gguf import READABLE

from parse_local.engine import Engine
from parse_local.policy import Options
from parse_local.server.run import Server, listen
from parse_local.server.settings import Settings
from parse_local.server.worker import Worker

QUESTION = [{"role": "user", "content": "hello there"}]


class Running:
    """A server that answers at `url`.

    Args:
        load: the worker's.
        options: defaults of requests.
        settings: with port 0.
    """

    def __init__(self, load: Callable[[], Engine], options: Options, settings: Settings) -> None:
        listener = listen(settings)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.worker = Worker(load, n_queued=settings.limits.queued)
        self.server = Server(self.worker, settings, options)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]})

    def client(self, **arguments: Any) -> httpx.Client:
        """A client of this server alone."""
        return httpx.Client(base_url=self.url, timeout=30, **arguments)

    def wait(self) -> None:
        """Until the models are loaded."""
        with self.client() as client:
            until(lambda: client.get("/health").status_code == 200)

    def stop(self) -> None:
        """As by a signal."""
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        assert self.worker.join(20)


@contextmanager
def serving(
    load: Callable[[], Engine], *, options: Options | None = None, **settings: Any
) -> Iterator[Running]:
    """A server, its models loaded, stopped in the end.

    Args:
        load: returns the engine; called in the generation thread, which closes it.
        options: defaults of requests, 20 tokens of exact windows unless given.
        settings: fields of `Settings`.
    """
    options = options or Options(strategy="parse", accept="exact", window=4, max_tokens=20)
    running = Running(load, options, Settings(port=0, **settings))
    running.thread.start()
    try:
        running.wait()
        yield running
    finally:
        running.stop()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream; asserts that it ends as OpenAI's do."""
    found = [line[len("data: ") :] for line in response.iter_lines() if line]
    assert found[-1] == "[DONE]"
    return [json.loads(data) for data in found[:-1]]


def tiny_pair(tiny: Callable[..., Path]) -> dict[str, Path]:
    """Files of a pair that writes readable text and never ends by itself."""
    return {
        "target": tiny(seed=1, bias=READABLE),
        "draft": tiny(seed=3, weights_from=1, bias=READABLE),
    }
