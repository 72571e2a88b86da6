"""Commands for what is kept: /copy /save /sessions /resume."""

from __future__ import annotations

import time
from pathlib import Path

from parse_local.errors import StorageError, UsageError
from parse_local.sessions import Session, SessionStore
from parse_local.sessions.export import export, local_time
from parse_local.sessions.record import options_to_json, title_of
from parse_local.terminal.clipboard import copy
from parse_local.terminal.dialogue import Dialogue
from parse_local.terminal.handlers.table import Command
from parse_local.terminal.stats import count

_LISTED = 15
"""Sessions that /sessions shows."""


def _copy(chat: Dialogue, argument: str) -> None:
    if chat.last is None or not chat.last.text:
        raise UsageError("There is no answer yet.")
    chat.say(copy(chat.last.text))


def _save(chat: Dialogue, argument: str) -> None:
    messages = chat.conversation.messages
    if not messages:
        raise UsageError("There is nothing to save yet.")
    first = title_of(messages[0].content)
    path = Path(argument.strip("'\"")).expanduser() if argument else _file_for(first)
    session = Session(
        chat.recorder.session or "",
        first,
        chat.engine.pair_name,
        chat.models,
        chat.conversation.system,
        options_to_json(chat.options),
        messages[0].created,
        time.time(),
        len(messages),
    )
    text = export(session, messages, "json" if path.suffix.lower() == ".json" else "markdown")
    try:
        # A file of this chat may be written again, another one is never overwritten.
        with path.open("w" if path.absolute() in chat.saved else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists already; choose another name: /save FILE.") from None
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
    chat.saved.add(path.absolute())
    chat.say(f"Saved to {path}.")


def _file_for(title: str) -> Path:
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return Path("-".join(words[:6]) or "chat").with_suffix(".md")


def _store(chat: Dialogue) -> SessionStore:
    if chat.recorder.store is None:
        raise UsageError("Sessions are not kept in this chat.")
    return chat.recorder.store


def _sessions(chat: Dialogue, argument: str) -> None:
    found = _store(chat).sessions()
    for s in found[:_LISTED]:
        here = "*" if s.id == chat.recorder.session else " "
        n = count(s.n_messages, "message")
        chat.say_row(f"{here} {s.id}  {local_time(s.updated)}  {n:>12}  {s.title}")
    if len(found) > _LISTED:
        chat.note(f"… {len(found) - _LISTED} more: parse-local sessions list")
    if not found:
        chat.say("There is no session yet.")


def _resume(chat: Dialogue, argument: str) -> None:
    store = _store(chat)
    if argument:
        session = store.find(argument)
    else:  # the latest but this one
        others = [s for s in store.sessions() if s.id != chat.recorder.session]
        if not others:
            raise UsageError("There is no other session.")
        session = others[0]
    if session.id == chat.recorder.session:
        chat.say("You are in this session.")
        return
    chat.resume(session)
    if session.pair and session.pair != chat.engine.pair_name:
        chat.note(f"It was held with {session.pair}; now {chat.engine.pair_name} goes on.")


KEEPING = (
    Command("/copy", "", "Copy the last answer to the clipboard.", _copy),
    Command(
        "/save",
        "[FILE]",
        "Write the conversation as Markdown, or JSON for a name in .json.",
        _save,
        completes="file",
    ),
    Command("/sessions", "", "List the sessions that are kept.", _sessions),
    Command(
        "/resume",
        "[ID]",
        "Go on with an earlier session; alone: the latest other one.",
        _resume,
        completes="session",
    ),
)
