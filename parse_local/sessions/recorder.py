"""Writes a chat into the store while it happens, and never disturbs it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from parse_local.errors import SessionError
from parse_local.events import Event, Finished, Result, Span, Text
from parse_local.sessions.record import Session, StoredMessage, figures_of, title_of
from parse_local.sessions.store import SessionStore

WRITE_EVERY_S = 0.5
"""A growing answer is written at most this often; a killed chat loses no more than that."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Setting:
    """What a session is held with: its row without title and times."""

    pair: str = ""
    models: Mapping[str, str] = field(default_factory=dict, hash=False)
    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Recorder:
    """Keeps one chat; what goes wrong is said once, and the chat goes on unkept.

    Args:
        store: where to; None keeps nothing.
        note: says something to the user.
        every_s: seconds between two writes of a growing answer.
        clock: seconds from anywhere.
    """

    def __init__(
        self,
        store: SessionStore | None,
        note: Callable[[str], None],
        *,
        every_s: float = WRITE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.session: str | None = None
        self._note = note
        self._every_s = every_s
        self._clock = clock
        self._setting: Setting | None = None
        self._answer = StoredMessage("assistant", "")
        self._written_at = -math.inf
        self._unwritten = False

    def resume(self, session: Session) -> None:
        """What follows belongs to this session."""
        self.session = session.id
        self._setting = Setting(session.pair, session.models, session.system, session.options)

    def leave(self) -> None:
        """The next question begins a session of its own."""
        self.session = None
        self._setting = None

    def question(self, text: str, setting: Setting, *, title: str = "") -> StoredMessage:
        """Write a question, before its answer begins; the first one opens the session.

        Args:
            text: the question.
            setting: what the session is held with from now on.
            title: of the session, if this is its first question; "" for the question itself.
        """
        message = StoredMessage("user", text, created=time.time())
        self._answer = StoredMessage("assistant", "", created=time.time())
        self._unwritten = False

        def write(store: SessionStore) -> int:
            if self.session is None:
                self.session = store.create(
                    Session(
                        "",
                        title_of(title or text),
                        setting.pair,
                        setting.models,
                        setting.system,
                        setting.options,
                    )
                )
            elif setting != self._setting:
                store.describe(
                    self.session,
                    pair=setting.pair,
                    models=setting.models,
                    system=setting.system,
                    options=setting.options,
                )
            self._setting = setting
            return store.add(self.session, message)

        return replace(message, id=self._try(write))

    def watch(self, event: Event) -> None:
        """Keep final text as it comes; to be called with every event of the answer."""
        if isinstance(event, Text) and event.text:
            self._answer = _grown(self._answer, event)
            self._unwritten = True
        if isinstance(event, Finished) or not self._unwritten:
            return
        # Also on events without text, so that the last piece waits no longer than the others.
        if self._clock() - self._written_at >= self._every_s:
            self._write()

    def answered(self, result: Result) -> StoredMessage:
        """Write the answer as it has ended."""
        self._answer = replace(
            self._answer,
            content=result.text,
            reasoning=result.reasoning,
            spans=result.spans,
            finish_reason=result.finish_reason,
            figures=figures_of(result),
        )
        self._write()
        return self._answer

    def broken_off(self) -> StoredMessage:
        """Write what there is of an answer that ended with an error."""
        if self._unwritten:
            self._write()
        return self._answer

    def remove(self, messages: Sequence[StoredMessage]) -> None:
        """Take messages back; a session without any is deleted."""
        ids = [m.id for m in messages if m.id is not None]
        session = self.session
        if not ids or session is None:
            return

        def remove(store: SessionStore) -> bool:
            store.remove(ids)
            if store.messages(session):
                return False
            store.delete([session])
            return True

        if self._try(remove):
            self.leave()

    def rename(self, question: str) -> None:
        """The session begins with another question now."""
        session = self.session
        if session is not None:
            self._try(lambda store: store.rename(session, title_of(question)))

    def leave_out(self, messages: Sequence[StoredMessage]) -> None:
        """Note that the models no longer see these messages."""
        if ids := [m.id for m in messages if m.id is not None]:
            self._try(lambda store: store.leave_out(ids))

    def _write(self) -> None:
        answer, session = self._answer, self.session
        self._written_at = self._clock()
        self._unwritten = False
        if session is None:
            return
        if answer.id is None:
            id = self._try(lambda store: store.add(session, answer))
            self._answer = replace(answer, id=id)
        else:
            id = answer.id
            self._try(lambda store: store.update(session, id, answer))

    def _try(self, write: Callable[[SessionStore], _Value]) -> _Value | None:
        if self.store is None:
            return None
        try:
            return write(self.store)
        except SessionError as error:
            self._note(f"{error} The chat goes on without.")
            self.store.close()
            self.store = self.session = None
            return None


def _grown(answer: StoredMessage, event: Text) -> StoredMessage:
    spans, new = answer.spans, Span(event.text, event.source, event.channel)
    if spans and (spans[-1].source, spans[-1].channel) == (new.source, new.channel):
        spans, new = spans[:-1], replace(new, text=spans[-1].text + new.text)
    spans = (*spans, new)
    if event.channel == "reasoning":
        return replace(answer, reasoning=answer.reasoning + event.text, spans=spans)
    return replace(answer, content=answer.content + event.text, spans=spans)
