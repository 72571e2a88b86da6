"""What the chat's commands do, and what they leave in the store."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyperclip
import pytest
from scripted_chat import Scripted, chat
from terminal_screen import Terminal

from parse_local.errors import DecodeError, ModelError, UsageError
from parse_local.events import Event, Result, Span, Text, TokenCounts, Usage
from parse_local.policy import Options
from parse_local.sessions import SessionStore
from parse_local.terminal.clipboard import copy
from parse_local.terminal.commands import COMMANDS, KEYS
from parse_local.terminal.handlers.settings import NAMES, choices_of, parse_value, shown

HALF = Result(
    "from the draft, not",
    usage=Usage(2, 4),
    tokens=TokenCounts(n_accept=3),
    spans=(Span("from the draft,", "draft"), Span(" not", "target")),
)


@pytest.fixture
def store(tmp_path: Path) -> SessionStore:
    return SessionStore(tmp_path / "sessions.db")


def kept(store: SessionStore) -> dict[str, list[str]]:
    """The texts of every session, by title."""
    return {s.title: [m.content for m in store.messages(s.id)] for s in store.sessions()}


def editor(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def test_the_commands_are_these() -> None:
    listed = (
        "/help /exit /clear /undo /regen /edit /system /read /set /show /stats /strategy /accept "
        "/verify /copy /save /sessions /resume /model /think"
    )
    assert {c.name for c in COMMANDS} == set(listed.split())


def test_the_page_has_every_command_and_key() -> None:
    page = (Path(__file__).parent.parent / "docs" / "chat.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"`(/\w+)[ \[`]", page.split("## Commands")[1].split("\n## ")[0]))
    assert {c.name for c in COMMANDS} <= commands
    keys = re.findall(r"^\| ([^|]+) \|", page.split("## Keys")[1].split("\n## ")[0], re.MULTILINE)
    for name, _ in KEYS:
        assert any(part in " ".join(keys) for part in name.split(", ")), name


# what is said


def test_undo_takes_the_last_turn_back(store: SessionStore) -> None:
    engine = Scripted()
    chat(engine, "one\rtwo\r/undo\rthree\r", store=store)
    assert engine.contents[-1] == ["one", "an answer", "three"]
    assert kept(store) == {"one": ["one", "an answer", "three", "an answer"]}


def test_undo_of_everything_leaves_no_session(
    store: SessionStore, capsys: pytest.CaptureFixture[str]
) -> None:
    chat(Scripted(), "one\r/undo\r/undo\r", store=store)
    assert kept(store) == {}
    err = capsys.readouterr().err
    assert "Taken back: one" in err
    assert "There is nothing to take back." in err


def test_regen_replaces_the_answer(store: SessionStore, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted("first", "second", "third")
    chat(engine, "a\r/regen\rb\r", store=store)
    assert engine.contents == [["a"], ["a"], ["a", "second", "b"]]
    assert kept(store) == {"a": ["a", "second", "b", "third"]}
    assert "At temperature 0 answers repeat themselves" in capsys.readouterr().err


def test_regen_that_fails_leaves_the_old_answer(store: SessionStore) -> None:
    engine = Scripted("first", DecodeError("Failed."), "third")
    chat(engine, "a\r/regen\rb\r", store=store)
    assert engine.contents[-1] == ["a", "first", "b"]
    assert kept(store) == {"a": ["a", "first", "b", "third"]}


def test_regen_asks_a_failed_question_again(store: SessionStore) -> None:
    engine = Scripted(DecodeError("Failed."), "fine")
    chat(engine, "a\r/regen\r", store=store)
    assert engine.contents == [["a"], ["a"]]
    assert kept(store) == {"a": ["a", "fine"]}


@pytest.mark.skipif(os.name == "nt", reason="the editor is a shell script")
def test_edit_asks_the_changed_question(
    store: SessionStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VISUAL", editor(tmp_path / "add", 'echo "and more" >> "$1"'))
    engine = Scripted("one", "two")
    chat(engine, "first\r/edit\r", store=store)
    assert engine.contents == [["first"], ["first\nand more"]]
    assert kept(store) == {"first and more": ["first\nand more", "two"]}
    assert "> first\n> and more\n" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="the editor is a shell script")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("true", "Nothing has changed; nothing is asked."),
        ("exit 1", "set VISUAL or EDITOR to another."),
    ],
)
def test_edit_without_a_change(
    line: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VISUAL", editor(tmp_path / "editor", line))
    engine = Scripted()
    chat(engine, "first\r/edit\r")
    assert len(engine.asked) == 1
    assert said in capsys.readouterr().err.replace("\n", " ")


def test_read_puts_a_file_into_the_next_message(tmp_path: Path) -> None:
    path = tmp_path / "my notes.md"
    path.write_text("one ```\ntwo\n")
    engine = Scripted()
    chat(engine, f"/read {path}\rsum it up\rand now\r")
    assert engine.contents[0] == ["File my notes.md:\n\n````\none ```\ntwo\n````\n\nsum it up"]
    assert engine.contents[1][-1] == "and now"


def test_what_read_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"a.bin": b"\xff\xfe\x00", "b.bin": b"a\0b", "c.txt": b" \n", "d.txt": b"word " * 100}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    good = tmp_path / "good.txt"
    good.write_text("fine")
    paths = [good, *(tmp_path / name for name in [*files, "none.txt"])]
    engine = Scripted()
    chat(engine, "".join(f"/read {p}\r" for p in paths) + "/read\r/read -\rask\r")
    assert engine.contents == [["ask"]]
    err = capsys.readouterr().err.replace("\n", " ")
    for part in (
        "a.bin is not UTF-8 text",
        "b.bin is a binary file",
        "c.txt is empty",
        "with it a message has 109 tokens, and the context holds 100",
        "none.txt: No such file or directory.",
        "With the next message: good.txt (/read - leaves them out).",
    ):
        assert part in err


# settings


def test_every_setting_is_shown_and_can_be_typed_back() -> None:
    options = Options()
    for name in NAMES:
        value = getattr(options, name)
        assert parse_value(name, shown(value)) == value
        for choice in choices_of(name):
            assert shown(parse_value(name, choice)) == choice
    assert {"temperature", "tau_full", "stop", "thinking", "seed", "window"} <= set(NAMES)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("max_tokens", "12", 12),
        ("seed", "none", None),
        ("window", "AUTO", None),
        ("thinking", "Yes", True),
        ("thinking", "off", False),
        ("accept", "Loose", "loose"),
        ("stop", "'two words' \\n\\n", ("two words", "\n\n")),
        ("stop", "none", ()),
        ("top_k", "default", 40),
    ],
)
def test_values(name: str, text: str, value: object) -> None:
    assert parse_value(name, text) == value


REFUSED = [
    ("temprature 1", "There is no setting temprature. Did you mean temperature?"),
    ("system x", "The system prompt has a command of its own: /system TEXT."),
    ("zzz 1", "There is no setting zzz. /show lists the settings."),
    ("top_p 7", "top_p must be between 0 and 1, not 7.0."),
    ("max_tokens 1.5", "max_tokens is a whole number, not 1.5."),
    ("temperature warm", "temperature is a number, not warm."),
    ("temperature nan", "temperature must be at least 0, not nan."),
    ("strategy trget", "There is no strategy trget. Did you mean target?"),
    ("strategy spec", "There is no strategy spec. Did you mean speculative?"),
    ("accept foo", "There is no accept foo. Choose from: exact, loose, semantic, fused, auto."),
    ("thinking maybe", "There is no thinking maybe. Choose from: on, off."),
    ("stop 'open", "stop has an open quotation mark; close it."),
    ("cues x", "There is no setting cues."),
]


def test_set_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    chat(engine, "".join(f"/set {typed}\r" for typed, _ in REFUSED) + "a\r")
    assert engine.options == [Options()]
    err = capsys.readouterr().err.replace("\n", " ")
    assert [said for _, said in REFUSED if said not in err] == []


def test_set_show_and_think(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    keys = "/set parameter top-k 3\r/set tau 0.5\r/think on\ra\r/show\r/think off\r"
    chat(engine, keys + "/set top_k default\rb\r/set accept\r")
    expected = Options(top_k=3, tau_full=0.5, tau_prefix=0.5, thinking=True)
    assert engine.options == [expected, Options(tau_full=0.5, tau_prefix=0.5)]
    err = capsys.readouterr().err
    assert re.search(r"^top_k +3  \(default: 40\)$", err, re.MULTILINE)
    assert re.search(r"^accept +auto  \(here: exact\)$", err, re.MULTILINE)
    assert re.search(r"^loose_window +auto  \(here: 6\)$", err, re.MULTILINE)
    assert re.search(r"^temperature +0$", err, re.MULTILINE)
    assert "accept: auto (one of exact, loose, semantic, fused, auto)" in err


def test_what_happens_at_the_limit_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted(n_ctx=18)
    keys = "/set context_full all\r/set context-full drop\r/set context_full\r/show\r"
    chat(engine, keys + f"{'a ' * 8}\r{'b ' * 8}\r", Options(max_tokens=4))
    assert [m[0]["content"].split()[0] for m in engine.asked] == ["a", "b"]
    err = capsys.readouterr().err
    assert "There is no context_full all. Choose from: ask, drop, stop." in err
    assert "context_full: drop (one of ask, drop, stop)" in err
    assert re.search(r"^context_full +drop  \(default: ask\)$", err, re.MULTILINE)


def test_that_a_model_cannot_think_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    idle = "tiny does not think; thinking on changes nothing."
    chat(Scripted(can_think=False), "/think on\r/think off\r/set thinking on\r")
    assert capsys.readouterr().err.count(idle) == 2
    chat(Scripted(can_think=False), "", Options(thinking=True))
    assert capsys.readouterr().err.count(idle) == 1
    chat(Scripted(), "/think on\r")
    assert "does not think" not in capsys.readouterr().err


# showing


def test_show_colors_context_and_thinking(capsys: pytest.CaptureFixture[str]) -> None:
    thought = Result(
        "Six.", "Hens, hm.", spans=(Span("Hens, hm.", "target", "reasoning"), Span("Six.", "draft"))
    )
    keys = "/show colors\ra\r/show colors\r/show context\rb\r/show thinking\r/show colour\r"
    chat(Scripted(HALF, thought), keys)
    err = capsys.readouterr().err
    assert "There is no answer yet." in err
    assert "accepted from the draft: 3 of 4 tokens (75%)" in err
    assert "context: 6 of 100 tokens (6%) · 1 turn\n" in err
    assert "\nHens, hm.\n" in err
    assert "There is nothing called colour to show. Did you mean colors?" in err


def test_a_question_that_was_only_thought_about_is_asked_again_alone(store: SessionStore) -> None:
    thought = Result("", "Hm.", "length", spans=(Span("Hm.", "target", "reasoning"),))
    chat(Scripted(thought), "a\r", store=store)
    assert kept(store) == {"a": ["a", ""]}
    engine = Scripted("fine")
    chat(engine, "/resume\r/regen\r", store=store)
    assert engine.contents == [["a"]]
    assert list(kept(store).values()) == [["a", "fine"]]


def test_reasoning_goes_back_apart(store: SessionStore) -> None:
    thought = Result(
        "Six.", "Hens.", spans=(Span("Hens.", "target", "reasoning"), Span("Six.", "target"))
    )
    engine = Scripted(thought)
    chat(engine, "a\rb\r", store=store)
    assert engine.asked[1][1] == {
        "role": "assistant",
        "content": "Six.",
        "reasoning_content": "Hens.",
    }
    assert [m.reasoning for m in store.messages(store.find().id)] == ["", "Hens.", "", ""]


# keeping


def test_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.md").write_text("mine")
    keys = "/save\rWhat is it?\r/save\rmore\r/save\r/save taken.md\r/save all.json\r/save no/a\r"
    chat(Scripted("it", "yes"), keys, system="S")
    assert (tmp_path / "taken.md").read_text() == "mine"
    text = (tmp_path / "what-is-it.md").read_text()
    assert text.startswith("# What is it?\n")
    assert text.endswith(
        "## You\n\nWhat is it?\n\n## tiny\n\nit\n\n## You\n\nmore\n\n## tiny\n\nyes\n"
    )
    found = json.loads((tmp_path / "all.json").read_text())
    assert [m["content"] for m in found["messages"]] == ["What is it?", "it", "more", "yes"]
    assert found["system"] == "S"


def test_sessions_and_resume(store: SessionStore, capsys: pytest.CaptureFixture[str]) -> None:
    chat(Scripted(HALF), "one\r", Options(top_k=3), store=store, system="Old.")
    engine = Scripted(pair_name="other")
    keys = "/sessions\rtwo\r/sessions\r/resume\rthree\r/show colors\r/resume nothex\r"
    chat(engine, keys, store=store)
    assert engine.contents == [["two"], ["Old.", "one", HALF.text, "three"]]
    assert engine.options[1] == Options(top_k=3)
    assert kept(store) == {
        "one": ["one", HALF.text, "three", "an answer"],
        "two": ["two", "an answer"],
    }
    assert {s.title: s.pair for s in store.sessions()} == {"one": "other", "two": "other"}
    err = capsys.readouterr().err
    id = store.find().id
    assert re.search(
        rf"^  {id}  \d{{4}}-\d\d-\d\d \d\d:\d\d    2 messages  one$", err, re.MULTILINE
    )
    assert "Resumed: one" in err
    assert "It was held with tiny; now other goes on." in err
    assert "> one\nfrom the draft, not\n" in err
    assert "There is no session nothex;" in err


def test_clear_begins_a_new_session(store: SessionStore) -> None:
    chat(Scripted(), "one\r/clear\rtwo\r", store=store)
    assert kept(store) == {"one": ["one", "an answer"], "two": ["two", "an answer"]}


def test_without_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    chat(Scripted(), "one\r/sessions\r/resume\r")
    assert capsys.readouterr().err.count("Sessions are not kept in this chat.") == 2


def test_copy_here(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", copied.append)
    assert copy("héllo", environ={}, terminal=Terminal()) == "Copied 5 characters."
    assert copied == ["héllo"]


def test_copy_over_ssh_asks_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pyperclip, "copy")
    terminal = Terminal()
    said = copy("héllo", environ={"SSH_TTY": "/dev/pts/1"}, terminal=terminal)
    assert said == "Sent 5 characters to the terminal's clipboard, if it has one."
    coded = base64.b64encode("héllo".encode()).decode()
    assert terminal.sent == [f"\x1b]52;c;{coded}\x07"]
    with pytest.raises(UsageError, match="too long for a terminal's clipboard"):
        copy("x" * 60_000, environ={"SSH_TTY": "/dev/pts/1"}, terminal=terminal)


def test_copy_without_any_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise pyperclip.PyperclipException

    monkeypatch.setattr(pyperclip, "copy", fail)
    with pytest.raises(UsageError, match=r"no wl-copy, xclip or xsel is installed.*/save FILE"):
        copy("a", environ={})


# models


class Loader:
    """Knows models by name; what is planned or loaded may fail."""

    def __init__(self, **engines: Scripted) -> None:
        self.engines = engines
        self.broken: set[str] = set()

    def plan(self, models: Mapping[str, str], replaced: object) -> None:
        if models["pair"] not in self.engines:
            raise ModelError(f"There is no {models['pair']}.")

    def load(self, models: Mapping[str, str]) -> Scripted:
        if models["pair"] in self.broken:
            raise ModelError(f"{models['pair']} is broken.")
        return self.engines[models["pair"]]


@pytest.mark.parametrize("command", ["/model", "/load"])
def test_model_goes_on_with_another_pair(store: SessionStore, command: str) -> None:
    old, new = Scripted("from old"), Scripted("from new", pair_name="new")
    chat(old, f"a\r{command} new\rb\r", loader=Loader(new=new), models={"pair": "old"}, store=store)
    assert old.closed
    assert new.contents == [["a", "from old", "b"]]
    session = store.find()
    assert (session.pair, session.models) == ("new", {"pair": "new"})


def test_a_model_that_cannot_be_planned_leaves_the_old_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = Scripted()
    chat(old, "/model none\r/model a b c\r/model\ra\r", loader=Loader(), models={"pair": "old"})
    assert not old.closed
    assert old.contents == [["a"]]
    err = capsys.readouterr().err
    assert "Error: There is no none." in err
    assert "Name a pair, or a draft and a target" in err
    assert "Models: tiny." in err


def test_a_model_that_cannot_be_loaded_brings_the_old_one_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = Scripted()
    loader = Loader(new=Scripted(), old=again)
    loader.broken = {"new"}
    chat(Scripted(), "/model new\ra\r", loader=loader, models={"pair": "old"})
    assert again.contents == [["a"]]
    assert "Error: new is broken." in capsys.readouterr().err


def test_a_load_that_is_stopped_brings_the_old_one_back() -> None:
    class Stopped(Loader):
        def load(self, models: Mapping[str, str]) -> Scripted:
            if models["pair"] == "new":
                raise KeyboardInterrupt
            return super().load(models)

    first, again = Scripted(), Scripted()
    loader = Stopped(new=Scripted(), old=again)
    chat(first, "/model new\ra\r", loader=loader, models={"pair": "old"})
    assert (first.closed, first.asked) == (True, [])
    assert again.contents == [["a"]]


def test_an_answer_that_breaks_off_is_kept(store: SessionStore) -> None:
    def broken() -> Iterator[Event]:
        yield Text("half an", "target")
        raise DecodeError("llama_decode failed.")

    engine = Scripted(broken, "fine")
    chat(engine, "a\rb\r", store=store)
    assert engine.contents[1] == ["a", "half an", "b"]
    (_, answer, *_) = store.messages(store.find().id)
    assert (answer.content, answer.finish_reason) == ("half an", None)


def test_no_model_left_ends_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    loader = Loader(new=Scripted(), old=Scripted())
    loader.broken = {"new", "old"}
    engine = Scripted()
    assert chat(engine, "/model new\rnever\r", loader=loader, models={"pair": "old"}) == 0
    assert engine.asked == []
    err = capsys.readouterr().err.replace("\n", " ")
    assert "Error: old is broken." in err
    assert "Error: new is broken." in err


def test_markdown_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    chat(Scripted(), "/set markdown off\r/set markdown\r/set markdown maybe\r/show\r")
    err = capsys.readouterr().err
    assert err.count("markdown: off") == 2
    assert "There is no markdown maybe. Choose from: on, off." in err
    assert "  off  (default: on)" in err
