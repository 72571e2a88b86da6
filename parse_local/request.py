"""What is asked for: a conversation to be answered, or a text to be gone on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from parse_local.channels import Parser
from parse_local.chat_template import Message, Tool, split_begun
from parse_local.errors import UsageError
from parse_local.forced_calls import ToolChoice, call_grammar, forces
from parse_local.policy import Options
from parse_local.tool_calls import CallScanner
from parse_local.writer import Writer


class Request(Protocol):
    """What the engine needs to know of it."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation that verdicts are about."""
        ...

    def check(self, options: Options, writer: Writer) -> Options:
        """The options as they apply to it, where `writer` answers.

        Raises:
            UsageError: they ask for what it cannot have.
        """
        ...

    def parser(self, writer: Writer, prompt: Sequence[int]) -> Parser:
        """Tells reasoning from the answer in what the model writes behind its prompt."""
        ...

    def calls(self, writer: Writer) -> tuple[CallScanner, Mapping[int, bytes]]:
        """Tells calls from the answer's text; and markers of calls that are control tokens."""
        ...

    def tokens(self, writer: Writer) -> list[int]:
        """The prompt in a model's own tokens; raises as `Writer.prompt` and `Writer.encode`."""
        ...


@dataclass(frozen=True)
class Chat:
    """A conversation, rendered by each model's own chat template.

    Args:
        conversation: its turns; where the last is the assistant's, the answer goes on with it.
        tools: functions that the model may call.
        thinking: let the model think.
        tool_choice: whether the answer has to be a call, and of what.
    """

    conversation: Sequence[Message]
    tools: Sequence[Tool] | None = None
    thinking: bool = False
    tool_choice: ToolChoice = "auto"

    @property
    def messages(self) -> Sequence[Message]:
        """What is to be answered."""
        return split_begun(self.conversation)[0]

    def check(self, options: Options, writer: Writer) -> Options:
        """All of them apply; where the answer has to be a call, a grammar sees to it."""
        if self.tools and options.grammar is not None:
            raise UsageError(
                "Under a grammar no tool can be called; leave out the tools, or the grammar."
            )
        if not forces(self.tool_choice):
            return options
        if split_begun(self.conversation)[1]:
            raise UsageError(
                "An answer that has begun with words cannot be made a call; leave out tool_choice, "
                "or the assistant's message at the end."
            )
        grammar = call_grammar(writer.call_format, self.tools or (), self.tool_choice)
        return replace(options, grammar=grammar)

    def calls(self, writer: Writer) -> tuple[CallScanner, Mapping[int, bytes]]:
        """In the form that the model's template shows, where there are tools."""
        if not self.tools:
            return CallScanner(), {}
        return CallScanner(writer.call_format, self.tools), writer.call_controls

    def parser(self, writer: Writer, prompt: Sequence[int]) -> Parser:
        """By the model's own marks."""
        parser = writer.parser(prompt)
        parser.tells_calls = bool(self.tools)
        return parser

    def tokens(self, writer: Writer) -> list[int]:
        """The rendered conversation."""
        return writer.prompt(self.conversation, thinking=self.thinking, tools=self.tools)


@dataclass(frozen=True)
class Completion:
    """A text to be gone on with; there is no question in it, so that nothing can be judged."""

    text: str

    @property
    def messages(self) -> Sequence[Message]:
        """None."""
        return ()

    def check(self, options: Options, writer: Writer) -> Options:
        """Acceptance is "exact" where the options leave it open."""
        judged = options.accept in ("semantic", "fused")
        if judged or options.strategy in ("confspec", "specreason"):
            what = f"accept={options.accept}" if judged else f"strategy={options.strategy}"
            raise UsageError(
                f"{what} asks whether an answer is correct, and a completion without a chat "
                "has no question; use accept=exact or loose, or send messages."
            )
        if options.accept is None and options.strategy in ("auto", "parse"):
            return replace(options, accept="exact")
        return options

    def parser(self, writer: Writer, prompt: Sequence[int]) -> Parser:
        """All of it is text."""
        return Parser()

    def calls(self, writer: Writer) -> tuple[CallScanner, Mapping[int, bytes]]:
        """All of it is text."""
        return CallScanner(), {}

    def tokens(self, writer: Writer) -> list[int]:
        """The text."""
        return writer.encode(self.text)
