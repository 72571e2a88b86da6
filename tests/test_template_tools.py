"""Tools and calls in chat templates: in the model's own form, or refused."""

from __future__ import annotations

import pytest

from parse_local.chat_template import CHATML, ChatTemplate, merge_turns
from parse_local.errors import TemplateError

HERMES = (
    "{% if tools %}tools:{% for tool in tools %}{{ '\\n' ~ tool | tojson }}{% endfor %}"
    "{{ '\\n' }}call with <tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}[assistant]"
)
# DeepSeek's and others' join texts.
JOINS = HERMES.replace(
    "{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}"
)
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "É", "parameters": {"type": "object"}},
}


def calling(arguments: object, content: str | None = None) -> list[dict[str, object]]:
    call = {"id": "a1b2c3d4e", "type": "function"}
    return [
        {"role": "user", "content": "How warm is Rome?"},
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [call | {"function": {"name": "weather", "arguments": arguments}}],
        },
        {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "21"},
    ]


@pytest.mark.parametrize("template", [HERMES, JOINS])
@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}])
@pytest.mark.parametrize("content", [None, "", "I look."])
def test_a_call_and_its_result_in_the_templates_form(
    template: str, arguments: object, content: str | None
) -> None:
    text = ChatTemplate(template).render(calling(arguments, content), tools=[TOOL])
    assert text == (
        'tools:\n{"type": "function", "function": {"name": "weather", "description": "É", '
        '"parameters": {"type": "object"}}}\ncall with <tool_call>'
        f"[user]How warm is Rome?\n[assistant]{content or ''}<tool_call>"
        '{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>\n[tool]21\n[assistant]'
    )


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([{"role": "user", "content": "?"}], [TOOL]),
        (calling({}), None),
    ],
)
def test_a_template_that_would_leave_them_out(messages: list, tools: list | None) -> None:
    with pytest.raises(TemplateError, match="no place for tools"):
        ChatTemplate(CHATML, name="plain.gguf").render(messages, tools=tools)


def test_a_template_that_refuses_them() -> None:
    refusing = (
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="no tools"):
        ChatTemplate(refusing).render([{"role": "user", "content": "?"}], tools=[TOOL])


def test_results_of_several_calls_are_not_merged() -> None:
    turns = [*calling({}), {"role": "tool", "tool_call_id": "b", "content": "22"}]
    merged = merge_turns([{"role": "system", "content": "Be brief."}, *turns])
    assert [m["role"] for m in merged] == ["user", "assistant", "tool", "tool"]
    assert merged[0]["content"] == "Be brief.\n\nHow warm is Rome?"
    assert merged[1]["tool_calls"] == turns[1]["tool_calls"]
