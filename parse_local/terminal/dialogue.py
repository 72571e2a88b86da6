"""The state of a chat, and what asking a question does to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from parse_local.errors import ContextLengthError, ParseLocalError
from parse_local.events import Result
from parse_local.policy import Options
from parse_local.sessions import Recorder, Session, StoredMessage
from parse_local.sessions.record import options_from_json, options_to_json, result_of
from parse_local.sessions.recorder import Setting
from parse_local.terminal.answering import AnswersProtocol, show_answer
from parse_local.terminal.cells import visible
from parse_local.terminal.context_limit import ContextFull, Fit, fit
from parse_local.terminal.conversation import Conversation, Turn
from parse_local.terminal.stats import count, is_context_full, stats_line
from parse_local.terminal.transcript import print_messages

CONTINUE = "Go on exactly where you stopped."

_SHOWN = 2
"""Turns of a resumed session that are shown again."""


class Loads(Protocol):
    """Loads models while a chat runs."""

    def plan(self, models: Mapping[str, str], replaced: AnswersProtocol) -> None:
        """Raise a ParseLocalError where these models could not take the others' place."""

    def load(self, models: Mapping[str, str]) -> AnswersProtocol:
        """Load them; raises a ParseLocalError."""


@dataclass(frozen=True)
class Attachment:
    """A file that goes with the next message."""

    name: str
    text: str

    def __str__(self) -> str:
        fence = "```"
        while fence in self.text:
            fence += "`"
        return f"File {self.name}:\n\n{fence}\n{self.text.rstrip()}\n{fence}"


class Dialogue:
    """A chat without its keyboard.

    Args:
        engine: a loaded pair.
        options: how to answer.
        console: where everything but answers goes.
        system: the system prompt, None for the model's own.
        recorder: keeps what is said; None keeps nothing.
        models: what was loaded, as `load_pair` takes it.
        context_full: what to do where the conversation no longer fits.
        decide: asks the user a question with yes or no; None where nobody is there to ask.
        loader: loads other models; None where that is not possible.
        quiet: no line of statistics.
        markdown: render answers on a terminal.

    Attributes:
        last: the last answer, None before the first.
        attachments: files that go with the next message.
        typed: text to offer again at the next prompt.
        leaving: whether the user wants to leave.
        saved: files that this chat has written.
    """

    def __init__(
        self,
        engine: AnswersProtocol,
        options: Options,
        console: Console,
        *,
        system: str | None = None,
        recorder: Recorder | None = None,
        models: Mapping[str, str] | None = None,
        context_full: ContextFull = "stop",
        decide: Callable[[str], bool] | None = None,
        loader: Loads | None = None,
        quiet: bool = False,
        markdown: bool = True,
    ) -> None:
        self.engine = engine
        self.options = options
        self.console = console
        self.conversation = Conversation(system)
        self.recorder = recorder or Recorder(None, self.note)
        self.models = dict(models or {})
        self.context_full = context_full
        self.decide = decide
        self.loader = loader
        self.quiet = quiet
        self.markdown = markdown
        self.last: Result | None = None
        self.attachments: list[Attachment] = []
        self.typed = ""
        self.leaving = False
        self.saved: set[Path] = set()

    # saying

    def say(self, text: str) -> None:
        """Answer a command."""
        self.console.print(visible(text), highlight=False, markup=False)

    def say_row(self, text: str) -> None:
        """Answer a command with one row of a list, cut where the terminal ends."""
        self.console.print(
            visible(text), highlight=False, markup=False, no_wrap=True, overflow="ellipsis"
        )

    def note(self, text: str) -> None:
        """Say something beside the conversation."""
        self.console.print(visible(text), style="dim", highlight=False, markup=False)

    def complain(self, error: ParseLocalError) -> None:
        """Say what went wrong."""
        self.console.print(visible(f"Error: {error}"), style="red", highlight=False, markup=False)

    def say_where_thinking_is_idle(self) -> None:
        """Say so where the model is to think and cannot."""
        if self.options.thinking and not self.engine.can_think:
            self.note(f"{self.engine.pair_name} does not think; thinking on changes nothing.")

    # asking

    @property
    def n_used(self) -> int:
        """Tokens of context that the conversation took up after the last answer."""
        usage = self.last.usage if self.last else None
        return usage.prompt_tokens + usage.completion_tokens if usage else 0

    def with_attachments(self, text: str) -> str:
        """A message with the files that go with it."""
        return "\n\n".join([*map(str, self.attachments), text])

    def ask(
        self, text: str, *, replacing: Turn | None = None, attach: bool = True
    ) -> Result | None:
        """Ask, show the answer, and keep both.

        Args:
            text: the question, without attached files.
            replacing: a turn in whose place this one comes, once it has an answer.
            attach: put the attached files before it.

        Returns:
            The result; None where the user chose to stop before it.

        Raises:
            ParseLocalError: there is no answer, or it ended early.
        """
        question = self.with_attachments(text) if attach else text
        try:
            ready = self._make_room(question, replacing)
        except ContextLengthError:
            self.typed = text
            raise
        if not ready:
            self.typed = text
            return None
        if attach:
            self.attachments.clear()
        result = self._answer(question, text, replacing)
        if result is not None and is_context_full(result, self.engine.n_ctx):
            self._offer_to_go_on()
        return result

    def _answer(self, question: str, title: str, replacing: Turn | None) -> Result | None:
        setting = Setting(
            self.engine.pair_name,
            self.models,
            self.conversation.system,
            options_to_json(self.options),
        )
        asked = self.recorder.question(question, setting, title=title)
        messages = self.conversation.asking(question, replacing=replacing)
        try:
            result = show_answer(
                self.engine,
                messages,
                self.options,
                watch=self.recorder.watch,
                markdown=self.markdown,
                status=not self.quiet,
            )
        except (ParseLocalError, KeyboardInterrupt) as error:
            # KeyboardInterrupt: before the answer began, or when it had ended.
            answer = self.recorder.broken_off()
            self._keep(asked, answer, replacing)
            if answer.content:
                self.last = result_of(answer)
            if isinstance(error, KeyboardInterrupt):
                return None
            raise
        self.last = result
        self._keep(asked, self.recorder.answered(result), replacing)
        if not result.text:
            self.note(_no_answer(result))
        if not self.quiet:
            self.note(stats_line(result, n_ctx=self.engine.n_ctx))
        return result

    def _keep(self, asked: StoredMessage, answer: StoredMessage, replacing: Turn | None) -> None:
        if answer.content:
            self.conversation.add(Turn(asked, answer), replacing=replacing)
            if replacing is not None:
                self.recorder.remove(replacing.messages)
                if (
                    len(self.conversation.turns) == 1
                    and asked.content != replacing.question.content
                ):
                    self.recorder.rename(asked.content)
            return
        thought = None
        if answer.reasoning:  # worth keeping, but no turn of the conversation
            self.recorder.leave_out([asked, answer])
            thought = answer
        else:
            self.recorder.remove([asked, answer])
            asked = replace(asked, id=None)
        if replacing is None:
            self.conversation.leave_unanswered(asked, thought)

    # room

    def fit(self, question: str, replacing: Turn | None = None) -> Fit:
        """How a question would fit behind the conversation."""
        return fit(
            self.conversation,
            question,
            count=lambda messages: self.engine.n_prompt(messages, self.options),
            n_ctx=self.engine.n_ctx,
            max_tokens=self.options.max_tokens,
            replacing=replacing,
        )

    def _make_room(self, question: str, replacing: Turn | None) -> bool:
        found = self.fit(question, replacing)
        if not found.n_drop or not found.possible:
            return True  # the engine says itself what is too long
        full = (
            f"The conversation no longer fits: with this question it has {found.n_prompt:,} "
            f"tokens, and the context holds {found.n_ctx:,}."
        )
        turns = _oldest(found.n_drop)
        if self.context_full == "ask" and self.decide is not None:
            self.note(full)
            stays = "; the system prompt stays" if self.conversation.system else ""
            if not self.decide(f"Drop {turns}{stays}?"):
                self.note(
                    "Nothing is sent. Your text stays in the prompt, where Ctrl-C clears it; "
                    "/undo, /clear or a larger --ctx make room as well."
                )
                return False
        elif self.context_full != "drop":
            raise ContextLengthError(
                f"{full} Use --context-full drop to drop {turns}, or a larger --ctx."
            )
        self.drop(found)
        return True

    def drop(self, found: Fit) -> None:
        """Drop the oldest turns, and say so."""
        dropped = self.conversation.drop(found.n_drop)
        self.recorder.leave_out([m for turn in dropped for m in turn.messages])
        where = "the session" if self.recorder.store else "what /save writes"
        self.note(
            f"Dropped {_oldest(found.n_drop)} "
            f"({count(found.n_prompt - found.n_after, 'token')}); they stay in {where}."
        )

    def _offer_to_go_on(self) -> None:
        self.note(f"The answer ends because the context is full ({self.engine.n_ctx:,} tokens).")
        found = self.fit(CONTINUE)
        # The answer itself has to stay, or there is nothing to go on from.
        if not found.possible or not 0 < found.n_drop < len(self.conversation.seen):
            self.note("Nothing older is left to drop; a larger --ctx holds longer answers.")
        elif self.context_full == "ask" and self.decide is not None:
            turns = _oldest(found.n_drop)
            if self.decide(f"Drop {turns} and go on?"):
                self.drop(found)
                self.ask(CONTINUE, attach=False)
        elif self.context_full == "drop":
            self.note("Ask it to go on; the oldest turns will be dropped.")

    # sessions

    def resume(
        self, session: Session, *, options: Options | None = None, show: bool = True
    ) -> None:
        """Go on with an earlier session.

        Args:
            session: of the recorder's store.
            options: how to answer; None for the session's own.
            show: print how it ended.
        """
        assert self.recorder.store is not None
        messages = self.recorder.store.messages(session.id)
        if options is None:
            options, note = options_from_json(session.options)
            if note:
                self.note(note)
        self.options = options
        self.conversation = Conversation(session.system, messages)
        self.recorder.resume(session)
        turns = self.conversation.turns
        self.last = result_of(turns[-1].answer) if turns else None
        if not show:
            return
        self.note(f"Resumed: {session.title} ({session.id})")
        if len(turns) > _SHOWN:
            n = len(turns) - _SHOWN
            self.note(f"… {count(n, 'earlier turn')} (parse-local sessions show {session.id})")
        shown = [m for turn in turns[-_SHOWN:] for m in turn.messages]
        if self.conversation.unanswered is not None:
            shown.append(self.conversation.unanswered)
        print_messages(shown, self.console)
        if self.conversation.unanswered is not None:
            self.note("The last question has no answer; /regen asks it again.")


def _no_answer(result: Result) -> str:
    # An empty answer would only teach the model to be silent, so that it becomes no turn.
    if not result.reasoning:
        return "No answer; the question is not kept."
    more = ", a larger --max-tokens lets it finish" if result.finish_reason == "length" else ""
    return f"It thought and gave no answer; /regen asks again{more}."


def _oldest(n: int) -> str:
    return "the oldest turn" if n == 1 else f"the {n:,} oldest turns"
