"""The session store alone, and what keeps a chat in it."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from parse_local.errors import SessionError, UsageError
from parse_local.events import (
    Drafted,
    Finished,
    Result,
    Span,
    Text,
    Timings,
    TokenCounts,
    Usage,
)
from parse_local.policy import Options
from parse_local.sessions import Recorder, Session, SessionStore, StoredMessage, open_store
from parse_local.sessions.export import export
from parse_local.sessions.record import (
    options_from_json,
    options_to_json,
    result_of,
    title_of,
)
from parse_local.sessions.recorder import Setting
from parse_local.sessions.schema import MIGRATIONS, migrate, version

ANSWER = Result(
    "Six. No.",
    "Hm.",
    "length",
    Usage(10, 4),
    tokens=TokenCounts(n_accept=1),
    timings=Timings(total_s=2.0),
    spans=(Span("Hm.", "target", "reasoning"), Span("Six.", "draft"), Span(" No.", "target")),
    speedup=1.5,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "sessions.db"


def rows(path: Path) -> list[tuple[str, str, str | None]]:
    """What another program finds in the file."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return db.execute("SELECT role, content, finish_reason FROM messages").fetchall()


def test_the_file_is_private_and_keeps_a_log(path: Path) -> None:
    store, note = open_store(path)
    store.add(store.create(Session("", "t")), StoredMessage("user", "q"))
    assert note is None
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    files = sorted(path.parent.iterdir())
    assert [f.name for f in files] == ["sessions.db", "sessions.db-shm", "sessions.db-wal"]
    if os.name != "nt":
        assert [f.stat().st_mode & 0o777 for f in files] == [0o600] * 3


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    SessionStore(path).close()
    path.chmod(0o644)
    SessionStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_goes_in_comes_out(path: Path) -> None:
    session = Session("", "Title", "pair", {"pair": "p"}, "Be brief.", {"top_k": 3}, 1.0, 2.0)
    answer = StoredMessage(
        "assistant", ANSWER.text, "Hm.", ANSWER.spans, "length", {"n": 1}, created=3.0
    )
    with SessionStore(path) as store:
        id = store.create(session)
        first = store.add(id, StoredMessage("user", "Wie viele?", created=2.5))
        second = store.add(id, answer)
    with SessionStore(path) as store:
        (found,) = store.sessions()
        messages = store.messages(id)
    assert (found.title, found.pair, found.models) == ("Title", "pair", {"pair": "p"})
    assert (found.system, found.options) == ("Be brief.", {"top_k": 3})
    assert (found.created, found.n_messages) == (1.0, 2)
    assert found.updated > 2.0
    assert [m.id for m in messages] == [first, second]
    assert messages[0].content == "Wie viele?"
    assert messages[1].spans == answer.spans
    assert messages[1].reasoning == "Hm."
    assert messages[1].figures == {"n": 1}


def test_an_id_is_found_by_its_beginning(path: Path) -> None:
    with SessionStore(path) as store:
        with pytest.raises(UsageError, match="There is no session yet"):
            store.find()
        one, two = (store.create(Session("", t, updated=i + 1)) for i, t in enumerate("ab"))
        assert store.find(one.upper()).title == "a"
        assert store.find(two).title == "b"
        assert store.find().title == "b"
        store.add(one, StoredMessage("user", "again"))
        assert store.find().title == "a"
        with pytest.raises(UsageError, match="There is no session nothex"):
            store.find("nothex")
        with pytest.raises(UsageError, match="There is no session ;"):
            store.find("")
        ids = set()
        while len({i[0] for i in ids}) == len(ids):  # until two begin alike
            ids.add(store.create(Session("", "c")))
        first = next(i[0] for i in ids if sum(j[0] == i[0] for j in ids) > 1)
        with pytest.raises(UsageError, match=f"{first} begins the IDs of "):
            store.find(first)


def test_deleted_text_is_gone_from_the_disk(path: Path) -> None:
    with SessionStore(path) as store:
        keep, go = (store.create(Session("", t)) for t in ("keep", "go"))
        store.add(keep, StoredMessage("user", "harmless"))
        store.add(go, StoredMessage("user", "a secret " * 1000))
        store.delete([go])
        assert [s.id for s in store.sessions()] == [keep]
        assert store.messages(go) == []
        assert b"a secret" not in b"".join(f.read_bytes() for f in path.parent.iterdir())


def test_several_chats_at_once(path: Path) -> None:
    def chat(name: str) -> None:
        with SessionStore(path) as store:
            id = store.create(Session("", name))
            for i in range(20):
                store.add(id, StoredMessage("user", f"{name} {i}"))

    threads = [threading.Thread(target=chat, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with SessionStore(path) as store:
        found = {s.title: [m.content for m in store.messages(s.id)] for s in store.sessions()}
    assert found == {str(n): [f"{n} {i}" for i in range(20)] for n in range(6)}


def test_a_damaged_file_is_moved_aside(path: Path) -> None:
    with SessionStore(path) as store:
        store.create(Session("", "t"))
    damaged = b"no database at all" * 300
    path.write_bytes(damaged)
    store, note = open_store(path)
    assert store.sessions() == []
    (aside,) = path.parent.glob("sessions.db.damaged-*")
    assert (
        note == f"The sessions in {path} were damaged; they are now in {aside}, a new file begins."
    )
    assert aside.read_bytes() == damaged


def test_a_file_damaged_in_the_middle_is_noticed(path: Path) -> None:
    with SessionStore(path) as store:
        id = store.create(Session("", "t"))
        for i in range(200):
            store.add(id, StoredMessage("user", f"{i} " * 200))
    data = bytearray(path.read_bytes())
    data[20_480:28_672] = b"\xff" * 8192
    path.write_bytes(data)
    _, note = open_store(path)
    assert note is not None


def test_a_newer_file_is_left_alone(path: Path) -> None:
    with SessionStore(path) as store:
        store.create(Session("", "t"))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(SessionError, match="written by a newer parse-local"):
        open_store(path)
    assert [p.name for p in path.parent.glob("*damaged*")] == []


def test_migrations_run_once_each_and_whole() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    assert version(db) == len(MIGRATIONS)
    db.execute("INSERT INTO sessions VALUES ('a', 't', '', '{}', NULL, '{}', 0, 0)")
    more = (*MIGRATIONS, ("ALTER TABLE sessions ADD COLUMN pinned INTEGER DEFAULT 7",))
    broken = (*more, ("CREATE TABLE extra (a)", "nonsense"))
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, broken)
    assert version(db) == len(MIGRATIONS)
    migrate(db, more)
    migrate(db, more)
    assert version(db) == len(MIGRATIONS) + 1
    assert db.execute("SELECT title, pinned FROM sessions").fetchall() == [("t", 7)]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionError, match=r"cannot be used \(File exists\).*--no-history"):
        open_store(tmp_path / "file" / "sessions.db")


# the recorder


class Clock:
    now = -1.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_there_while_it_grows(path: Path) -> None:
    notes: list[str] = []
    clock = Clock()
    recorder = Recorder(SessionStore(path), notes.append, every_s=0.5, clock=clock)
    recorder.question("How many?", Setting("pair", system="S"))
    assert rows(path) == [("user", "How many?", None)]
    recorder.watch(Text("Hm.", "target", "reasoning"))
    assert rows(path)[1:] == [("assistant", "", None)]
    clock.now = 0.0
    recorder.watch(Text("Six", "draft"))
    assert rows(path)[1:] == [("assistant", "Six", None)]
    clock.now = 0.4
    recorder.watch(Text(".", "draft"))
    assert rows(path)[1:] == [("assistant", "Six", None)]  # too soon
    clock.now = 0.5
    recorder.watch(Drafted("", 1))  # brings nothing, but time has passed
    assert rows(path)[1:] == [("assistant", "Six.", None)]
    recorder.watch(Text(" No.", "target"))
    recorder.watch(Finished(ANSWER))
    kept = recorder.answered(ANSWER)
    assert rows(path)[1:] == [("assistant", "Six. No.", "length")]
    assert notes == []
    store = recorder.store
    assert store is not None
    assert store.messages(store.find().id)[1] == kept
    assert kept.figures["accepted_share"] == 0.25
    assert kept.figures["tokens_per_second"] == 2.0
    assert result_of(kept) == ANSWER


def test_a_session_ends_where_another_begins(path: Path) -> None:
    recorder = Recorder(SessionStore(path), print)
    recorder.question("one\n  two " + "x" * 80, Setting("a"))
    recorder.question("more", Setting("b"))
    recorder.leave()
    recorder.question("new", Setting("b"))
    store = recorder.store
    assert store is not None
    found = {s.title: (s.pair, s.n_messages) for s in store.sessions()}
    assert found == {"one two " + "x" * 51 + "…": ("b", 2), "new": ("b", 1)}


def test_what_cannot_be_kept_is_said_once(path: Path) -> None:
    notes: list[str] = []
    store = SessionStore(path)
    recorder = Recorder(store, notes.append)
    recorder.question("one", Setting())
    store.delete([s.id for s in store.sessions()])
    recorder.watch(Text("a", "target"))
    recorder.watch(Text("b", "target"))
    kept = recorder.answered(Result("ab", spans=(Span("ab", "target"),)))
    recorder.question("two", Setting())
    assert (kept.content, kept.id) == ("ab", None)
    assert notes == [
        "This session has been deleted elsewhere; what follows is not kept. "
        "The chat goes on without."
    ]


def test_a_disk_that_fills_up_in_mid_answer(path: Path) -> None:
    notes: list[str] = []
    store = SessionStore(path)
    recorder = Recorder(store, notes.append, every_s=0)
    recorder.question("one", Setting())
    (n_pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {n_pages}")
    recorder.watch(Text("short. ", "target"))
    long = "long " * 5000
    recorder.watch(Text(long, "target"))
    recorder.watch(Text(long, "target"))
    kept = recorder.answered(Result("short. " + 2 * long))
    assert kept.content == "short. " + 2 * long
    (note,) = notes
    assert "cannot be used (database or disk is full)" in note
    assert [row[:2] for row in rows(path)] == [("user", "one"), ("assistant", "short. ")]


def test_without_a_store_nothing_is_written(tmp_path: Path) -> None:
    recorder = Recorder(None, print)
    assert recorder.question("q", Setting()).id is None
    recorder.watch(Text("a", "target"))
    assert recorder.answered(Result("a")).content == "a"
    assert list(tmp_path.iterdir()) == []


# values


def test_titles() -> None:
    assert title_of("  a\n\tb\x1b[31m ") == "a b [31m"
    assert title_of("é" * 60) == "é" * 60
    assert title_of("é" * 61) == "é" * 59 + "…"


def test_options_of_a_session_come_back_under_those_given_now() -> None:
    stored = options_to_json(Options(temperature=0.5, stop=("a", "b"), top_k=3))
    assert json.loads(json.dumps(stored)) == {"stop": ["a", "b"], "temperature": 0.5, "top_k": 3}
    found, note = options_from_json({**stored, "of_the_future": 1}, {"top_k": 9})
    assert (found, note) == (Options(temperature=0.5, stop=("a", "b"), top_k=9), None)
    found, note = options_from_json({"top_p": 7}, {"top_k": 9})
    assert found == Options(top_k=9)
    assert note == "The session's options are not used: top_p must be between 0 and 1, not 7."


SESSION = Session(
    "0123abcd", "Eggs", "pair", {"pair": "pair"}, "Be brief.", {}, 86400.0, 90000.0, n_messages=2
)
MESSAGES = [
    StoredMessage("user", "How many?", created=86400.0),
    StoredMessage("assistant", "Six.", "Hm.", (Span("Six.", "draft"),), None, created=86401.0),
]


def test_export_to_markdown() -> None:
    text = export(SESSION, MESSAGES, "markdown")
    lines = text.splitlines()
    assert lines[0] == "# Eggs"
    assert lines[2].startswith("*pair · 1970-01-0")
    assert text.endswith(
        "\n\n## System\n\nBe brief.\n\n## You\n\nHow many?\n\n## pair\n\n"
        "<details>\n<summary>Thinking</summary>\n\nHm.\n\n</details>\n\nSix.\n\n*(interrupted)*\n"
    )


def test_export_to_json() -> None:
    found = json.loads(export(SESSION, MESSAGES, "json"))
    assert found["created"] == "1970-01-02T00:00:00Z"
    assert (found["id"], found["system"], found["n_messages"]) == ("0123abcd", "Be brief.", 2)
    question, answer = found["messages"]
    assert question == {
        "role": "user",
        "content": "How many?",
        "created": "1970-01-02T00:00:00Z",
        "in_context": True,
    }
    assert answer["spans"] == [{"text": "Six.", "source": "draft", "channel": "answer"}]
    assert (answer["reasoning"], answer["finish_reason"]) == ("Hm.", None)
