"""`parse-local serve` as a process: how it starts, refuses to start, and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from serving import QUESTION
from tiny_gguf import READABLE

from parse_local.cli import main
from parse_local.cli_serve import _api_key

COMMAND = [sys.executable, "-m", "parse_local.cli", "serve", "--port", "0", "--threads", "1"]


@pytest.fixture
def model(tiny: Callable[..., Path]) -> Path:
    return tiny(seed=1, bias=READABLE, n_layer=2)


@contextmanager
def process(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and its address once it is ready."""
    arguments = [*COMMAND, "--target", str(model), "--ctx", "8192", "--strategy", "target"]
    started = subprocess.Popen(
        [*arguments, *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        # A suite that runs in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert started.stderr is not None
    try:
        for line in started.stderr:
            if found := re.search(r"Ready: \S+ at (\S+) ", line):
                break
        else:
            pytest.fail(f"it ended with {started.wait()}")
        yield started, found[1]
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_stop_ends_the_running_answer_properly(model: Path) -> None:
    with process(model, "--grace", "0.2", "--max-tokens", "8000") as (server, url):
        body = {"messages": QUESTION, "stream": True}
        lines: list[str] = []
        waiting: list[httpx.Response] = []

        def wait_in_line() -> None:
            waiting.append(httpx.post(f"{url}/v1/chat/completions", json={"messages": QUESTION}))

        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            stream = response.iter_lines()
            lines += [next(stream) for _ in range(6)]
            thread = threading.Thread(target=wait_in_line)
            thread.start()
            while httpx.get(f"{url}/health").json()["waiting"] != 1:
                pass
            server.send_signal(signal.SIGTERM)
            lines += [line for line in stream if line]
        thread.join(20)
        assert server.wait(20) == 0
        assert lines[-1] == "data: [DONE]"
        last = json.loads(lines[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"
        assert waiting[0].status_code == 503
        assert waiting[0].json()["error"]["code"] == "stopping"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        assert server.stderr is not None
        assert "Traceback" not in server.stderr.read()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_short_answer_is_finished_first(model: Path) -> None:
    with process(model, "--grace", "20", "--max-tokens", "300") as (server, url):
        body = {"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            stream = response.iter_lines()
            lines = [next(stream)]
            server.send_signal(signal.SIGINT)
            lines += [line for line in stream if line]
        assert server.wait(20) == 0
        usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
        assert usage["completion_tokens"] == 300


def refused(*arguments: str, status: int = 1) -> str:
    done = CliRunner().invoke(main, ["serve", *arguments])
    assert done.exit_code == status, done.output
    message: str = done.stderr
    assert message.startswith("Error: ")
    assert message.count("\n") == 1
    return message


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"Port {port} is in use" in refused("--port", port)


def test_an_address_that_is_not_there() -> None:
    assert "give another --host" in refused("--host", "127.0.0.1.invalid.", "--api-key", "k")
    assert "give another --host" in refused("--host", "192.0.2.1", "--api-key", "k")


def test_a_missing_model(tmp_path: Path) -> None:
    message = refused("--port", "0", "--target", str(tmp_path / "no.gguf"))
    assert "no.gguf" in message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "my-machine"])
def test_other_machines_need_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARSE_LOCAL_API_KEY", raising=False)
    assert "--api-key" in refused("--host", host, status=2)


def test_keys_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "key"
    empty.write_text("\n")
    assert "is empty" in refused("--api-key-file", str(empty), status=2)
    assert "not both" in refused("--api-key-file", str(empty), "--api-key", "k", status=2)
    monkeypatch.setenv("PARSE_LOCAL_API_KEY", "")
    assert "is empty" in refused("--port", "0", status=2)


def test_a_key_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both get as far as the model, which is missing.
    missing = ("--host", "0.0.0.0", "--port", "0", "--target", str(tmp_path / "no.gguf"))
    key = tmp_path / "key"
    key.write_text("from-a-file\n")
    assert "no.gguf" in refused(*missing, "--api-key-file", str(key))
    monkeypatch.setenv("PARSE_LOCAL_API_KEY", "from-the-environment")
    assert "no.gguf" in refused(*missing)


@pytest.mark.parametrize("given", ["a key ", "\ta key", "a key\n"])
def test_white_space_around_a_key_is_no_part_of_it(given: str) -> None:
    # HTTP drops it, so that no client could send it.
    assert _api_key({"api_key": given, "api_key_file": None, "host": "::"}) == "a key"


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "parse_local.server.run", raising=False)
    message = refused()
    assert "uvicorn is missing" in message
    assert "pip install 'parse-local[server]'" in message
