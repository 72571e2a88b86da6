"""`parse-local chat`: a conversation at the terminal."""

from __future__ import annotations

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.output import create_output
from rich.console import Console

from parse_local._version import __version__
from parse_local.errors import ParseLocalError, UsageError
from parse_local.events import Result
from parse_local.paths import history_file
from parse_local.policy import Options
from parse_local.terminal.answering import AnswersProtocol, show_answer
from parse_local.terminal.commands import Commands, is_command
from parse_local.terminal.conversation import Conversation
from parse_local.terminal.prompt import make_session, open_history, unquote
from parse_local.terminal.stats import stats_line
from parse_local.text_input import read_stdin

PROMPT = "> "


def run_chat(
    engine: AnswersProtocol,
    options: Options,
    *,
    system: str | None = None,
    quiet: bool = False,
    session: PromptSession[str] | None = None,
) -> int:
    """Talk until Ctrl-D; answers go to stdout, everything else to stderr.

    Where stdin is no terminal, all of it is one message, answered once.

    Args:
        engine: a loaded pair.
        options: how to answer, until `/strategy` or `/accept` change it.
        system: the system prompt, None for the model's own.
        quiet: no greeting and no line of statistics after each answer.
        session: the prompt to read from, None for one with the user's history.

    Returns:
        The exit status: 0, or 130 where the only answer was cancelled.

    Raises:
        ParseLocalError: the one answer to a piped message failed; at the
            terminal errors are shown and the chat goes on.
    """
    # Words wrap on a terminal; in a file each note stays one line.
    console = Console(stderr=True, soft_wrap=not sys.stderr.isatty())
    if session is None and not sys.stdin.isatty():
        return _answer_piped(engine, options, system, None if quiet else console)
    chat = _Chat(engine, options, system, quiet=quiet, console=console)
    if session is None:
        history, note = open_history(history_file())
        if note:
            chat.note(note)
        # Where stdout is a file, the prompt is drawn on stderr.
        output = None if sys.stdout.isatty() else create_output(always_prefer_tty=True)
        session = make_session(history, output)
    chat.loop(session)
    return 0


def _answer_piped(
    engine: AnswersProtocol, options: Options, system: str | None, console: Console | None
) -> int:
    question = read_stdin().strip()
    if not question:
        raise UsageError("There is no message on stdin; pipe one in, or start at a terminal.")
    result = show_answer(engine, Conversation(system).asking(question), options)
    if console is not None:
        _note(console, stats_line(result, n_ctx=engine.n_ctx))
    return 130 if result.finish_reason == "cancelled" else 0


class _Chat:
    def __init__(
        self,
        engine: AnswersProtocol,
        options: Options,
        system: str | None,
        *,
        quiet: bool,
        console: Console,
    ) -> None:
        self._engine = engine
        self._quiet = quiet
        self._console = console
        self._conversation = Conversation(system)
        self._commands = Commands(self._conversation, options, engine.profile, console)

    def note(self, text: str) -> None:
        """Say something beside the conversation."""
        _note(self._console, text)

    def loop(self, session: PromptSession[str]) -> None:
        """Read messages and answer them until Ctrl-D or `/exit`."""
        if not self._quiet:
            name = self._engine.pair_name or "local model"
            self.note(f"parse-local {__version__} · {name} · /help for help, Ctrl-D leaves")
        n_interrupts = 0
        while True:
            try:
                text = session.prompt(PROMPT)
            except KeyboardInterrupt:
                n_interrupts += 1
                if n_interrupts > 1:
                    self.note("Ctrl-D leaves.")
                continue
            except EOFError:
                return
            n_interrupts = 0
            if is_command(text):
                if not self._commands.run(text):
                    return
            elif question := unquote(text):
                self._answer(question)

    def _answer(self, question: str) -> None:
        try:
            result = show_answer(
                self._engine, self._conversation.asking(question), self._commands.options
            )
        except ParseLocalError as error:
            self._console.print(f"Error: {error}", style="red", highlight=False, markup=False)
            return
        except KeyboardInterrupt:  # before the answer began or after it ended
            return
        self._commands.last = result
        if result.text:
            self._conversation.add(question, result.text)
        else:  # an empty answer would only teach the model to be silent
            self.note("No answer; the question is not kept.")
        if not self._quiet:
            self.note(self._stats(result))

    def _stats(self, result: Result) -> str:
        return stats_line(result, n_ctx=self._engine.n_ctx)


def _note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)
