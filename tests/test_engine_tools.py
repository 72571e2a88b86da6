"""Tools from end to end: offered through the template, called, and never shown as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from asking import ask, check_contract
from scripted_gguf import write_scripted_gguf

from parse_local import Options
from parse_local.errors import TemplateError, UsageError
from parse_local.events import Text, ToolCall
from parse_local.forced_calls import call_grammar
from parse_local.grammar import literal
from parse_local.llama.grammar import Grammar

TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %} <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}:>"
)
MISTRAL = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]")
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
CITY = {
    "type": "function",
    "function": {
        "name": "city",
        "parameters": {
            "type": "object",
            "properties": {"name": {"$ref": "#/$defs/name"}},
            "required": ["name"],
            "$defs": {"name": {"enum": ["Rome"]}},
        },
    },
}
CALL = ['{"name"', ': "weather", "arguments"', ': {"city"', ': "Rome"', "}}"]
GOOD = ["I look.", "\n", "<tool_call>", "\n\n", *CALL, "\n ", "</tool_call>"]
BAD = ["I look.", "\n", "<tool_call>", "\n\n", *CALL[:-1], " oh", "</tool_call>"]
LIST = ["Sure.", "[TOOL_CALLS]", "[", *CALL, "]"]
ROME = ToolCall("weather", '{"city": "Rome"}')


@pytest.fixture(scope="module")
def engines(
    load_once: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    directory = tmp_path_factory.mktemp("scripted")
    loaded: dict[str, Any] = {}

    def load(name: str, script: list[str], template: str, controls: tuple[str, ...] = ()) -> Any:
        if name not in loaded:
            words = sorted({w for w in script if len(w) > 1 and w not in controls})
            steps = [w.replace("\n", "Ċ") if len(w) == 1 else w for w in script]
            files = {
                role: write_scripted_gguf(
                    directory / f"{name}-{role}.gguf",
                    {(":", ">"): steps},
                    template=template,
                    words=words,
                    controls=[*controls, "<|im_end|>"],
                    shuffle=role == "other",
                )
                for role in ("target", "other")
            }
            loaded[name] = load_once(target=files["target"], draft=files["target"])
            loaded[f"{name}, other"] = load_once(target=files["target"], draft=files["other"])
        return loaded[name]

    load("good", GOOD, TEMPLATE)
    load("bad", BAD, TEMPLATE)
    load("list", LIST, MISTRAL, ("[TOOL_CALLS]",))
    return loaded.__getitem__


def call(
    engine: Any, *, tools: Any = (TOOL,), tool_choice: Any = "auto", **options: Any
) -> tuple[Any, list[str]]:
    options = {"strategy": "parse", "accept": "exact", "max_tokens": 60, **options}
    asked = {"tools": tools, "tool_choice": tool_choice}
    events = list(engine.stream(ask("?"), Options(**options), **asked))
    result = check_contract(events, max_tokens=options["max_tokens"])
    return result, [e.text for e in events if isinstance(e, Text)]


@pytest.mark.parametrize("name", ["good", "good, other"])
@pytest.mark.parametrize("window", [0, 1, 4])
@pytest.mark.parametrize("strategy", ["parse", "target", "auto"])
def test_a_call_is_no_text(
    engines: Callable[..., Any], name: str, window: int, strategy: str
) -> None:
    found, shown = call(engines(name), strategy=strategy, window=window)
    assert found.tool_calls == (ROME,)
    assert found.finish_reason == "tool_calls"
    assert found.text == "I look."
    assert found.usage.completion_tokens == len(GOOD)
    assert not any("<" in text or "{" in text for text in shown)
    as_json = found.to_json()
    assert as_json["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Rome"}'}]


def test_a_marker_that_is_a_control_token(engines: Callable[..., Any]) -> None:
    engine = engines("list")
    (token,) = engine.target.model.tokenize("[TOOL_CALLS]", special=True)
    assert engine.target.model.piece(token) == b""
    found, _ = call(engine)
    assert (found.text, found.tool_calls, found.finish_reason) == ("Sure.", (ROME,), "tool_calls")


def test_a_grammar_takes_the_markers_of_calls(engines: Callable[..., Any]) -> None:
    model = engines("list").target.model
    (token,) = model.tokenize("[TOOL_CALLS]", special=True)
    text = 'root ::= "[TOOL_CALLS]" "["'
    for marks in ([], [token]):
        place = Grammar(model, text, marks)
        assert place.allows(np.array([token], np.int32)) == bool(marks)
        tokens = [token, *model.tokenize("[")]
        assert place.n_allowed(tokens) == (len(tokens) if marks else 0)
        assert place.may_end == bool(marks)
        place.close()


HARMONY = (
    "{# <|channel|> <|call|> #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant"
)
CONTROLS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>")
CONTROLS += ("<|end|>", "<|return|>", "<|call|>")
ADDRESSED = [
    *("<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>"),
    *("<|start|>", "assistant", "<|channel|>", "commentary", " to=functions.", "weather", "Ġ"),
    *("<|constrain|>", "json", "<|message|>", '{"city"', CALL[3], "}"),
]


@pytest.mark.parametrize("strategy", ["parse", "target", "auto"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_message_to_a_function_is_a_call(
    load_once: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    strategy: str,
    shuffle: bool,
) -> None:
    directory = tmp_path_factory.mktemp("harmony")
    target, draft = (
        write_scripted_gguf(
            directory / f"{name}.gguf",
            {("n", "t"): ADDRESSED},
            template=HARMONY,
            words=sorted({w for w in ADDRESSED if len(w) > 1 and w not in CONTROLS}),
            controls=CONTROLS,
            unread=["assistant"],
            eos="<|call|>",
            shuffle=name == "draft" and shuffle,
        )
        for name in ("target", "draft")
    )
    engine = load_once(target=target, draft=draft, n_ctx=1024)
    found, shown = call(engine, strategy=strategy)
    assert (found.tool_calls, found.finish_reason) == ((ROME,), "tool_calls")
    assert (found.reasoning, found.text, shown) == ("Hm.", "", ["Hm."])
    plain, _ = call(engine, strategy=strategy, tools=None)
    assert (plain.tool_calls, plain.finish_reason) == ((), "stop")
    assert plain.text == '{"city": "Rome"}'
    with pytest.raises(UsageError, match="no notation of calls that a grammar can hold"):
        call(engine, tool_choice="required")


def test_what_is_no_call_is_text(engines: Callable[..., Any]) -> None:
    found, shown = call(engines("bad"))
    assert found.tool_calls == ()
    assert found.finish_reason == "stop"
    assert found.text == "".join(BAD)
    assert "".join(shown) == found.text
    # Without tools nothing is looked for, and nothing held back.
    plain, texts = call(engines("good"), tools=None, window=1)
    assert plain.text == "".join(GOOD)
    assert plain.tool_calls == ()
    assert len(texts) > 5


def test_a_call_that_is_cut_off_is_text(engines: Callable[..., Any]) -> None:
    found, _ = call(engines("good"), max_tokens=6)
    assert found.finish_reason == "length"
    assert found.tool_calls == ()
    assert found.text == "".join(GOOD[:6])


def test_log_probabilities_are_those_of_the_text(engines: Callable[..., Any]) -> None:
    events = engines("good").stream(
        ask("?"), Options(strategy="parse", accept="exact", logprobs=0), tools=[TOOL]
    )
    read = [t.text for e in events if isinstance(e, Text) for t in e.tokens]
    assert read == [b"I look."]


def test_calls_and_results_go_back_through_the_template(engines: Callable[..., Any]) -> None:
    engine = engines("good")
    turns = [
        *ask("?"),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "content": "21"},
    ]
    prompt = engine.target.prompt(turns, tools=[TOOL])
    expected = f'{json.dumps(TOOL)} <tool_call>?weather({{"a": 1}})21:>'
    assert engine.target.model.detokenize(prompt).decode() == expected


@pytest.mark.parametrize(
    ("name", "before"),
    [("good", "<tool_call>\n"), ("good, other", "<tool_call>\n"), ("list", "[TOOL_CALLS]")],
)
@pytest.mark.parametrize("strategy", ["parse", "target", "auto"])
def test_a_call_that_is_required(
    engines: Callable[..., Any], name: str, before: str, strategy: str
) -> None:
    engine = engines(name)
    asked = {"tool_choice": "required", "tools": [TOOL, CITY], "max_tokens": 200}
    found, shown = call(engine, **asked, strategy=strategy)
    assert found.finish_reason == "tool_calls"
    assert (found.text, shown) == ("", [])
    (made,) = found.tool_calls
    assert made in (ToolCall("weather", "{}"), ToolCall("city", '{"name": "Rome"}'))
    # The same whoever drafts, and what the template calls a call.
    plain, _ = call(engine, **asked, strategy="target")
    assert plain.tool_calls == found.tool_calls
    grammar = call_grammar(engine.target.call_format, [TOOL, CITY], "required")
    assert grammar.splitlines()[-1].startswith(f"root ::= {literal(before)[:-1]}")


def test_a_certain_call_that_is_required(engines: Callable[..., Any]) -> None:
    of_city = {"type": "function", "function": {"name": "city"}}
    asked = {"tools": [TOOL, CITY], "tool_choice": of_city}
    found, _ = call(engines("good"), **asked, max_tokens=200)
    assert found.tool_calls == (ToolCall("city", '{"name": "Rome"}'),)
    # Too few tokens for it: as where the model calls by itself, it is text.
    cut, _ = call(engines("good"), **asked, max_tokens=4)
    assert (cut.finish_reason, cut.tool_calls) == ("length", ())


def test_what_cannot_be(engines: Callable[..., Any], load_once: Callable[..., Any], tiny) -> None:
    with pytest.raises(UsageError, match="Under a grammar no tool can be called"):
        call(engines("good"), grammar='root ::= "a"')
    engine = load_once(target=tiny(seed=1))
    with pytest.raises(TemplateError, match="no place for tools"):
        call(engine, strategy="target")
    for choice, reason in (
        ("maybe", 'is not "auto", "required"'),
        ({"type": "function", "function": {"name": "time"}}, "'time', which is not among"),
    ):
        with pytest.raises(UsageError, match=reason):
            call(engines("good"), tool_choice=choice)
    with pytest.raises(UsageError, match="no tool is offered"):
        call(engines("good"), tools=None, tool_choice="required")
    with pytest.raises(UsageError, match="no notation of calls"):
        call(engine, strategy="target", tool_choice="required")
