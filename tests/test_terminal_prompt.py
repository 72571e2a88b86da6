"""Pastes, completion of arguments, the editor and keys of the prompt."""

from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from parse_local.terminal.pastes import LONG, Pastes
from parse_local.terminal.prompt import CommandCompleter, make_session, open_history

LINES = "\n".join(f"line {i}" for i in range(LONG + 1))


def read(keys: str, history: object = None, **kwargs: object) -> str:
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys)
        with create_app_session(input=keyboard, output=DummyOutput()):
            return make_session(history or InMemoryHistory(), **kwargs).prompt("> ")


def pasted(text: str) -> str:
    return f"\x1b[200~{text}\x1b[201~"


def test_a_short_paste_is_left_alone() -> None:
    pastes = Pastes()
    short = "\n".join("x" * LONG)
    assert pastes.fold(short) == short
    assert pastes.fold(LINES) == f"[paste 1: {LONG + 1} lines]"


def test_pastes_unfold_once() -> None:
    pastes = Pastes()
    mark = pastes.fold(LINES)
    tricky = pastes.fold(LINES + mark)
    assert pastes.unfold(f"a {tricky} b {mark}") == f"a {LINES}{mark} b {LINES}"


def test_a_long_paste_is_sent_whole_and_kept_whole(tmp_path: Path) -> None:
    history, _ = open_history(tmp_path / "history")
    text = read(f"Explain: {pasted(LINES)} please\r", history)
    assert text == f"Explain: {LINES} please"
    later, _ = open_history(tmp_path / "history")
    assert list(later.load_history_strings()) == [text]


def test_windows_line_ends_in_a_paste() -> None:
    assert read(pasted("a\r\nb\rc") + "\r") == "a\nb\nc"


def test_ctrl_g_opens_the_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ncase "$1" in *.md) printf " and more" >> "$1";; esac\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        session = make_session(InMemoryHistory())
        # The editor runs in a thread of prompt_toolkit's: Enter has to come after it.
        session.default_buffer.on_text_changed += lambda buffer: (
            keyboard.send_text("\r") if buffer.text.endswith("more") else None
        )
        keyboard.send_text("some text\x07")
        assert session.prompt("> ") == "some text and more"


def test_ctrl_r_searches_earlier_sessions(tmp_path: Path) -> None:
    history, _ = open_history(tmp_path / "history")
    for string in ("first question", "second question", "third"):
        history.append_string(string)
    later, _ = open_history(tmp_path / "history")
    assert read("\x12first\r\r", later) == "first question"


def test_ctrl_t_shows_the_reasoning() -> None:
    shown: list[int] = []
    assert read("a\x14b\r", on_thinking=lambda: shown.append(1)) == "ab"
    assert shown == [1]


def test_arguments_are_completed_by_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "nothing").mkdir()
    settings = ["accept", "accept exact", "accept loose", "delta"]
    names = {"pair": lambda: ["qwen3-8b", "smol"], "setting": lambda: settings}
    completer = CommandCompleter(names)

    def offered(typed: str) -> list[str]:
        found = completer.get_completions(Document(typed), CompleteEvent())
        return [typed[: len(typed) + c.start_position] + c.text for c in found]

    paths = [f"/read {tmp_path}/{name}" for name in ("notes.txt", "nothing")]
    assert sorted(offered(f"/read {tmp_path}/no")) == paths
    assert offered("/model q") == ["/model qwen3-8b"]
    assert offered("/resume ") == []
    assert offered("/set ") == ["/set accept", "/set delta"]
    assert offered("/set accept e") == ["/set accept exact"]
