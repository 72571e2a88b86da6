"""Messages → prompt text, and the judge's suffix, both from the model's own chat template."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from parse_local.errors import TemplateError
from parse_local.thinking import skip_thinking

Message = dict[str, Any]
"""A turn: its `role` and `content`; the assistant's may have `tool_calls`, and as
`reasoning_content` what it thought, which its template uses or drops."""

Tool = dict[str, Any]
"""A function that the model may call, as OpenAI's API describes it."""


def split_begun(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """A conversation without the words of the assistant that it ends with, and those.

    Calls of tools cannot be gone on with; with them nothing has begun.
    """
    if not messages or messages[-1].get("role") != "assistant" or messages[-1].get("tool_calls"):
        return messages, ""
    return messages[:-1], messages[-1].get("content") or ""


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What llama.cpp falls back to for a file without a template."""

# Digits survive templates that strip, trim, upper- or lower-case earlier turns.
_ANSWER = "739104826517"


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; for a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - the class attribute that Jinja asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Fold system messages into the next user turn and join neighbours of the same role.

    Some templates refuse a system role, or turns that do not alternate.
    """
    merged: list[Message] = []
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        plain = role != "tool" and "tool_calls" not in message
        if plain and merged and merged[-1]["role"] == role and "tool_calls" not in merged[-1]:
            merged[-1]["content"] += "\n\n" + message["content"]
        else:
            merged.append({**message, "role": role})
    return merged


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja source, None for ChatML.
        bos, eos: texts that the template may insert.
        end_of_turn: text that closes an answer, for templates that drop earlier answers.
        name: of the model, for error messages.

    Raises:
        TemplateError: the source is not valid Jinja.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        end_of_turn: str = "",
        name: str = "the model",
    ) -> None:
        self.is_fallback = source is None
        self._reasoning_names = [
            name
            for name in ("thinking", "reasoning")
            if re.search(rf"""\.{name}\b|['"]{name}['"]\s+in\b|get\(['"]{name}['"]""", source or "")
        ]
        self._thinks_in_blocks = bool(re.search(r"""==\s*['"]thinking['"]""", source or ""))
        self._variables = {"bos_token": bos, "eos_token": eos}
        self._end_of_turn = end_of_turn or eos
        self._name = name
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(CHATML if source is None else source)
        except Exception as error:  # Python compiles what Jinja writes, and may refuse it too
            raise TemplateError(
                f"The chat template of {name} is not valid Jinja ({error}); "
                "use another conversion of the model."
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = False,
        tools: Sequence[Tool] | None = None,
    ) -> str:
        """The prompt for the next answer.

        Args:
            messages: the conversation, each with `role` and `content`; the last is the user's.
            thinking: for templates that know `enable_thinking`, `thinking` or
                `thinking_budget`; others always let the model think, or never.
            tools: functions that the model may call.

        Raises:
            TemplateError: the template refuses these messages even with system
                turns folded into user turns, or leaves the tools out.
        """
        messages = [self._turn(message) for message in messages]
        text = self._render_somehow(messages, thinking, tools)
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        if not all(named["function"]["name"] in text for named in [*(tools or ()), *calls]):
            raise TemplateError(
                f"The chat template of {self._name} has no place for tools and their calls; leave "
                "them out, or use a model that was trained to call tools."
            )
        return text

    def _render_somehow(
        self, messages: Sequence[Message], thinking: bool, tools: Sequence[Tool] | None
    ) -> str:
        try:
            if not self._drops_system:
                return self._render(list(messages), thinking, tools)
        except Exception:  # a template may raise anything: try once more, its neighbours merged
            pass
        try:
            return self._render(merge_turns(messages), thinking, tools)
        except Exception as error:
            raise TemplateError(
                f"The chat template of {self._name} refuses this conversation ({error}); "
                "start a new one, or use another model."
            ) from error

    def _turn(self, message: Message) -> Message:
        # Calls may come without content, and with arguments that OpenAI's API has as a text.
        turn = {**message, "content": message.get("content") or ""}
        if not turn.pop("tool_calls", None):
            return turn
        calls = []
        for call in message["tool_calls"]:
            function, arguments = call["function"], call["function"].get("arguments") or {}
            if isinstance(arguments, str) and not self._wants_arguments_as_text:
                with suppress(ValueError, RecursionError):  # the template writes it as it is
                    arguments = json.loads(arguments)
            elif not isinstance(arguments, str) and self._wants_arguments_as_text:
                arguments = _tojson(arguments)
            calls.append({**call, "function": {**function, "arguments": arguments}})
        return {**turn, "tool_calls": calls}

    @cached_property
    def _wants_arguments_as_text(self) -> bool:
        # Most templates write an object as JSON; some join texts, or show an object as Python does.
        call = {"name": "f", "arguments": {"argument": _ANSWER}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        turns: list[Message] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a1b2c3d4e"}]},
            {"role": "tool", "content": "!", "tool_call_id": "a1b2c3d4e", "name": "f"},
        ]
        turns[1]["tool_calls"][0] |= {"type": "function", "function": call}
        try:
            return f'"argument": "{_ANSWER}"' not in self._render(turns, False, [tool])
        except Exception:
            return True

    @cached_property
    def _drops_system(self) -> bool:
        # Some templates skip a role that they do not know, without a word.
        turns = [{"role": "system", "content": _ANSWER}, {"role": "user", "content": "?"}]
        try:
            return _ANSWER not in self._render(turns, False)
        except Exception:
            return False  # refuses it, which `render` sees for itself

    def _render(
        self, messages: list[Message], thinking: bool, tools: Sequence[Tool] | None = None
    ) -> str:
        return self._template.render(
            messages=[self._with_reasoning(m) for m in messages],
            add_generation_prompt=True,
            enable_thinking=thinking,
            thinking=thinking,
            **({} if thinking else {"thinking_budget": 0}),
            tools=list(tools) if tools else None,
            **self._variables,
        )

    def _with_reasoning(self, message: Message) -> Message:
        # Where the template looks for it. What it does with it is the template's choice.
        reasoning = message.get("reasoning_content")
        if not reasoning:
            return message
        message = {**message, **dict.fromkeys(self._reasoning_names, reasoning)}
        if self._thinks_in_blocks:
            text = {"type": "text", "text": message.get("content") or ""}
            return {**message, "content": [{"type": "thinking", "thinking": reasoning}, text]}
        if "thinking" in self._reasoning_names and message.get("tool_calls"):
            return {**message, "content": ""}  # gpt-oss's takes one of the two before a call
        return message

    def suffix(self, messages: Sequence[Message], question: str) -> str:
        """What follows an answer when `question` is the next user turn, up to the reply to it.

        The conversation is rendered with a stand-in for the answer and the
        question behind it, and cut behind the stand-in (PARSE, section 3).

        Args:
            messages: the conversation that the answer belongs to.
            question: the judge's question.

        Raises:
            TemplateError: the template refuses to have the question asked.
        """
        question = question.strip()  # many templates trim turns
        asking = {"role": "user", "content": question}
        # System turns are left out: some templates put them into the last user
        # turn, and every fork would read them again. The question stands in for
        # the last turn too, which shows how the template opens an answer.
        turns = [m for m in messages if m["role"] != "system"][:-1]
        said = "\n".join([question, *(m["content"] for m in turns)])
        stand_in = int(_ANSWER)
        while str(stand_in) in said:
            stand_in += 1
        answer = {"role": "assistant", "content": str(stand_in)}
        text = self.render([*turns, asking, answer, asking])
        head, found, behind = text.rpartition(answer["content"])
        if not found or question not in behind:
            return skip_thinking(self._close_by_hand(text, question, answer["content"]))
        asked, _, prompt = behind.rpartition(question)
        # Where the template opens an answer further than its generation prompt
        # does (a channel to choose, a recipient), the reply begins there.
        opened = head.rpartition(question)[2]
        if question in head and answer["content"] not in opened and opened.startswith(prompt):
            prompt = opened
        return asked + question + skip_thinking(prompt)

    def _close_by_hand(self, text: str, question: str, answer: str) -> str:
        # For a template that drops or rewrites earlier answers, so that no cut
        # can be found. `text` has the question on both sides of the answer.
        _, *between = text.split(question)
        start = between[-2].rfind(self._end_of_turn) if len(between) > 1 else -1
        if start >= 0 and self._end_of_turn and answer not in between[-1]:
            return between[-2][start:] + question + between[-1]
        alone = self.render([{"role": "user", "content": question}])
        return self._end_of_turn + "\n" + alone.removeprefix(self._variables["bos_token"])
