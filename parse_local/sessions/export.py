"""A session as a document: Markdown for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args

from parse_local.sessions.record import Session, StoredMessage

Format = Literal["markdown", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(session: Session, messages: Sequence[StoredMessage], format: Format) -> str:
    """The text of a document, with a line break at its end."""
    if format == "json":
        found = session_to_json(session, messages)
        return json.dumps(found, ensure_ascii=False, indent=2) + "\n"
    return to_markdown(session, messages)


def session_to_json(session: Session, messages: Sequence[StoredMessage]) -> dict[str, Any]:
    """Everything that is kept. `spans` joined give reasoning and content, times are UTC."""
    return {
        **session_to_row(session),
        "system": session.system,
        "models": dict(session.models),
        "options": dict(session.options),
        "messages": [_message_to_json(m) for m in messages],
    }


def session_to_row(session: Session) -> dict[str, Any]:
    """A session without its messages."""
    return {
        "id": session.id,
        "title": session.title,
        "pair": session.pair,
        "created": _utc(session.created),
        "updated": _utc(session.updated),
        "n_messages": session.n_messages,
    }


def _message_to_json(message: StoredMessage) -> dict[str, Any]:
    found: dict[str, Any] = {
        "role": message.role,
        "content": message.content,
        "created": _utc(message.created),
        "in_context": message.in_context,
    }
    if message.role == "assistant":
        found["reasoning"] = message.reasoning
        found["spans"] = [dataclasses.asdict(span) for span in message.spans]
        found["finish_reason"] = message.finish_reason
        found["figures"] = dict(message.figures)
    return found


def to_markdown(session: Session, messages: Sequence[StoredMessage]) -> str:
    """A document with a heading for each message."""
    name = session.pair or "parse-local"
    parts = [f"# {session.title}", f"*{name} · {local_time(session.created)}*"]
    if session.system:
        parts += ["## System", session.system]
    for message in messages:
        if message.role == "user":
            parts += ["## You", message.content]
            continue
        parts.append(f"## {name}")
        if message.reasoning:
            # Blank lines around it, so that it is read as Markdown too.
            parts.append(
                f"<details>\n<summary>Thinking</summary>\n\n{message.reasoning}\n\n</details>"
            )
        parts.append(message.content)
        if message.finish_reason != "stop":
            parts.append(f"*({_ended(message)})*")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _ended(message: StoredMessage) -> str:
    ends = {"length": "stopped at the limit of tokens", "cancelled": "stopped by Ctrl-C"}
    return ends.get(message.finish_reason or "", "interrupted")


def local_time(seconds: float) -> str:
    """Date and time of day here, e.g. "2026-01-31 17:05"."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
