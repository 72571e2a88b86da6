"""Grammars of one call: what they take is a call that the scanner finds, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from taking import takes

from parse_local.call_formats import FORMATS, CallFormat
from parse_local.errors import UsageError
from parse_local.events import ToolCall
from parse_local.forced_calls import call_grammar
from parse_local.llama.model import Model
from parse_local.tool_calls import CallScanner


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


NODE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["n"],
}
CITY = tool("city", {"type": "object", "properties": {"name": {"enum": ["Rome", 'a"b']}}})
CHAIN = tool("chain", {**NODE, "$defs": {"node": NODE}})
OTHER = tool("other", {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "$defs": {
    "node": {"type": "boolean"}}})  # fmt: skip
NOW = tool("now")
ODD = tool("odd", {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 3}}})
TOOLS = [CITY, CHAIN, OTHER, NOW, ODD]


@pytest.fixture(scope="module")
def model(tiny: Callable[..., Path]) -> Model:
    return Model(tiny(seed=1))


def said(form: CallFormat, name: str, arguments: str) -> str:
    made = f'{{"name": "{name}", "{form.arguments}": {arguments}}}'
    text = form.written
    for place, value in (("{call}", made), ("{name}", name), ("{arguments}", arguments)):
        text = text.replace(place, value)
    return text


@pytest.mark.parametrize("form", [f for f in FORMATS if f.written], ids=lambda f: f.hint)
@pytest.mark.parametrize(
    ("name", "arguments", "holds"),
    [
        ("city", '{"name": "Rome"}', True),
        ("city", '{"name": "a\\"b"}', True),
        ("city", '{"name": "Oslo"}', False),
        ("chain", '{"n": 1, "next": {"n": 2}}', True),
        ("chain", '{"n": 1, "next": true}', False),
        ("other", '{"x": true}', True),  # its definition is not the other tool's
        ("other", '{"x": {"n": 1}}', False),
        ("now", "{}", True),
        ("now", '{"a": 1}', False),
        ("odd", '{"n": 4}', True),  # what a grammar cannot hold is any object
        ("odd", "3", False),
        ("time", "{}", False),
    ],
)
def test_what_a_grammar_takes_is_a_call(
    model: Model, form: CallFormat, name: str, arguments: str, holds: bool
) -> None:
    text = said(form, name, arguments)
    grammar = call_grammar(form, TOOLS, "required")
    assert takes(model, grammar, text) == holds
    assert not takes(model, grammar, f"I look.{text}")
    if not holds:
        return
    scanner = CallScanner(form, TOOLS)
    assert scanner.push(text.encode()) + scanner.finish() == b""
    assert scanner.calls == [ToolCall(name, json.dumps(json.loads(arguments)))]
    alone = {"type": "function", "function": {"name": name}}
    assert takes(model, call_grammar(form, TOOLS, alone), text)
    now = {"type": "function", "function": {"name": "now"}}
    assert takes(model, call_grammar(form, TOOLS, now), text) == (name == "now")


def test_a_strict_tool_is_as_strict_as_its_schema() -> None:
    strict = tool("odd", ODD["function"]["parameters"], strict=True)
    with pytest.raises(UsageError, match=r"'odd' is strict.*multipleOf"):
        call_grammar(FORMATS[0], [strict], "required")
    city = tool("city", CITY["function"]["parameters"], strict=True)
    call_grammar(FORMATS[0], [city], "required")


def test_too_many_tools() -> None:
    names = {
        f"p{i}": {"type": "object", "properties": {"a": {"type": "string"}}} for i in range(40)
    }
    large = {"type": "object", "properties": names}
    tools = [tool(f"t{i}", large) for i in range(128)]
    with pytest.raises(UsageError, match=r"too much for a grammar.*name one"):
        call_grammar(FORMATS[0], tools, "required")
    call_grammar(FORMATS[0], tools, {"type": "function", "function": {"name": "t7"}})
