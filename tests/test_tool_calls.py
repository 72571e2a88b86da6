"""Calls in what models write: found in every cut, never shown by halves, else text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parse_local.call_formats import find_format
from parse_local.harmony import Harmony
from parse_local.tool_calls import CallScanner

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
GEMMA, LFM = "<|tool_call>", "<|tool_list_start|>"
KIMI, DEEPSEEK = "<|tool_calls_section_begin|>", "<｜tool▁calls▁begin｜>"
BARE = "<|tool_call>call:weather{city:Rome}<tool_call|>"
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
    # GLM
    (
        HERMES,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "",
        [OSLO],
    ),
    (HERMES, "<tool_call>time_of_day\n</tool_call>", "", [("time_of_day", {})]),
    (HERMES, "<tool_call>rm<arg_key>", "<tool_call>rm<arg_key>", []),
    # Gemma 4
    (
        GEMMA,
        'Hm.<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:time_of_day{}<tool_call|>",
        "Hm.",
        [OSLO, ("time_of_day", {})],
    ),
    (
        GEMMA,
        '<|tool_call>call:weather{city:<|"|>a "b", c: {d}<|"|>,more:{x:[true,{y:null}],z-1:-2.5}}'
        "<tool_call|>",
        "",
        [("weather", {"city": 'a "b", c: {d}', "more": {"x": [True, {"y": None}], "z-1": -2.5}})],
    ),
    (GEMMA, '<|tool_call>call:weather{"city": "Rome"}<tool_call|>', "", [ROME]),
    (GEMMA, BARE, BARE, []),
    (
        "<|START_ACTION|>",
        '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "weather", '
        '"parameters": {"city": "Rome"}}\n]<|END_ACTION|>',
        "",
        [ROME],
    ),
    (
        "<seed:tool_call> <function=",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        "",
        [OSLO],
    ),
    (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="time_of_day">\n</invoke>\n'
        "</minimax:tool_call>",
        "",
        [OSLO, ("time_of_day", {})],
    ),
    (
        LFM,
        '<|tool_call_start|>[weather(city="Oslo", days=3), time_of_day()]<|tool_call_end|>Done.',
        "Done.",
        [OSLO, ("time_of_day", {})],
    ),
    (
        LFM,
        "<|tool_call_start|>weather(city='\\d', days=[true, None, {'a': -1}])<|tool_call_end|>",
        "",
        [("weather", {"city": "\\d", "days": [True, None, {"a": -1}]})],
    ),
    ("<|tool_call_start|>", f"<|tool_call_start|>[{ONE}]<|tool_call_end|>", "", [ROME]),
    *(
        (LFM, text, text, [])
        for no_call in (
            "[weather(city=open('x'))]",
            "[weather('Rome')]",
            "[weather(**{'city': 'Rome'})]",
            "[weather(city={1})]",
            "[weather(city=b'x')]",
            "[weather",
            "weather",
            "[]",
        )
        for text in [f"<|tool_call_start|>{no_call}<|tool_call_end|>"]
    ),
    (
        KIMI,
        f"{KIMI}<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_call_begin|>functions.time_of_day:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [ROME, ("time_of_day", {})],
    ),
    (
        DEEPSEEK,
        f"{DEEPSEEK}<｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [ROME],
    ),
    (
        DEEPSEEK,
        f"{DEEPSEEK}<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>'
        "time_of_day\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [ROME, ("time_of_day", {})],
    ),
    (
        "<|tools_prefix|>",
        '<|tools_prefix|>[{"weather": {"city": "Rome"}}, {"time_of_day": {}}]<|tools_suffix|>',
        "",
        [ROME, ("time_of_day", {})],
    ),
    ("<TOOLCALL>", f"<TOOLCALL>[{ONE}, {TWO}]</TOOLCALL>", "", [ROME, OSLO]),
    ("<tool_calls>", f"<tool_calls>[{ONE}]</tool_calls>", "", [ROME]),
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
        assert not any(b"{" in part or b"<tool" in part or b"<|" in part for part in shown)


COMMENTARY, FINAL = "<|channel|>commentary", "<|start|>assistant<|channel|>final<|message|>"
ADDRESSED: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # What gpt-oss writes, its reasoning, its text, its calls.
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        "Hm.",
        "",
        [ROME],
    ),
    (f' to=functions.weather{COMMENTARY} json<|message|>{{"city": "Rome"}}', "", "", [ROME]),
    ('<|channel|>analysis to=functions.weather<|message|>{"city": "Rome"}', "", "", [ROME]),
    (
        f"{COMMENTARY}<|message|>I look.<|end|><|start|>assistant to=functions.time_of_day"
        f"{COMMENTARY}<|message|>{{}}<|end|>{FINAL}And then.",
        "",
        "I look.And then.",
        [("time_of_day", {})],
    ),
    (
        f"{COMMENTARY} to=functions.rm<|message|>{{}}<|call|>",
        "",
        "<functions.rm>{}</functions>",
        [],
    ),
    (f"{COMMENTARY} to=functions.weather<|message|>Rome", "", "<functions.weather>Rome", []),
    ("<|channel|>analysis to=browser.search<|message|>{}<|call|>", "{}", "", []),
    (f"{FINAL}Write to=functions.weather.", "", "Write to=functions.weather.", []),
]


@pytest.mark.parametrize(("written", "reasoning", "text", "calls"), ADDRESSED)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_messages_to_a_function_are_calls(
    written: str, reasoning: str, text: str, calls: list[tuple[str, Any]], size: int
) -> None:
    parser = Harmony().parser("<|start|>user<|message|>?<|end|><|start|>assistant")
    parser.tells_calls = True
    scanner = CallScanner(find_format("<|channel|> <|message|> <|call|>"), TOOLS)
    data = written.encode()
    runs = [run for i in range(0, len(data), size) for run in parser.push(data[i : i + size])]
    shown = {"reasoning": b"", "answer": b""}
    for channel, part in [*runs, *parser.finish()]:
        shown[channel] += scanner.push(part) if channel == "answer" else part
    shown["answer"] += scanner.finish()
    assert shown == {"reasoning": reasoning.encode(), "answer": text.encode()}
    assert [(c.name, json.loads(c.arguments_json)) for c in scanner.calls] == calls


def test_without_tools_the_marks_of_a_call_are_not_shown() -> None:
    parser = Harmony().parser("<|start|>assistant")
    assert parser.push(f"{COMMENTARY} to=functions.weather<|message|>{{}}<|call|>".encode()) == [
        ("answer", b"{}")
    ]


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
