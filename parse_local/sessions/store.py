"""The session database: SQLite with a write-ahead log, one row a message.

A transaction is whole or absent, however the program ends. Several chats may write at
once. The log is not forced to the disk with every row: a power failure can cost the last
seconds, a killed program nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parse_local.errors import SessionError, UsageError
from parse_local.sessions.record import (
    Session,
    StoredMessage,
    spans_from_json,
    spans_to_json,
)
from parse_local.sessions.schema import migrate, transaction

_BUSY_S = 5.0
"""How long a write waits for another chat's, which take milliseconds."""


def open_store(path: Path) -> tuple[SessionStore, str | None]:
    """The sessions in a file; one that is damaged is moved aside and a new one begun.

    Args:
        path: the database; made readable by its owner only, directories are created.

    Returns:
        The store, and a note for the user where the file was moved.

    Raises:
        SessionError: it cannot be written, or a newer parse-local has written it.
    """
    try:
        return SessionStore(path), None
    except _DamagedError:
        aside = _move_aside(path)
        note = f"The sessions in {path} were damaged; they are now in {aside}, a new file begins."
        return SessionStore(path), note


class _DamagedError(SessionError):
    """The file is no SQLite database, or not a sound one."""


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        for ending in ("-wal", "-shm", ""):  # the file last: while it lies there it is tried again
            part = path.with_name(path.name + ending)
            if part.exists():
                part.replace(aside.with_name(aside.name + ending))
    except OSError as error:
        raise SessionError(
            f"The sessions in {path} are damaged and cannot be moved ({error.strerror}); "
            "move the file away, or use --no-history."
        ) from error
    return aside


class SessionStore:
    """All sessions of a user; one object belongs to one thread.

    Args:
        path: the database.

    Raises:
        SessionError: it cannot be opened, here and in every method: written or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translated():
            _make_private(path)
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            with self._translated():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        db = self._db
        # What is deleted is overwritten, not only unlinked.
        for pragma in ("foreign_keys = ON", "synchronous = NORMAL", "secure_delete = ON"):
            db.execute(f"PRAGMA {pragma}")
        _write_ahead(db)
        sound = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        migrate(db)

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # sessions

    def create(self, session: Session) -> str:
        """Begin a session and return its ID, which is drawn; `session.id` is ignored."""
        now = time.time()
        with self._writing():
            while True:
                id = secrets.token_hex(4)
                taken = self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (id,)).fetchone()
                if not taken:
                    break
            self._db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    id,
                    session.title,
                    session.pair,
                    json.dumps(dict(session.models)),
                    session.system,
                    json.dumps(dict(session.options)),
                    session.created or now,
                    session.updated or now,
                ),
            )
        return id

    def describe(
        self,
        id: str,
        *,
        pair: str,
        models: Mapping[str, str],
        system: str | None,
        options: Mapping[str, Any],
    ) -> None:
        """Keep what a session is held with from now on."""
        with self._writing():
            self._db.execute(
                "UPDATE sessions SET pair = ?, models = ?, system = ?, options = ? WHERE id = ?",
                (pair, json.dumps(dict(models)), system, json.dumps(dict(options)), id),
            )

    def rename(self, id: str, title: str) -> None:
        """Give a session another title."""
        with self._writing():
            self._db.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, id))

    def sessions(self) -> list[Session]:
        """All sessions, the latest first."""
        with self._translated():
            rows = self._db.execute(_SESSIONS + " ORDER BY s.updated DESC, s.rowid DESC")
            return [_session(row) for row in rows]

    def find(self, prefix: str | None = None) -> Session:
        """The session whose ID begins so, the latest one without a prefix.

        Raises:
            UsageError: there is none, or more than one.
        """
        found = self.sessions()
        if prefix is None:
            if not found:
                raise UsageError("There is no session yet; `parse-local chat` begins one.")
            return found[0]
        fitting = [s for s in found if prefix and s.id.startswith(prefix.lower())]
        if not fitting:
            raise UsageError(
                f"There is no session {prefix}; `parse-local sessions list` shows those there are."
            )
        if len(fitting) > 1:
            ids = ", ".join(s.id for s in fitting[:5])
            raise UsageError(f"{prefix} begins the IDs of {len(fitting)} sessions ({ids}).")
        return fitting[0]

    def delete(self, ids: Sequence[str]) -> None:
        """Remove sessions with their messages; their text is overwritten on the disk."""
        with self._writing():
            self._db.executemany("DELETE FROM sessions WHERE id = ?", [(id,) for id in ids])
        with self._translated():  # the log holds copies of what was deleted
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # messages

    def messages(self, id: str) -> list[StoredMessage]:
        """A session's questions and answers, in order."""
        with self._translated():
            rows = self._db.execute(
                "SELECT id, role, content, reasoning, spans, finish_reason, figures, in_context, "
                "created FROM messages WHERE session = ? ORDER BY id",
                (id,),
            )
            return [_message(row) for row in rows]

    def add(self, session: str, message: StoredMessage) -> int:
        """Append a message to a session and return its ID in the database."""
        now = time.time()
        with self._writing():
            try:
                cursor = self._db.execute(
                    "INSERT INTO messages (session, role, content, reasoning, spans, "
                    "finish_reason, figures, in_context, created, updated) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        session,
                        message.role,
                        *_growing(message),
                        message.in_context,
                        message.created or now,
                        now,
                    ),
                )
            except sqlite3.IntegrityError as error:
                raise _deleted() from error
            self._touch(session, now)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def update(self, session: str, id: int, message: StoredMessage) -> None:
        """Replace the text of an answer, which has grown, and what belongs to it."""
        now = time.time()
        with self._writing():
            cursor = self._db.execute(
                "UPDATE messages SET content = ?, reasoning = ?, spans = ?, finish_reason = ?, "
                "figures = ?, updated = ? WHERE id = ?",
                (*_growing(message), now, id),
            )
            if not cursor.rowcount:
                raise _deleted()
            self._touch(session, now)

    def remove(self, ids: Sequence[int]) -> None:
        """Take messages back."""
        with self._writing():
            self._db.executemany("DELETE FROM messages WHERE id = ?", [(id,) for id in ids])

    def leave_out(self, ids: Sequence[int]) -> None:
        """Note that the models no longer see these messages; they stay."""
        with self._writing():
            self._db.executemany(
                "UPDATE messages SET in_context = 0 WHERE id = ?", [(id,) for id in ids]
            )

    def _touch(self, session: str, now: float) -> None:
        self._db.execute("UPDATE sessions SET updated = ? WHERE id = ?", (now, session))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._translated(), transaction(self._db):
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # Only a damaged file raises the base class itself.
            kind = _DamagedError if type(error) is sqlite3.DatabaseError else SessionError
            raise kind(_sentence(self.path, str(error))) from error
        except OSError as error:
            raise SessionError(_sentence(self.path, error.strerror or str(error))) from error


def _sentence(path: Path, reason: str) -> str:
    return (
        f"The sessions in {path} cannot be used ({reason}); check its permissions and the free "
        "space, or use --no-history."
    )


def _deleted() -> SessionError:
    return SessionError("This session has been deleted elsewhere; what follows is not kept.")


def _make_private(path: Path) -> None:
    # SQLite gives the files beside it the permissions of the database.
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if os.name != "nt" and path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _write_ahead(db: sqlite3.Connection) -> None:
    # SQLite does not wait for other connections here. A file system on which several
    # programs cannot share memory keeps the old journal, which is safe too.
    for attempt in range(50):
        try:
            db.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt == 49:
                raise
            time.sleep(0.02)


_SESSIONS = (
    "SELECT s.id, s.title, s.pair, s.models, s.system, s.options, s.created, s.updated, "
    "(SELECT count(*) FROM messages WHERE session = s.id) FROM sessions AS s"
)


def _session(row: Sequence[Any]) -> Session:
    id, title, pair, models, system, options, created, updated, n_messages = row
    return Session(
        id, title, pair, json.loads(models), system, json.loads(options), created, updated,
        n_messages,
    )  # fmt: skip


def _growing(message: StoredMessage) -> tuple[Any, ...]:
    return (
        message.content,
        message.reasoning,
        spans_to_json(message.spans),
        message.finish_reason,
        json.dumps(dict(message.figures)),
    )


def _message(row: Sequence[Any]) -> StoredMessage:
    id, role, content, reasoning, spans, finish_reason, figures, in_context, created = row
    return StoredMessage(
        role,
        content,
        reasoning,
        spans_from_json(spans, content, reasoning),
        finish_reason,
        json.loads(figures),
        created,
        bool(in_context),
        id,
    )
