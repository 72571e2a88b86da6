"""Other programs in a run, over real HTTP and in real processes."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import ask
from chat_server import serving

from parse_local import LoadOptions
from parse_local.bench.openai_peer import OpenAIPeer
from parse_local.bench.peers import Peers, parse_peer
from parse_local.errors import PeerError, UsageError

posix = pytest.mark.skipif(os.name != "posix", reason="a script stands for the program")


@pytest.fixture(scope="module")
def engine(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    return load_once(target=tiny(seed=1), draft=tiny(seed=2, weights_from=1))


def peer(engine: Any, url: str, **arguments: Any) -> OpenAIPeer:
    return OpenAIPeer("peer", url, vocabulary=engine.target.model, **arguments)


def test_an_answer_is_streamed_and_timed(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with serving(pause_s=0.1) as server:
        asked = peer(engine, server.url, model="m", extra={"cache_prompt": False})
        result = asked.answer(ask("What?"), 50).result
    assert result.text == "2 is it"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (7, 3)
    # Three pieces, each after a pause: the first text comes a third of the way.
    assert 0.1 <= result.timings.ttft_s < result.timings.total_s - 0.15
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer sesame"
    assert body == {
        "model": "m",
        "messages": ask("What?"),
        "max_tokens": 50,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": False,
    }


def test_llama_server_says_what_it_drafted(engine: Any) -> None:
    timings = {"predicted_n": 9, "prompt_ms": 500, "predicted_ms": 250, "draft_n": 8}
    with serving(tail={"timings": {**timings, "draft_n_accepted": 6}}) as server:
        result = peer(engine, server.url, counts_end=True).answer(ask("?"), 5).result
    assert result.usage.completion_tokens == 9 - 1  # the end of the answer is no part of it
    assert (result.tokens.spec_proposed, result.tokens.spec_accepted) == (8, 6)
    assert (result.timings.prompt_s, result.timings.target_s) == (0.5, 0.25)


def test_who_does_not_count_is_counted_in_the_targets_tokens(engine: Any) -> None:
    with serving(tail={}) as server:
        result = peer(engine, server.url).answer(ask("?"), 5).result
    assert result.usage.completion_tokens == len(engine.target.model.tokenize("2 is it"))


def test_what_goes_wrong_is_one_sentence(engine: Any) -> None:
    with serving(status=404) as server:
        asked = peer(engine, server.url)
        with pytest.raises(PeerError, match=r"/v1 answered with status 404: No such model\.$"):
            asked.answer(ask("?"), 5)
    with pytest.raises(PeerError, match=r"does not answer \(.*\); is it running\?"):
        asked.answer(ask("?"), 5)  # the server is gone
    for url in ("localhost:8080", "ftp://x", "http://", "http://x:y/"):
        with pytest.raises(PeerError, match="no address"):
            peer(engine, url)


def test_cancelling_closes_the_connection(engine: Any) -> None:
    with serving(pieces=("a",) * 100, pause_s=0.1) as server:
        asked = peer(engine, server.url)
        threading.Timer(0.3, asked.cancel).start()
        started = time.monotonic()
        assert asked.answer(ask("?"), 5).result.finish_reason == "cancelled"
        assert time.monotonic() - started < 5


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that takes llama-server's arguments."""
    server = Path(__file__).with_name("chat_server.py")
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{server}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


@posix
def test_llama_server_is_started_in_its_modes_and_ended(engine: Any, program: Path) -> None:
    options = LoadOptions(kv_type="f32", flash_attn="off", n_ctx=1024)
    with Peers([parse_peer(f"llama-server={program}")], engine, options) as peers:
        assert [s.name for s in peers.systems] == [
            "llama-server target",
            "llama-server draft-16",
            "llama-server draft-3",
            "llama-server ngram",
        ]
        processes = [psutil.Process(s.pid) for s in peers.systems]
        common = [
            *("--model", str(engine.target.model.path), "--ctx-size", "1024"),
            *("--threads", "1", "--threads-batch", "1"),
            *("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"),
        ]
        for process in processes:
            assert process.cmdline()[2 : 2 + len(common)] == common
        draft = processes[1].cmdline()
        assert draft[draft.index("--model-draft") + 1] == str(engine.draft.model.path)
        assert draft[draft.index("--spec-draft-n-max") + 1] == "16"
        assert "--spec-draft-p-min" not in draft  # its own default
        results = [s.answer(ask("?"), 5).result for s in peers.systems]
        assert [r.text for r in results] == ["2 is it"] * 4
        assert [r.tokens.spec_accepted for r in results] == [0, 1, 1, 1]
    assert not any(p.is_running() for p in processes)


@posix
def test_servers_that_do_not_start(engine: Any, program: Path, tmp_path: Path) -> None:
    program.write_text(program.read_text().replace('"$@"', '--fail "$@"'))
    with pytest.raises(PeerError, match="did not start: error: cannot load the model"):
        Peers([parse_peer(f"llama-server={program}")], engine, LoadOptions())
    with pytest.raises(PeerError, match="absent is no program; give --peer llama-server=PATH"):
        Peers([parse_peer(f"llama-server={tmp_path / 'absent'}")], engine, LoadOptions())


@posix
def test_modes_that_draft_need_a_draft(
    load: Callable[..., Any], tiny: Callable[..., Path], program: Path
) -> None:
    alone = load(target=tiny(seed=1))
    with pytest.raises(UsageError, match="draft-3 needs a draft model"):
        Peers([parse_peer(f"llama-server={program},modes=draft-3")], alone, LoadOptions())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel does this")
def test_a_killed_benchmark_leaves_no_server(program: Path, tmp_path: Path) -> None:
    import signal
    import subprocess

    code = (
        "import sys, time\nfrom types import SimpleNamespace as N\n"
        "from parse_local import LoadOptions\nfrom parse_local.bench.peers import *\n"
        "target = N(model=N(path='m'), context=N(n_ctx=1, n_threads=1))\n"
        f"spec = parse_peer('llama-server={program},modes=target')\n"
        "peers = Peers([spec], N(target=target, draft=None), LoadOptions())\n"
        "print(peers.systems[0].pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        server.wait(timeout=10)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
