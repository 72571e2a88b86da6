"""Tables of the session database, and how an older file becomes a newer one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from parse_local.errors import SessionError

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE sessions (
            id TEXT PRIMARY KEY,
            title TEXT NOT NULL,
            pair TEXT NOT NULL,
            models TEXT NOT NULL,
            system TEXT,
            options TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )
        """,
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
            role TEXT NOT NULL,
            content TEXT NOT NULL,
            reasoning TEXT NOT NULL,
            spans TEXT NOT NULL,
            finish_reason TEXT,
            figures TEXT NOT NULL,
            in_context INTEGER NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )
        """,
        "CREATE INDEX messages_by_session ON messages(session, id)",
        "CREATE INDEX sessions_by_time ON sessions(updated)",
    ),
)
"""Statements that lead from each schema version to the next; only ever appended to."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of the block or nothing; waits for other writers first, so none is met in between."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it already
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def version(db: sqlite3.Connection) -> int:
    """Schema version of a file, 0 for an empty one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection, migrations: tuple[tuple[str, ...], ...] = MIGRATIONS) -> None:
    """Bring a file to the newest schema; several programs may try at once.

    Raises:
        SessionError: a newer parse-local has written it.
        sqlite3.Error: it cannot be written.
    """
    if version(db) == len(migrations):
        return
    with transaction(db):
        found = version(db)  # another program may have been faster
        if found > len(migrations):
            raise SessionError(
                "The sessions were written by a newer parse-local; update this one, or leave "
                "them alone with --no-history."
            )
        for statements in migrations[found:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(migrations)}")
