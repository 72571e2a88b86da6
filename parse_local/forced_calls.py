"""Grammars that hold an answer to one call of a tool, in the notation of the model's template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parse_local.call_formats import CallFormat
from parse_local.errors import GrammarError, UsageError
from parse_local.gbnf import ROOT, check_grammar
from parse_local.grammar import literal, schema_rules
from parse_local.tool_calls import Tool

ToolChoice = str | Mapping[str, Any]
"""As in OpenAI's API: "auto", "required", or {"type": "function", "function": {"name": ...}}."""

_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
_PLACES = re.compile(r"\{(call|name|arguments)\}")


def forces(choice: ToolChoice) -> bool:
    """Whether the answer has to be a call."""
    return choice != "auto"


def call_grammar(form: CallFormat | None, tools: Sequence[Tool], choice: ToolChoice) -> str:
    """The grammar of one call, and nothing beside it.

    Arguments validate against the tool's schema. Where a grammar cannot guarantee what that
    says they are any object, unless the tool is `strict`.

    Args:
        form: how the model writes calls.
        tools: what may be called.
        choice: one of them, or "required" for any.

    Returns:
        GBNF for `Options.grammar`.

    Raises:
        UsageError: the model has no notation that can be forced; there is no such tool; or a
            `strict` one has a schema that a grammar cannot hold an answer to.
    """
    if form is None or not form.written:
        raise UsageError(
            "The model's chat template shows no notation of calls that a grammar can hold it to; "
            'use tool_choice "auto".'
        )
    rules: dict[str, str] = {}
    calls = []
    for i, function in enumerate(_chosen(tools, choice)):
        arguments, more = _arguments(function, f"tool-{i}")
        rules |= more
        calls.append(" ".join(_written(form, function["name"], arguments)))
    rules[ROOT] = " | ".join(calls)
    grammar = "\n".join(f"{name} ::= {rule}" for name, rule in rules.items())
    try:
        check_grammar(grammar)
    except GrammarError as error:
        raise UsageError(
            f"The tools together are too much for a grammar ({error}); name one in tool_choice."
        ) from None
    return grammar


def _chosen(tools: Sequence[Tool], choice: ToolChoice) -> list[dict[str, Any]]:
    functions = [tool["function"] for tool in tools]
    if choice == "required":
        if not functions:
            raise UsageError("A call is required and no tool is offered; give `tools`.")
        return functions
    try:
        name = choice["function"]["name"]  # type: ignore[index]
    except (TypeError, KeyError):
        raise UsageError(
            f'tool_choice={choice!r} is not "auto", "required" or '
            '{"type": "function", "function": {"name": NAME}}.'
        ) from None
    found = [f for f in functions if f["name"] == name]
    if not found:
        raise UsageError(f"tool_choice names {name!r}, which is not among the tools.")
    return found[:1]


def _arguments(function: Mapping[str, Any], name: str) -> tuple[str, dict[str, str]]:
    # The rule of its arguments, and all rules that it takes. Without parameters there are none.
    try:
        return schema_rules(function.get("parameters") or _NOTHING, name)
    except GrammarError as error:
        if function.get("strict"):
            strict = f"The tool {function['name']!r} is strict, so that no call can be forced."
            raise UsageError(f"{strict} {error}") from None
        return schema_rules({"type": "object"}, name)


def _written(form: CallFormat, name: str, arguments: str) -> Iterator[str]:
    parts = _PLACES.split(form.written)
    for text, place in zip(parts[::2], [*parts[1::2], ""], strict=True):
        if text:
            yield literal(text)
        if place == "call":
            said = json.dumps(name, ensure_ascii=False)
            yield literal(f'{{"name": {said}, "{form.arguments}": ')
            yield arguments
            yield literal("}")
        elif place == "name":
            yield literal(name)
        elif place:
            yield arguments
