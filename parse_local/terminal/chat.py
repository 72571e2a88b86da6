"""`parse-local chat`: a conversation at the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.output import create_output
from rich.console import Console

from parse_local._version import __version__
from parse_local.catalog import load_catalog
from parse_local.errors import ParseLocalError, SessionError, UsageError
from parse_local.paths import history_file
from parse_local.policy import Options
from parse_local.sessions import Recorder, Session, SessionStore
from parse_local.terminal.answering import AnswersProtocol
from parse_local.terminal.commands import is_command, run_command
from parse_local.terminal.context_limit import ContextFull
from parse_local.terminal.dialogue import Dialogue, Loads
from parse_local.terminal.handlers.settings import completions
from parse_local.terminal.handlers.showing import show_thinking
from parse_local.terminal.prompt import make_session, open_history, unquote
from parse_local.terminal.status import toolbar
from parse_local.text_input import read_stdin, require_text

PROMPT = "> "


def run_chat(
    engine: AnswersProtocol,
    options: Options,
    *,
    question: str | None = None,
    system: str | None = None,
    quiet: bool = False,
    store: SessionStore | None = None,
    resume: Session | None = None,
    models: Mapping[str, str] | None = None,
    context_full: ContextFull | None = None,
    loader: Loads | None = None,
    remember: bool = True,
    markdown: bool = True,
    session: PromptSession[str] | None = None,
) -> int:
    """Talk until Ctrl-D; answers go to stdout, everything else to stderr.

    Where stdin is no terminal, all of it (and `question` behind it) is one message,
    answered once.

    Args:
        engine: a loaded pair.
        options: how to answer, until a command changes it.
        question: the first message, None to wait for one.
        system: the system prompt, None for the session's, or for the model's own.
        quiet: no greeting and no line of statistics after each answer.
        store: where to keep the chat, None to keep nothing.
        resume: a session of the store to go on with.
        models: what was loaded, as `load_pair` takes it.
        context_full: what to do where the conversation no longer fits; None asks at a
            terminal and stops elsewhere.
        loader: loads other models.
        remember: keep what was typed for later chats.
        markdown: render answers on a terminal.
        session: the prompt to read from, None for one of its own.

    Returns:
        The exit status: 0, or 130 where the only answer was cancelled.

    Raises:
        UsageError: the system prompt is no text.
        ParseLocalError: the one answer to a piped message failed; at the
            terminal errors are shown and the chat goes on.
    """
    if system is not None:
        require_text(system, "The system prompt")
    # Words wrap on a terminal; in a file each note stays one line.
    console = Console(stderr=True, soft_wrap=not sys.stderr.isatty())
    at_terminal = session is not None or sys.stdin.isatty()
    chat = Dialogue(
        engine,
        options,
        console,
        system=system,
        models=models,
        context_full=context_full or ("ask" if at_terminal else "stop"),
        loader=loader,
        quiet=quiet,
        markdown=markdown,
    )
    chat.recorder = Recorder(store, chat.note)
    if at_terminal and not quiet:
        name = engine.pair_name or "local model"
        chat.note(f"parse-local {__version__} · {name} · /help for help, Ctrl-D leaves")
    if resume is not None:
        chat.resume(resume, options=options, show=at_terminal and not quiet)
        chat.conversation.system = system or resume.system
    chat.say_where_thinking_is_idle()
    try:
        if not at_terminal:
            return _answer_piped(chat, question)
        session = session or _own_session(chat, remember)
        chat.decide = _Decision(session)
        _loop(chat, session, question)
    finally:
        if chat.engine is not engine:  # the caller closes what it has loaded
            chat.engine.close()
    return 0


def _own_session(chat: Dialogue, remember: bool) -> PromptSession[str]:
    history, note = open_history(history_file()) if remember else (InMemoryHistory(), None)
    if note:
        chat.note(note)
    # Where stdout is a file, the prompt is drawn on stderr.
    output = None if sys.stdout.isatty() else create_output(always_prefer_tty=True)
    return make_session(
        history,
        output,
        toolbar=lambda: _toolbar(chat),
        names={
            "pair": lambda: load_catalog().pairs,
            "session": lambda: _session_ids(chat),
            "setting": completions,
        },
        on_thinking=lambda: show_thinking(chat),
    )


def _session_ids(chat: Dialogue) -> Iterable[str]:
    try:
        return [s.id for s in chat.recorder.store.sessions()] if chat.recorder.store else []
    except SessionError:  # Tab shows no errors
        return []


def _toolbar(chat: Dialogue) -> FormattedText:
    more = [f"with {', '.join(a.name for a in chat.attachments)}"] if chat.attachments else []
    if chat.recorder.store is None:
        more.append("not kept")
    found = toolbar(
        chat.engine.pair_name,
        chat.n_used,
        chat.engine.n_ctx,
        chat.options.strategy,
        more,
        columns=get_app().output.get_size().columns,
    )
    return FormattedText(found)


def _answer_piped(chat: Dialogue, question: str | None) -> int:
    text = "\n\n".join(part for part in (read_stdin().strip(), question) if part)
    if not require_text(text, "The message").strip():
        raise UsageError("There is no message on stdin; pipe one in, or start at a terminal.")
    result = chat.ask(text)
    return 130 if result is None or result.finish_reason == "cancelled" else 0


class _Decision:
    """Asks yes or no on the terminal of a prompt, past its history; no is the default."""

    def __init__(self, session: PromptSession[str]) -> None:
        self._prompt = PromptSession[str](
            history=InMemoryHistory(), input=session.input, output=session.output
        )

    def __call__(self, question: str) -> bool:
        try:
            return self._prompt.prompt(f"{question} [y/N] ").strip().lower() in ("y", "yes")
        except (KeyboardInterrupt, EOFError):
            return False


def _loop(chat: Dialogue, session: PromptSession[str], question: str | None) -> None:
    """Read messages and answer them until Ctrl-D or `/exit`."""
    if question and (question := require_text(question, "The message").strip()):
        chat.note("\n".join(f"> {line}" for line in question.split("\n")))
        _handle(chat, question)
    n_interrupts = 0
    while not chat.leaving:
        typed, chat.typed = chat.typed, ""
        try:
            text = session.prompt(PROMPT, default=typed)
        except KeyboardInterrupt:
            n_interrupts += 1
            if n_interrupts > 1:
                chat.note("Ctrl-D leaves.")
            continue
        except EOFError:
            return
        n_interrupts = 0
        _handle(chat, text)


def _handle(chat: Dialogue, text: str) -> None:
    try:
        if is_command(text):
            run_command(chat, text)
        elif question := unquote(text):
            chat.ask(question)
    except ParseLocalError as error:
        chat.complain(error)
    except KeyboardInterrupt:  # between two answers, or in a command
        pass
