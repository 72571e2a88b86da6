import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from scripted_chat import Scripted, chat

from parse_local.errors import ContextLengthError, UsageError
from parse_local.events import Drafted, Event, Finished, Result, Text, Usage
from parse_local.policy import STRATEGIES, Options
from parse_local.sessions import SessionStore, StoredMessage
from parse_local.terminal.chat import run_chat
from parse_local.terminal.commands import is_command
from parse_local.terminal.conversation import Conversation, Turn
from parse_local.terminal.prompt import (
    CommandCompleter,
    is_open,
    make_session,
    open_history,
    unquote,
)


def test_turns_alternate_and_ctrl_d_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted("one", "two")
    assert chat(engine, "first\rsecond\r") == 0
    assert engine.asked == [
        [{"role": "user", "content": "first"}],
        [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "second"},
        ],
    ]
    out, err = capsys.readouterr()
    assert out == "one\ntwo\n"
    assert "1 token · context 4/100" in err


def test_system_prompt_set_shown_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    keys = "/system\r/system Be  brief.\r/system\ra\r/system -\rb\r"
    chat(engine, keys, system="Old.")
    assert engine.asked[0][0] == {"role": "system", "content": "Be  brief."}
    assert [m["role"] for m in engine.asked[1]] == ["user", "assistant", "user"]
    err = capsys.readouterr().err
    assert "System prompt: Old." in err
    assert "System prompt: Be  brief." in err


def test_clear_keeps_the_system_prompt() -> None:
    engine = Scripted()
    chat(engine, "a\r/clear\rb\r", system="S")
    assert [m["content"] for m in engine.asked[1]] == ["S", "b"]


def test_an_error_is_one_line_and_takes_the_question_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = Scripted(ContextLengthError("The prompt has 120 tokens; raise --ctx."), "fine")
    assert chat(engine, "too long\ragain\r") == 0
    assert engine.asked[1] == [{"role": "user", "content": "again"}]
    assert "Error: The prompt has 120 tokens; raise --ctx.\n" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_final(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()

    def answer() -> Iterator[Event]:
        yield Text("partial", "target")
        yield Drafted(" gone", 1)
        os.kill(os.getpid(), signal.SIGINT)
        while not engine.cancelled:
            yield Drafted("", 1)
        yield Finished(Result("partial", finish_reason="cancelled", usage=Usage(5, 1)))

    engine._answers = iter([answer, "next"])
    assert chat(engine, "a\rb\r") == 0
    assert engine.asked[1][1] == {"role": "assistant", "content": "partial"}
    out, err = capsys.readouterr()
    assert out == "partial\nnext\n"
    assert "1 token · context 6/100 · cancelled" in err


def test_an_answer_stopped_before_any_text_is_not_kept() -> None:
    engine = Scripted(lambda: iter([Finished(Result(finish_reason="cancelled"))]), "fine")
    chat(engine, "a\rb\r")
    assert engine.asked[1] == [{"role": "user", "content": "b"}]


def test_strategy_and_accept_change_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    chat(engine, "/strategy target\r/accept semantic\ra\r/accept auto\rb\r/strategy\r")
    assert [(o.strategy, o.accept) for o in engine.options] == [
        ("target", "semantic"),
        ("target", None),
    ]
    listed = ", ".join(STRATEGIES)
    assert f"strategy: target (one of {listed})" in capsys.readouterr().err.replace("\n", " ")


def test_what_the_pair_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    chat(engine, "/accept fused\r/strategy trget\r/accept 7\ra\r")
    assert (engine.options[0].strategy, engine.options[0].accept) == ("auto", None)
    err = capsys.readouterr().err
    assert "--accept fused needs a profile" in err
    assert "There is no strategy trget. Did you mean target?" in err
    assert "There is no accept 7. Choose from: exact, loose, semantic, fused, auto." in err


def test_unknown_commands_suggest_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    chat(engine, "/sytem x\r/zzzzzz\r/exit\rnever\r")
    err = capsys.readouterr().err
    assert "There is no command /sytem. Did you mean /system?" in err
    assert "There is no command /zzzzzz. /help lists the commands." in err
    assert engine.asked == []


def words(text: str) -> str:
    return " ".join(text.split())


def test_help_and_stats(capsys: pytest.CaptureFixture[str]) -> None:
    chat(Scripted(), "/stats\r/help\ra\r/stats\r")
    err = capsys.readouterr().err
    assert "There is no answer yet." in err
    assert "/strategy NAME Who writes: auto, parse, speculative, fly, confspec," in words(err)
    assert "decoded by the target" in err


def test_ctrl_c_at_the_prompt_clears_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted()
    chat(engine, "half\x03whole\r\x03\x03")
    assert engine.asked == [[{"role": "user", "content": "whole"}]]
    assert capsys.readouterr().err.count("Ctrl-D leaves.\n") == 1


def test_several_lines() -> None:
    engine = Scripted()
    chat(engine, 'one\x1b\rtwo\r"""\rthree\r\rfour"""\r\r"""five"""\r')
    assert [m[-1]["content"] for m in engine.asked] == ["one\ntwo", "three\n\nfour", "five"]


def test_pasted_lines_are_one_message() -> None:
    engine = Scripted()
    chat(engine, "\x1b[200~a\nb\x1b[201~\r")
    assert engine.asked[0][-1]["content"] == "a\nb"


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("/st", ["/strategy ", "/stats"]),
        ("/strategy ", list(STRATEGIES)),
        ("/accept s", ["semantic"]),
        ("/system pa", []),
        ("what /s", []),
        ("/a\n/s", []),
    ],
)
def test_completions(typed: str, completions: list[str]) -> None:
    found = CommandCompleter().get_completions(Document(typed), CompleteEvent())
    assert [c.text for c in found] == completions


def test_tab_completes_and_enter_takes_the_choice_before_it_sends() -> None:
    engine = Scripted()
    first, second = (f"/strategy {name}" for name in list(STRATEGIES)[:2])
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        session = make_session(InMemoryHistory())
        buffer = session.default_buffer
        # Completion needs turns of prompt_toolkit's event loop, so each key waits for the last.
        steps: list[tuple[str, Callable[[], bool]]] = [
            ("/sy", lambda: buffer.text == "/sy"),
            ("\t", lambda: buffer.text == "/system "),
            ("Be.\r", lambda: buffer.text == ""),
            ("/str", lambda: buffer.text == "/str"),
            ("\t", lambda: buffer.text == "/strategy "),
            ("\t", lambda: buffer.complete_state is not None),
            ("\t", lambda: buffer.text == first),
            ("\t", lambda: buffer.text == second),
            ("\r", lambda: buffer.complete_state is None),
            ("\ra\r\x04", lambda: True),
        ]

        def type_slowly() -> None:
            for keys, done in steps:
                keyboard.send_text(keys)
                deadline = time.monotonic() + 10
                while not done() and time.monotonic() < deadline:
                    time.sleep(0.01)

        thread = threading.Thread(target=type_slowly)
        thread.start()
        run_chat(engine, Options(), session=session)
        thread.join()
    assert engine.asked[0][0]["content"] == "Be."
    assert engine.options[0].strategy == list(STRATEGIES)[1]


@pytest.mark.parametrize("text", ["/usr/bin is what?", "// a comment", "/ 2", "2 / 3", "/etc", ""])
def test_is_command(text: str) -> None:
    assert is_command(text) == (text == "/etc")


def test_quotes() -> None:
    assert is_open('"""a\nb')
    assert is_open('"""')
    assert not is_open('"""a"""')
    assert not is_open("a")
    assert unquote('"""\na\n  b\n"""') == "a\n  b"
    assert unquote(" a ") == "a"


def test_piped_stdin_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    engine = Scripted("fine")
    assert run_chat(engine, Options(), system="S") == 0
    assert [m["content"] for m in engine.asked[0]] == ["S", "two\nlines"]
    assert capsys.readouterr().out == "fine\n"


def test_nothing_on_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    with pytest.raises(UsageError, match="There is no message on stdin"):
        run_chat(Scripted(), Options())


def test_a_system_prompt_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with SessionStore(tmp_path / "sessions.db") as store:
        with pytest.raises(UsageError, match="The system prompt is not"):
            run_chat(Scripted(), Options(), question="hi", system="\udce9", store=store)
        assert store.sessions() == []


def test_a_cancelled_piped_answer_has_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("a"))
    engine = Scripted(lambda: iter([Finished(Result(finish_reason="cancelled"))]))
    assert run_chat(engine, Options(), quiet=True) == 130


def test_history_is_private_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chat_history"
    history, note = open_history(path)
    history.append_string("asked")
    assert note is None
    assert path.read_text().splitlines()[-1] == "+asked"
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600


def test_history_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history, note = open_history(tmp_path / "file" / "chat_history")
    assert isinstance(history, InMemoryHistory)
    assert note is not None
    assert note.startswith(f"Prompts are not kept: {tmp_path / 'file'}: ")


def test_a_disk_that_fills_up_costs_only_the_history(tmp_path: Path) -> None:
    path = tmp_path / "chat_history"
    history, _ = open_history(path)
    path.unlink()
    path.mkdir()
    history.append_string("asked")
    assert history.get_strings() == ["asked"]


def test_conversation_asks_without_changing() -> None:
    conversation = Conversation("S")
    conversation.asking("lost")
    conversation.add(Turn(StoredMessage("user", "q"), StoredMessage("assistant", "a")))
    assert [m["content"] for m in conversation.asking("next")] == ["S", "q", "a", "next"]
    assert len(conversation.turns) == 1
