"""A conversation that fills the context: nothing is dropped unless the user says so."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from scripted_chat import Scripted, chat

from parse_local.errors import ContextLengthError
from parse_local.events import Result, Span, Usage
from parse_local.policy import Options
from parse_local.sessions import SessionStore, StoredMessage
from parse_local.terminal.chat import run_chat
from parse_local.terminal.context_limit import fit
from parse_local.terminal.conversation import Conversation, Turn

TEN = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"
LONG = " ".join(["l"] * 49)
FULL = Result(LONG, finish_reason="length", usage=Usage(51, 49), spans=(Span(LONG, "target"),))


def conversation(n_turns: int, n_words: int) -> Conversation:
    """Turns of so many words each, half of them the answer's, behind one word of system."""
    found = Conversation("S")
    words = " ".join(["w"] * (n_words // 2))
    for _ in range(n_turns):
        found.add(Turn(StoredMessage("user", words), StoredMessage("assistant", words)))
    return found


def count(messages: list[dict[str, str]]) -> int:
    return sum(len(m["content"].split()) for m in messages)


@pytest.mark.parametrize(
    ("n_turns", "max_tokens", "expected"),
    [
        (4, 2048, (82, 0, 82)),  # 81 + 1: leaves 18, more than a sixteenth
        (9, 2048, (182, 6, 62)),  # a quarter has to be free
        (5, 2048, (102, 2, 62)),
        (5, 5, (102, 1, 82)),  # no more room than the answer may take
    ],
)
def test_fit(n_turns: int, max_tokens: int, expected: tuple[int, int, int]) -> None:
    found = fit(conversation(n_turns, 20), "q", count=count, n_ctx=100, max_tokens=max_tokens)
    assert (found.n_prompt, found.n_drop, found.n_after) == expected
    assert found.possible


def test_a_question_that_is_too_long_itself() -> None:
    found = fit(conversation(2, 20), "q " * 100, count=count, n_ctx=100, max_tokens=10)
    assert (found.n_drop, found.n_after, found.possible) == (2, 101, False)


def test_the_replaced_turn_is_not_dropped() -> None:
    said = conversation(5, 20)
    last = said.turns[-1]
    found = fit(said, "q", count=count, n_ctx=60, max_tokens=10, replacing=last)
    assert (found.n_prompt, found.n_drop, found.n_after) == (82, 2, 42)


# at the terminal; every question has 10 words, every answer two: 96 are left for an answer

SIX = f"{TEN}\r" * 6
LEAVES_SIX = 85


def test_drop_says_what_it_drops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted(n_ctx=LEAVES_SIX)
    store = SessionStore(tmp_path / "sessions.db")
    chat(engine, SIX + f"{TEN}\r", system="S", context_full="drop", store=store)
    # The seventh: 1 + 6 * 12 + 10 = 83 words and 5 for an answer do not fit into 85.
    assert [len(m) for m in engine.asked] == [2, 4, 6, 8, 10, 12, 10]
    assert engine.contents[-1][0] == "S"
    assert "Dropped the 2 oldest turns (24 tokens); they stay in the session." in (
        capsys.readouterr().err.replace("\n", " ")
    )
    messages = store.messages(store.find().id)
    assert [m.in_context for m in messages] == [False] * 4 + [True] * 10


def test_stop_keeps_what_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted(n_ctx=LEAVES_SIX)
    # What was typed stands in the next prompt; a word less than it had would fit.
    chat(engine, SIX + f"{TEN}\r\x15short\r", system="S", context_full="stop")
    assert [m[-1] for m in engine.contents[-2:]] == [TEN, "short"]
    assert len(engine.asked[-1]) == 14
    err = capsys.readouterr().err.replace("\n", " ")
    assert "with this question it has 83 tokens, and the context holds 85." in err
    assert "Use --context-full drop to drop the 2 oldest turns, or a larger --ctx." in err


def test_what_was_typed_stands_in_the_next_prompt() -> None:
    engine = Scripted(n_ctx=LEAVES_SIX)
    chat(engine, SIX + f"{TEN}\r/clear\x01\x0b/clear\r{TEN}\r", system="S", context_full="stop")
    assert engine.contents[-1] == ["S", TEN]
    engine = Scripted(n_ctx=LEAVES_SIX)
    chat(engine, SIX + f"{TEN}\r" + "\x17" * 5 + "\r", system="S", context_full="stop")
    assert engine.contents[-1][-1] == "w1 w2 w3 w4 w5"


@pytest.mark.parametrize(("answer", "n_messages"), [("y", 10), ("n", None), ("\x03", None)])
def test_the_user_is_asked(
    answer: str, n_messages: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Scripted(n_ctx=LEAVES_SIX)
    reply = answer if answer == "\x03" else f"{answer}\r"
    keys = SIX + f"{TEN}\r" + reply + ("" if n_messages else "\x15")
    chat(engine, keys, system="S")
    err = capsys.readouterr().err
    if n_messages:
        assert len(engine.asked[-1]) == n_messages
        assert "Dropped the 2 oldest turns" in err
    else:
        assert len(engine.asked) == 6
        assert "Nothing is sent." in err


def test_an_answer_that_fills_the_context_offers_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = Scripted(TEN, FULL, "the rest")
    chat(engine, f"{' '.join([TEN] * 4)}\rb\ry\r")
    assert engine.contents[-1] == ["b", LONG, "Go on exactly where you stopped."]
    err = capsys.readouterr().err
    assert "The answer ends because the context is full (100 tokens)." in err
    assert "Dropped the oldest turn (50 tokens)" in err


def test_nothing_older_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Scripted(FULL)
    chat(engine, "a\r")
    assert len(engine.asked) == 1
    assert "Nothing older is left to drop" in capsys.readouterr().err


def test_piped_into_a_full_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SessionStore(tmp_path / "sessions.db")
    chat(Scripted(n_ctx=LEAVES_SIX), SIX, system="S", store=store)
    engine = Scripted(n_ctx=LEAVES_SIX)
    monkeypatch.setattr("sys.stdin", io.StringIO(TEN))
    with pytest.raises(ContextLengthError, match="no longer fits"):
        run_chat(engine, Options(), store=store, resume=store.find())
    assert engine.asked == []
    assert store.find().n_messages == 12
    monkeypatch.setattr("sys.stdin", io.StringIO(TEN))
    run_chat(engine, Options(), store=store, resume=store.find(), context_full="drop")
    assert len(engine.asked[0]) == 10
    assert store.find().n_messages == 14
