"""Chats on disk: kept as they happen, listed, resumed, exported, deleted."""

from parse_local.sessions.record import Session, StoredMessage
from parse_local.sessions.recorder import Recorder
from parse_local.sessions.store import SessionStore, open_store

__all__ = ["Recorder", "Session", "SessionStore", "StoredMessage", "open_store"]
