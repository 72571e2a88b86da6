"""`parse-local chat` on tiny models: what it leaves on the disk, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from parse_local.cli import main
from parse_local.paths import history_file, sessions_file
from parse_local.sessions import SessionStore


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def files(tiny: Callable[..., Path], home: Path) -> list[str]:
    """Options that name a tiny pair, with the user's directories out of the way."""
    target, draft = tiny(seed=1), tiny(seed=2, weights_from=1)
    return [
        *("--target", str(target), "--draft", str(draft)),
        *("--threads", "1", "--ctx", "512", "--kv-type", "f32", "--flash-attn", "off"),
    ]


def chat(*arguments: Any, input: str = "") -> Result:
    """A chat whose message is piped in."""
    result = CliRunner().invoke(main, ["chat", *map(str, arguments)], input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def kept() -> list[tuple[str, list[str]]]:
    """The title and the texts of every session, the latest first."""
    with SessionStore(sessions_file()) as store:
        return [(s.title, [m.content for m in store.messages(s.id)]) for s in store.sessions()]


def test_a_session_is_kept_and_resumed(files: list[str], home: Path) -> None:
    how = [*files, "--max-tokens", 8, "--top-k", 3, "--system", "Be brief."]
    first = chat(*how, "how many", input="one two\n")
    assert first.exit_code == 0, first.stderr
    ((title, (question, answer)),) = kept()
    assert (title, question) == ("one two how many", "one two\n\nhow many")
    with SessionStore(sessions_file()) as store:
        session = store.find()
        figures = store.messages(session.id)[1].figures
    assert session.models == {"draft": files[3], "target": files[1]}
    assert session.system == "Be brief."
    assert session.options == {"max_tokens": 8, "top_k": 3}
    assert figures["usage"]["completion_tokens"] == 8
    assert figures["accepted_share"] >= 0

    # Models, system prompt and options come back; options given now win.
    load = files[4:]
    second = chat(*load, "--resume", session.id[:6], "--max-tokens", 5, input="again")
    assert second.exit_code == 0, second.stderr
    ((title, texts),) = kept()
    assert texts[:3] == [question, answer, "again"]
    with SessionStore(sessions_file()) as store:
        after = store.find()
        assert store.messages(after.id)[3].figures["usage"]["completion_tokens"] == 5
    assert (after.models, after.options) == (session.models, {"max_tokens": 5, "top_k": 3})
    assert after.system == "Be brief."


def test_reasoning_is_kept_apart(tiny: Callable[..., Path], home: Path) -> None:
    template = (Path(__file__).parent / "chat_templates" / "deepseek-r1.jinja").read_text("utf-8")
    model = tiny(seed=1, template=template)  # its prompt opens a block that nothing closes
    how = ["--target", model, "--draft", model, "--threads", 1, "--strategy", "target", "--think"]
    done = chat(*how, "--max-tokens", 8, input="hello")
    assert done.exit_code == 0, done.stderr
    assert "It thought and gave no answer; /regen asks again, a larger --max-tokens" in done.stderr
    with SessionStore(sessions_file()) as store:
        question, thought = store.messages(store.find().id)
    assert (question.content, question.in_context) == ("hello", False)
    assert (thought.content, thought.finish_reason) == ("", "length")
    assert "".join(s.text for s in thought.spans if s.channel == "reasoning") == thought.reasoning
    assert len(thought.reasoning) >= 8
    shown = CliRunner().invoke(main, ["sessions", "show", "--reasoning", latest()])
    assert "> hello" in shown.stdout
    # The next question is not asked behind an empty answer.
    assert chat(*how, "--max-tokens", 8, "--resume", input="hello").exit_code == 0
    with SessionStore(sessions_file()) as store:
        prompts = [m.figures["usage"]["prompt_tokens"] for m in store.messages(latest())[1::2]]
    assert prompts[0] == prompts[1]


def test_no_history_keeps_nothing(files: list[str], home: Path) -> None:
    assert chat(*files, "--no-history", "--max-tokens", 4, input="hello").exit_code == 0
    assert not home.exists() or not list(home.rglob("*.db*"))
    assert not history_file().exists()
    done = chat(*files, "--no-history", "--resume", input="hello")
    assert done.exit_code == 2
    assert "--resume needs the history that --no-history leaves out" in done.stderr


def test_a_question_may_stand_behind_resume(files: list[str]) -> None:
    assert chat(*files, "--max-tokens", 4, "hello there").exit_code == 0
    assert chat(*files, "--max-tokens", 4, "--resume", "and in one line?").exit_code == 0
    ((_, texts),) = kept()
    assert texts[0::2] == ["hello there", "and in one line?"]


def test_there_is_nothing_to_resume(files: list[str]) -> None:
    for id in ([], ["--quiet", "--resume", "abc"]):
        done = chat("--resume", *files, *id, input="hello")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: There is no session ")


def test_a_question_alone_and_nothing_at_all(files: list[str]) -> None:
    assert chat(*files, "--max-tokens", 4, "hello there").exit_code == 0
    assert kept()[0][1][0] == "hello there"
    assert chat(*files).exit_code == 2


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_costs_the_history_only(files: list[str], home: Path) -> None:
    home.mkdir()
    home.chmod(0o500)
    done = chat(*files, "--max-tokens", 8, input="hello")
    assert done.exit_code == 0
    assert len(done.stdout) > 1
    assert done.stderr.count("cannot be used (") == 1


def test_a_place_that_is_no_directory_costs_the_history_only(
    files: list[str], home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    home.write_text("")
    done = chat(*files, "--max-tokens", 8, input="hello")
    assert done.exit_code == 0, done.stderr
    assert len(done.stdout) > 1
    assert done.stderr.count("cannot be used (") == 1
    assert "This chat is not kept." in done.stderr


@contextmanager
def full_disk(path: Path, n_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_a_full_disk_costs_the_history_only(files: list[str], home: Path) -> None:
    whole = chat(*files, "--max-tokens", 100, input="hello").stdout
    (session,) = kept()
    log = sessions_file().with_name("sessions.db-wal")
    with full_disk(log, sessions_file().stat().st_size):
        done = chat(*files, "--max-tokens", 100, input="hello")
    assert done.exit_code == 0
    assert done.stdout == whole
    assert done.stderr.count("The sessions in ") == 1
    assert "The chat goes on without." in done.stderr or "This chat is not kept." in done.stderr
    assert session in kept()
    with sqlite3.connect(sessions_file()) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# killed


@pytest.fixture
def slow(tiny: Callable[..., Path], home: Path) -> list[str]:
    """A target that writes for many seconds and does not end by itself."""
    target = tiny(seed=5, n_layer=4, n_embd=256, bias={"e": 12.0, "t": 11.0, "<|im_end|>": -60.0})
    return ["--target", str(target), "--threads", "1", "--ctx", "8192", "--max-tokens", "8000"]


def start(slow: list[str], question: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parse_local.cli", "chat", "--strategy", "target", *slow]
    # A pair is what the chat loads; the target is its own draft.
    command += ["--draft", slow[1], "--spec", "none", question]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    )


def read_until(process: subprocess.Popen[bytes], n: int) -> bytes:
    assert process.stdout is not None
    data = b""
    while len(data) < n:
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, process.stderr.read() if process.stderr else b""
        data += piece
    return data


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_killed_chat_leaves_question_and_final_text(slow: list[str], home: Path) -> None:
    chats = [start(slow, f"question {i}") for i in range(2)]  # two at once
    try:
        shown = [read_until(process, 1) for process in chats]
        time.sleep(0.7)  # longer than between two writes
        before = [data + read_until(p, 1) for data, p in zip(shown, chats, strict=True)]
        with sqlite3.connect(sessions_file()) as db:  # others may look while they write
            rows = db.execute("SELECT role, length(content) FROM messages").fetchall()
        assert [role for role, _ in rows].count("user") == 2
        time.sleep(0.7)
        assert all(process.poll() is None for process in chats), "the answers were too short"
    finally:
        for process in chats:
            process.send_signal(signal.SIGKILL)
    after = [data + process.communicate()[0] for data, process in zip(before, chats, strict=True)]

    with sqlite3.connect(sessions_file()) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    found = dict(kept())
    for i in range(2):
        question, answer = found[f"question {i}"]
        assert question == f"question {i}"
        text = after[i].decode(errors="replace")
        assert text.startswith(answer)
        # All that had been shown before the last write, at the least.
        assert len(answer) >= len(before[i].decode(errors="replace")) > 0
    with SessionStore(sessions_file()) as store:
        ends = [store.messages(s.id)[1].finish_reason for s in store.sessions()]
    assert ends == [None, None]

    # It can be resumed: what was final is part of the conversation.
    done = chat(*slow, "--resume", "--max-tokens", 3, "--draft", slow[1], input="and then")
    assert done.exit_code == 0, done.stderr
    (_, (_, _, asked, _)), *_ = kept()
    assert asked == "and then"
    exported = CliRunner().invoke(main, ["sessions", "export", "--format", "json", latest()])
    assert [m["finish_reason"] for m in json.loads(exported.stdout)["messages"][1::2]] == [
        None,
        "length",
    ]


def latest() -> str:
    with SessionStore(sessions_file()) as store:
        return store.find().id


# at a terminal


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudoterminal")
def test_nothing_is_kept_of_a_terminal_either(files: list[str], home: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "parse_local.cli", "chat", *files, "--max-tokens", "4"]
    command += ["--no-history", "hello there"]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        for answered, keys in ((b"tok/s", b"typed later\r"), (b"tok/s", b"\x04")):
            seen = b""
            while answered not in seen:
                seen += os.read(ours, 65536)
            time.sleep(0.3)  # Ctrl-D means something at the prompt only
            os.write(ours, keys)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        assert process.wait(20) == 0
    os.close(ours)
    assert not list(home.rglob("*.db*"))
    assert not history_file().exists()
