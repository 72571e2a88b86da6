"""`parse-local sessions` on a database that a chat has left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from parse_local.cli import main
from parse_local.events import Span
from parse_local.paths import sessions_file
from parse_local.sessions import Session, SessionStore, StoredMessage


def invoke(*arguments: str, input: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["sessions", *arguments], input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def ids() -> list[str]:
    """Two sessions, the later one last."""
    with SessionStore(sessions_file()) as store:
        found = []
        for i, title in enumerate(("Eggs [bold]", "Ham")):
            id = store.create(Session("", title, "tiny", updated=1e9 + i))
            store.add(id, StoredMessage("user", f"How many {title}?"))
            spans = (Span("Si", "draft"), Span("x.", "target"))
            store.add(id, StoredMessage("assistant", "Six.", "Hm, hens.", spans, "stop"))
            found.append(id)
        return found


def test_the_list(ids: list[str]) -> None:
    done = invoke("list")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["ID", "Last", "used", "Messages", "Models", "Title"]
    assert [row.split()[0] for row in rows] == [ids[1], ids[0]]
    assert rows[1].endswith("2  tiny    Eggs [bold]")
    found = json.loads(invoke("list", "--json").stdout)
    assert [(s["id"], s["n_messages"]) for s in found] == [(ids[1], 2), (ids[0], 2)]


def test_a_long_title_gives_way_to_the_id(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionStore(sessions_file()) as store:
        id = store.create(Session("", "Why " * 15, "qwen2.5-coder-1.5b", updated=2e9))
    monkeypatch.setattr("parse_local.cli_support._PIPE_WIDTH", 80)
    head, row, *_ = invoke("list").stdout.splitlines()
    assert head.split() == ["ID", "Last", "used", "Messages", "Models", "Title"]
    assert len(row) <= 80
    assert row.startswith(f"{id}  2033-05-1")  # the day of 2e9 s, wherever the clock is
    assert row.endswith("…")
    monkeypatch.setattr("parse_local.cli_support._PIPE_WIDTH", 30)
    assert [row.split()[0] for row in invoke("list").stdout.splitlines()[1:]] == [id, *ids[::-1]]


def test_looking_creates_no_file(home: Path) -> None:
    done = invoke("list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "There is no session yet; `parse-local chat` begins one.\n"
    assert invoke("show", "ab").exit_code == 2
    assert invoke("delete", "--all", "--yes").exit_code == 0
    assert not home.exists()


def test_show(ids: list[str]) -> None:
    done = invoke("show", ids[0][:6])
    assert done.stdout.endswith("> How many Eggs [bold]?\nSix.\n\n")
    assert done.stdout.startswith("Eggs [bold]\ntiny · ")
    assert "Hm, hens.\nSix." in invoke("show", ids[0], "--reasoning").stdout


def test_export(ids: list[str], tmp_path: Path) -> None:
    text = invoke("export", ids[1]).stdout
    assert text.startswith("# Ham\n")
    assert text.endswith("\n\nSix.\n")
    output = tmp_path / "chat.json"
    done = invoke("export", ids[1], "--format", "json", "--output", str(output))
    assert (done.stdout, done.stderr) == ("", "")
    answer = json.loads(output.read_text(encoding="utf-8"))["messages"][1]
    assert [s["source"] for s in answer["spans"]] == ["draft", "target"]


def test_an_export_that_cannot_be_written(ids: list[str], tmp_path: Path) -> None:
    path = tmp_path / "no" / "chat.md"
    done = invoke("export", ids[0], "--output", str(path))
    assert done.exit_code == 1
    assert done.stderr == f"Error: Cannot write {path}: No such file or directory.\n"


def test_delete_asks(ids: list[str]) -> None:
    done = invoke("delete", ids[0], input="n\n")
    assert done.stderr == "Delete the session “Eggs [bold]”? [y/N]: n\n"
    assert len(json.loads(invoke("list", "--json").stdout)) == 2
    done = invoke("delete", ids[0], ids[0][:7], input="y\n")
    assert done.stderr.endswith("1 session is deleted.\n")
    assert [s["id"] for s in json.loads(invoke("list", "--json").stdout)] == [ids[1]]


def test_delete_all(ids: list[str]) -> None:
    assert invoke("delete", "--all").stderr == (
        "Delete 2 sessions? [y/N]: \n"
        "Error: There is nobody to ask; give --yes to do it without asking.\n"
    )
    assert invoke("delete", "--all", "--yes").stderr == "2 sessions are deleted.\n"
    assert json.loads(invoke("list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("delete",), "Name the sessions to delete, or give --all."),
        (("delete", "--all", "ab"), "Name the sessions to delete, or give --all."),
        (("show", "zz"), "There is no session zz; `parse-local sessions list` shows those there"),
        (("delete", "zz", "--yes"), "There is no session zz;"),
    ],
)
def test_what_is_refused(ids: list[str], arguments: tuple[str, ...], error: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {error}")
    assert len(json.loads(invoke("list", "--json").stdout)) == 2


def test_a_damaged_file_is_said_and_moved(ids: list[str], home: Path) -> None:
    sessions_file().write_bytes(b"nonsense" * 1000)
    done = invoke("list")
    assert done.exit_code == 0
    assert done.stderr.startswith(f"Note: The sessions in {sessions_file()} were damaged; ")
    assert len(list(home.glob("sessions.db.damaged-*"))) == 1


def test_the_shell_completes_ids(ids: list[str]) -> None:
    for words in (f"sessions show {ids[0][:6]}", f"sessions delete {ids[1]} {ids[0][:6]}"):
        env = {
            "_PARSE_LOCAL_COMPLETE": "bash_complete",
            "COMP_WORDS": f"parse-local {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        done = CliRunner().invoke(main, prog_name="parse-local", env=env)
        assert done.output == f"plain,{ids[0]}\n"
