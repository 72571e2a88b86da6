"""Calls in what models write: found in every cut, never shown by halves, else text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_local.tool_calls import CallScanner, find_format

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
    for name in ("weather", "time_of_day")
]
HERMES, LLAMA = "<tool_call>", '{"name": function name, "parameters": dictionary}'
ROME, OSLO = ("weather", {"city": "Rome"}), ("weather", {"city": "Oslo", "days": 3})
ONE = '{"name": "weather", "arguments": {"city": "Rome"}}'
TWO = '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}'

# What the template contains, what the model writes, its text, its calls.
WRITTEN: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (HERMES, "Hello.", "Hello.", []),
    (HERMES, f"<tool_call>\n{ONE}\n</tool_call>", "", [ROME]),
    (HERMES, f"Let me see.\n\n<tool_call>{ONE}</tool_call>", "Let me see.", [ROME]),
    (
        HERMES,
        f"Two:<tool_call>{ONE}</tool_call>\n<tool_call>{TWO}</tool_call>\n",
        "Two:",
        [ROME, OSLO],
    ),
    (HERMES, f"<tool_call>{ONE}</tool_call> And then.", " And then.", [ROME]),
    (HERMES, f"<tool_call>[{ONE}, {TWO}]</tool_call>", "", [ROME, OSLO]),
    (HERMES, f"<tool_call>\n{ONE}", "", [ROME]),  # the end was cut off, but not of the call
    (HERMES, '<tool_call>{"name": "weather", "argu', '<tool_call>{"name": "weather", "argu', []),
    (HERMES, "<tool_call>oh no</tool_call>x", "<tool_call>oh no</tool_call>x", []),
    (HERMES, '<tool_call>{"name": "rm"}</tool_call>', '<tool_call>{"name": "rm"}</tool_call>', []),
    (HERMES, '<tool_call>{"name": "weather"}</tool_call>', "", [("weather", {})]),
    (HERMES, "a\n <tool_call>b</tool_call>", "a\n <tool_call>b</tool_call>", []),
    (HERMES, "a\n <tool_call>b", "a\n <tool_call>b", []),
    (HERMES, "a < b <tool", "a < b <tool", []),
    (HERMES, "日本語 \n", "日本語 \n", []),
    (
        HERMES,
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "",
        [OSLO],
    ),
    (
        HERMES,
        "<tool_call><function=weather><parameter=city>3</parameter></function></tool_call>",
        "",
        [("weather", {"city": "3"})],
    ),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Rome"}}', "", [ROME]),
    (LLAMA, f" {ONE}; {TWO}", "", [ROME, OSLO]),
    # Small models forget the tags.
    (HERMES, f"```json\n{ONE}\n```", "", [ROME]),
    (HERMES, f" {ONE}\n", "", [ROME]),
    (HERMES, '```json\n{"name": "Ada"}\n```', '```json\n{"name": "Ada"}\n```', []),
    (HERMES, f"For example ```json\n{ONE}\n```", f"For example ```json\n{ONE}\n```", []),
    (HERMES, f"```python\n{ONE}\n```", f"```python\n{ONE}\n```", []),
    (LLAMA, '{"answer": 42}', '{"answer": 42}', []),
    (LLAMA, f"It is {ONE}", f"It is {ONE}", []),
    ("<|python_tag|>", f"<|python_tag|>{ONE}", "", [ROME]),
    ("[TOOL_CALLS]", f"[TOOL_CALLS][{ONE}, {TWO}]", "", [ROME, OSLO]),
    ("[TOOL_CALLS]", f"Sure. [TOOL_CALLS] [{ONE}]", "Sure.", [ROME]),
    (
        "[TOOL_CALLS]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]time_of_day[ARGS]{}',
        "",
        [ROME, ("time_of_day", {})],
    ),
    ("[TOOL_CALLS]", "[TOOL_CALLS]weather, please", "[TOOL_CALLS]weather, please", []),
    (
        "<function=",
        '<function=weather>{"city": "Rome"}</function><function=time_of_day>{}</function>',
        "",
        [ROME, ("time_of_day", {})],
    ),
    ("<|tool_call|>", f"<|tool_call|>[{ONE}]", "", [ROME]),
    ("functools[", f"functools[{ONE}]", "", [ROME]),
    ("no calls at all", f"<tool_call>{ONE}</tool_call>", f"<tool_call>{ONE}</tool_call>", []),
]


def scan(template: str, parts: list[bytes]) -> tuple[list[bytes], list[tuple[str, Any]]]:
    scanner = CallScanner(find_format(template), TOOLS)
    shown = [scanner.push(part) for part in parts]
    shown.append(scanner.finish())
    return shown, [(c.name, json.loads(c.arguments_json)) for c in scanner.calls]


@pytest.mark.parametrize(("template", "written", "text", "calls"), WRITTEN)
def test_calls_are_told_from_text(
    template: str, written: str, text: str, calls: list[tuple[str, Any]]
) -> None:
    data = written.encode()
    for parts in ([data], [data[i : i + 1] for i in range(len(data))]):
        shown, found = scan(template, parts)
        assert b"".join(shown).decode() == text
        assert found == calls


@given(case=st.sampled_from(WRITTEN), cuts=st.lists(st.integers(0, 200), max_size=6).map(sorted))
def test_however_it_is_cut(case: tuple[str, str, str, Any], cuts: list[int]) -> None:
    template, written, text, calls = case
    data = written.encode()
    ends = [*cuts, len(data)]
    parts = [data[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
    shown, found = scan(template, parts)
    assert b"".join(shown).decode() == text
    assert found == calls
    if calls:  # nothing of a call has been shown on the way
        assert not any(b"{" in part or b"<tool" in part for part in shown)


def test_text_is_shown_as_soon_as_it_can_be_no_call() -> None:
    scanner = CallScanner(find_format(HERMES), TOOLS)
    assert scanner.push(b"It is <") == b"It is"
    assert scanner.holding
    assert scanner.push(b"to") == b""
    assert scanner.push(b"p> and") == b" <top> and"
    assert not scanner.holding
    scanner = CallScanner(find_format(HERMES), TOOLS)
    assert scanner.push(b'```json\n{"na') == b""
    assert scanner.push(b'tion": "Italy"') == b'```json\n{"nation": "Italy"'
    assert scanner.push(b"}") == b"}"


def test_arguments_that_json_cannot_say() -> None:
    def call(arguments: str) -> str:
        return f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'

    for arguments in ('{"city": NaN}', '{"city": 1e999}', '"' + "[" * 100_000 + '"'):
        written = call(arguments)
        shown, calls = scan(HERMES, [written.encode()])
        assert b"".join(shown).decode() == written
        assert calls == []
    # Half of a surrogate pair is JSON as long as it is escaped; it can be sent to nobody else.
    scanner = CallScanner(find_format(HERMES), TOOLS)
    assert scanner.push(call('{"city": "\\ud800"}').encode()) == b""
    assert scanner.calls[0].arguments_json == '{"city": "\\ud800"}'


@pytest.mark.parametrize("properties", [[], None, 5, "city"])
def test_a_tool_whose_parameters_are_no_schema(properties: object) -> None:
    tool = {"function": {"name": "weather", "parameters": {"properties": properties}}}
    scanner = CallScanner(find_format("<function="), [tool])
    written = "<function=weather><parameter=city>NaN</parameter></function>"
    assert scanner.push(written.encode()) == b""
    assert scanner.calls[0].arguments_json == '{"city": "NaN"}'


@pytest.mark.parametrize("arguments", ['"{\\"city\\": \\"Rome\\"}"', '{"city": "Rome"}'])
def test_arguments_may_be_json_within_json(arguments: str) -> None:
    written = f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>'
    assert scan(HERMES, [written.encode()])[1] == [ROME]
