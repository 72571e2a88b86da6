"""A chat on typed keys, with an engine that answers from a list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from parse_local.errors import ParseLocalError
from parse_local.events import Event, Finished, Progress, Result, Span, Text, Usage
from parse_local.policy import Options
from parse_local.profile import Profile
from parse_local.terminal.chat import run_chat
from parse_local.terminal.prompt import make_session

Message = dict[str, str]


class Scripted:
    """Answers from a list; an entry may be an error, a result, or a function that yields events.

    A token is a word: of the prompt, and of the answer.
    """

    progress = Progress()

    def __init__(
        self,
        *answers: str | Result | ParseLocalError | Callable[[], Iterator[Event]],
        n_ctx: int = 100,
        pair_name: str = "tiny",
        can_think: bool = True,
    ) -> None:
        self.can_think = can_think
        self.pair_name = pair_name
        self.n_ctx = n_ctx
        self.profile = Profile()
        self.asked: list[list[Message]] = []
        self.options: list[Options] = []
        self.cancelled = False
        self.closed = False
        self._answers = iter(answers)

    @property
    def contents(self) -> list[list[str]]:
        """The texts of all messages of every question."""
        return [[m["content"] for m in messages] for messages in self.asked]

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.closed = True

    def n_prompt(self, messages: list[Message], options: Options) -> int:
        return sum(len(m["content"].split()) for m in messages)

    def stream(self, messages: list[Message], options: Options) -> Iterator[Event]:
        self.asked.append(messages)
        self.options.append(options)
        answer = next(self._answers, "an answer")
        if isinstance(answer, ParseLocalError):
            raise answer
        if isinstance(answer, str):
            usage = Usage(self.n_prompt(messages, options), len(answer.split()))
            answer = Result(answer, usage=usage, spans=(Span(answer, "target"),))
        if isinstance(answer, Result):
            for span in answer.spans:
                yield Text(span.text, span.source, span.channel)
            yield Finished(answer)
            return
        yield from answer()


def chat(engine: Scripted, keys: str, options: Options | None = None, **kwargs: object) -> int:
    """Run a chat on typed keys; Ctrl-D is added."""
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys + "\x04")
        with create_app_session(input=keyboard, output=DummyOutput()):
            session = make_session(InMemoryHistory())
            return run_chat(engine, options or Options(), session=session, **kwargs)
