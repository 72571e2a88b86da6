"""The server's answers: whole, streamed, and refused, on tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_gguf import write_scripted_gguf
from serving import QUESTION, Running, events, serving
from tiny_gguf import READABLE

from parse_local import Options, load_pair
from parse_local.server.answer_schemas import ChatChunk, ChatCompletion, TextCompletion
from parse_local.server.settings import Limits

EXACT: dict[str, Any] = {
    "n_ctx": 1024,
    "n_threads": 1,
    "kv_type": "f32",
    "flash_attn": "off",
    "spec": "none",
}
DEFAULTS = Options(strategy="parse", accept="exact", window=4, max_tokens=20)


def pair(tiny: Callable[..., Path]) -> dict[str, Path]:
    return {
        "target": tiny(seed=1, bias=READABLE),
        "draft": tiny(seed=3, weights_from=1, bias=READABLE),
    }


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    files = pair(tiny)
    with serving(lambda: load_pair(**files, **EXACT), options=DEFAULTS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def expected(tiny: Callable[..., Path], load_once: Callable[..., Any]) -> Any:
    """What the engine says itself."""
    engine = load_once(**pair(tiny))
    return lambda **options: engine.generate(QUESTION, Options(**{"max_tokens": 20, **options}))


def ask(client: httpx.Client, **body: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": QUESTION, **body})


def test_an_answer_is_the_engines(client: httpx.Client, expected: Any) -> None:
    result = expected(strategy="target")
    found = ask(client).json()
    assert found["object"] == "chat.completion"
    assert found["model"] == client.get("/v1/models").json()["data"][0]["id"]
    (choice,) = found["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == result.text
    assert choice["finish_reason"] == "length"
    usage = found["usage"]
    assert usage["prompt_tokens"] == result.usage.prompt_tokens
    assert usage["completion_tokens"] == 20
    assert usage["total_tokens"] == result.usage.prompt_tokens + 20
    assert usage["parse"]["strategy"] == "parse"
    assert usage["parse"]["accept"] == "exact"
    assert usage["parse"]["accepted_share"] == usage["parse"]["tokens"]["accepted"] / 20 > 0


def test_a_stream_is_the_same_answer(client: httpx.Client, expected: Any) -> None:
    with client.stream(
        "POST",
        "/v1/chat/completions",
        json={"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}},
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        first, *chunks, last, figures = events(response)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({chunk["id"] for chunk in (first, *chunks, last, figures)}) == 1
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks]
    assert len(texts) > 2
    assert "".join(texts) == expected(strategy="target").text
    assert [c["choices"][0]["finish_reason"] for c in (*chunks, last)] == [None] * len(chunks) + [
        "length"
    ]
    assert last["choices"][0]["delta"] == {}
    assert figures["choices"] == []
    assert figures["usage"]["completion_tokens"] == 20
    assert all(chunk["usage"] is None for chunk in (first, *chunks, last))


def test_a_plain_stream_has_no_usage(client: httpx.Client) -> None:
    body = {"messages": QUESTION, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = events(response)
    assert not any("usage" in chunk or "parse" in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 2}, "n", "`n`: 2 is not supported; it can be 1."),
    ({"audio": {}}, "audio", "`audio`: {} is not supported; it can be left out."),
    ({"nonsense": 1}, "nonsense", "`nonsense` is not supported."),
    ({"parse": {"nonsense": 1}}, "parse.nonsense", "`parse.nonsense` is not supported."),
    ({"messages": []}, "messages", "`messages`: List should have at least 1 item"),
    ({"max_tokens": "5"}, "max_tokens", "`max_tokens`: Input should be a valid integer."),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "`messages[0].content[0].type`: 'image_url' is not supported; it can be 'text'.",
    ),
]


@pytest.mark.parametrize(("body", "param", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_is_not_supported_is_named(
    client: httpx.Client, body: dict[str, Any], param: str, message: str
) -> None:
    response = ask(client, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(message)
    assert error["type"] == "invalid_request_error"


def json_answer(client: httpx.Client, **wanted: Any) -> Any:
    found = ask(client, response_format=wanted, max_tokens=200)
    assert found.status_code == 200, found.text
    assert found.json()["choices"][0]["finish_reason"] == "stop"
    return json.loads(found.json()["choices"][0]["message"]["content"])


def test_an_answer_in_json(client: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    }
    found = json_answer(client, type="json_schema", json_schema={"name": "x", "schema": schema})
    assert set(found) == {"name", "old"}
    assert found["name"] in ("Ann", "Bob")
    assert isinstance(found["old"], bool)
    assert json_answer(client, type="json_object", schema=schema) == found


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": 5}}}, "response_format"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "response_format"),
        ({"type": "xml"}, "response_format.type"),
    ],
)
def test_formats_that_cannot_be_had(
    client: httpx.Client, wanted: dict[str, Any], param: str
) -> None:
    response = ask(client, response_format=wanted)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"temperature": 1e-40}, 200),
        ({"temperature": 2, "top_p": 0, "top_k": 10**30}, 200),
        ({"max_tokens": 10**30, "seed": 10**30}, 200),
        ({"stop": ["", "x" * 100_000]}, 200),
        ({"parse": {"window": 10**30, "min_progress": 10**30}}, 200),
        ({"parse": {"draft_budget": 1e308}}, 400),
        ({"parse": {"loose_entropy": 1e308}}, 400),
        ({"temperature": -1}, 400),
        ({"seed": -2}, 400),
        ({"parse": {"grammar": "root ::= root"}}, 400),
        ({"temperature": 0.5, "parse": {"accept": "loose"}}, 400),
        ({"top_k": 3, "parse": {"top_k": 3}}, 400),
    ],
    ids=str,
)
def test_values_at_the_edge(client: httpx.Client, body: dict[str, Any], status: int) -> None:
    assert ask(client, **body).status_code == status


def test_a_grammar_beside_a_format_is_refused(client: httpx.Client) -> None:
    body = {"response_format": {"type": "json_object"}, "parse": {"grammar": 'root ::= "a"'}}
    assert ask(client, **body).json()["error"]["param"] == "response_format"
    found = ask(client, parse={"grammar": 'root ::= "yes" | "no"'}).json()
    assert found["choices"][0]["message"]["content"] in ("yes", "no")


def test_events_tell_of_drafts_and_verdicts(client: httpx.Client) -> None:
    options = {"strategy": "parse", "accept": "semantic", "window": 8, "delta": 4, "events": True}
    body = {"messages": QUESTION, "stream": True, "parse": {**options, "tau_prefix": 0.5}}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = events(response)
    told = [chunk["parse"] for chunk in chunks if "parse" in chunk]
    drafted = "".join(e["text"] for e in told if e["event"] == "drafted")
    verified = [e for e in told if e["event"] == "verified"]
    assert "".join(e["text"] for e in verified) == drafted
    for event in verified:
        found = event["round"]
        n = len(found["boundaries"])
        assert len(found["n_chars"]) == len(found["p_correct"]) == len(found["complete"]) == n
        assert found["n_accept_chars"] <= len(event["text"])
    # What is verified as accepted is announced with the same text, and the rest goes.
    shown = [e for e in told if e["event"] in ("verified", "accepted", "rolled_back")]
    for i, event in enumerate(shown):
        if event["event"] == "verified":
            kept = event["text"][: event["round"]["n_accept_chars"]]
            after = {e["event"]: e["text"] for e in shown[i + 1 : i + 3]}
            if kept:
                assert after["accepted"] == kept
            if event["text"] != kept:
                assert after["rolled_back"] == event["text"][len(kept) :]
    # Content is final text only.
    content = [c for c in chunks if c["choices"] and c["choices"][0]["delta"].get("content")]
    assert {c["parse"]["event"] for c in content} == {"text"}
    assert {c["parse"]["source"] for c in content} <= {"draft", "target"}
    usage = chunks[-1]["usage"]["parse"]
    assert usage["n_rounds"] == len(verified) > 0
    assert usage["accept"] == "semantic"


def test_stop_strings_end_an_answer_and_are_no_part_of_it(client: httpx.Client) -> None:
    text = ask(client).json()["choices"][0]["message"]["content"]
    for stop in (text[3:5], ["nowhere", text[3:5]]):
        choice = ask(client, stop=stop).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == text[: text.index(text[3:5])]


def test_a_seed_repeats_an_answer(client: httpx.Client) -> None:
    def text(**more: Any) -> str:
        found = ask(client, temperature=1.5, **more).json()
        content: str = found["choices"][0]["message"]["content"]
        return content

    assert text(seed=7) == text(seed=7)
    assert len({text(seed=seed) for seed in range(4)}) > 1
    assert len({text(seed=-1) for _ in range(4)}) > 1


def test_content_in_parts_and_other_roles(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]
    inline = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello\nthere"}]
    apart = [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]
    one, other = (ask(client, messages=m).json() for m in (inline, apart))
    assert one["choices"][0]["message"] == other["choices"][0]["message"]
    assert one["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]


def test_what_changes_nothing_is_ignored(client: httpx.Client) -> None:
    plain = ask(client).json()["choices"]
    ignored: dict[str, Any] = {
        "user": "u", "metadata": {"a": "b"}, "store": False, "n": 1, "logit_bias": {},
        "frequency_penalty": 0, "presence_penalty": 0, "service_tier": "auto", "model": "gpt-4o",
        "cache_prompt": True, "audio": None, "functions": None, "logprobs": False, "tools": None,
        "stream": False, "stream_options": None, "response_format": {"type": "text"}, "stop": None,
    }  # fmt: skip
    assert ask(client, **ignored).json()["choices"] == plain


def test_a_text_is_gone_on_with(client: httpx.Client, expected: Any) -> None:
    body = {"prompt": "hello there", "max_tokens": 6}
    whole = client.post("/v1/completions", json=body).json()
    assert whole["object"] == "text_completion"
    assert (
        client.post("/v1/completions", json={**body, "prompt": ["hello there"]}).json()["choices"]
        == (whole["choices"])
    )
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        *chunks, last = events(response)
    text = "".join(c["choices"][0]["text"] for c in chunks)
    assert text == whole["choices"][0]["text"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["parse"]["accept"] == "exact"


def test_an_answer_of_the_draft_counts_what_the_draft_had_cached(client: httpx.Client) -> None:
    body = {"parse": {"strategy": "draft"}, "max_tokens": 2}
    ask(client, **body)
    usage = ask(client, **body).json()["usage"]
    # The last one is decoded for its output row.
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_log_probabilities(client: httpx.Client, expected: Any) -> None:
    found = ask(client, logprobs=True, top_logprobs=2, max_tokens=6).json()["choices"][0]
    tokens = found["logprobs"]["content"]
    written = b"".join(bytes(t["bytes"]) for t in tokens).decode("utf-8", "replace")
    assert written == found["message"]["content"]
    for token in tokens:
        best, other = token["top_logprobs"]
        assert token["token"] == best["token"]  # greedy
        assert token["logprob"] == pytest.approx(best["logprob"], abs=1e-5)
        assert other["logprob"] <= best["logprob"] <= 0
    body = {"messages": QUESTION, "max_tokens": 6, "logprobs": True, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        chunks = events(response)
    streamed = [
        t for c in chunks for t in (c["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [t["bytes"] for t in streamed] == [t["bytes"] for t in tokens]
    assert all(t["top_logprobs"] == [] for t in streamed)
    refused = ask(client, top_logprobs=2)
    assert refused.json()["error"]["param"] == "top_logprobs"


def test_log_probabilities_of_a_text(client: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 6, "logprobs": 1}
    found = client.post("/v1/completions", json=body).json()["choices"][0]
    logprobs = found["logprobs"]
    assert "".join(logprobs["tokens"]) == found["text"]
    offsets = [len("".join(logprobs["tokens"][:i])) for i in range(6)]
    assert logprobs["text_offset"] == offsets
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        pieces = [c["choices"][0]["logprobs"] for c in events(response)]
    assert [n for p in pieces if p for n in p["text_offset"]] == offsets
    for token, p, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top == {token: pytest.approx(p, abs=1e-5)}


def test_reasoning_has_a_field_of_its_own(tiny: Callable[..., Path]) -> None:
    # The prompt opens a block that this model never closes: all of it is reasoning.
    template = (Path(__file__).parent / "chat_templates" / "deepseek-r1.jinja").read_text("utf-8")
    target = tiny(seed=1, bias=READABLE, template=template)
    options = Options(strategy="target", max_tokens=5, thinking=True)
    with (
        serving(lambda: load_pair(target=target, **EXACT), options=options) as running,
        running.client() as client,
    ):
        message = ask(client).json()["choices"][0]["message"]
        assert message["content"] == ""
        assert len(message["reasoning_content"]) >= 5
        body = {"messages": QUESTION, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            deltas = [c["choices"][0]["delta"] for c in events(response)]
    text = "".join(d.get("reasoning_content", "") for d in deltas)
    assert text == message["reasoning_content"]
    assert not any(d.get("content") for d in deltas)


def test_a_prompt_that_does_not_fit(client: httpx.Client) -> None:
    for path, body, param in (
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 2000}]},
            "messages",
        ),
        ("/v1/completions", {"prompt": "x" * 2000}, "prompt"),
    ):
        for stream in (False, True):
            response = client.post(path, json={**body, "stream": stream})
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert response.json()["error"]["param"] == param


WEATHER = {"type": "function", "function": {"name": "weather", "arguments": "{}"}}


def test_the_turns_are_checked(client: httpx.Client) -> None:
    for turns, param in (
        ([{"role": "user"}], "messages[0].content"),
        ([*QUESTION, {"role": "assistant", "content": "Well,"}], None),
        ([*QUESTION, {"role": "assistant", "tool_calls": [WEATHER]}], "messages"),
        ([{"role": "user", "content": "a", "tool_calls": []}, *QUESTION], None),
    ):
        response = ask(client, messages=turns)
        if param is None:
            assert response.status_code == 200
        else:
            assert response.json()["error"]["param"] == param


def test_every_answer_fits_the_document(client: httpx.Client) -> None:
    ChatCompletion.model_validate_json(ask(client, parse={"events": True}).content)
    body: dict[str, Any] = {"stream": True, "parse": {"events": True}}
    with client.stream("POST", "/v1/chat/completions", json={"messages": QUESTION, **body}) as r:
        for chunk in events(r):
            ChatChunk.model_validate(chunk)
    with client.stream("POST", "/v1/completions", json={"prompt": "a", **body}) as r:
        for chunk in events(r):
            TextCompletion.model_validate(chunk)


TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
TOOL_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %} <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}:>"
)
SCRIPT = [
    "I look.",
    "<tool_call>",
    '{"name": "weather", "arguments"',
    ': {"city": "Rome"}}',
    "</tool_call>",
]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A model that says a few words and calls a tool."""
    file = write_scripted_gguf(
        tmp_path_factory.mktemp("scripted") / "calls.gguf",
        {(":", ">"): SCRIPT},
        template=TOOL_TEMPLATE,
        words=SCRIPT,
        controls=["<|im_end|>"],
    )
    options = Options(strategy="target", max_tokens=60)
    limits = Limits(prompt_tokens=400)
    with (
        serving(lambda: load_pair(target=file, **EXACT), options=options, limits=limits) as running,
        running.client() as client,
    ):
        yield client


def test_a_tool_is_called(caller: httpx.Client) -> None:
    choice = ask(caller, tools=[TOOL], tool_choice="auto").json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    body = {"messages": QUESTION, "tools": [TOOL], "stream": True}
    with caller.stream("POST", "/v1/chat/completions", json=body) as response:
        *chunks, last = events(response)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "I look."
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    (streamed,) = last["choices"][0]["delta"]["tool_calls"]
    assert streamed["index"] == 0
    assert streamed["function"] == call["function"]
    # What comes back from it goes through the template.
    result = {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
    turns = [*QUESTION, choice["message"], result]
    again = ask(caller, messages=turns, tools=[TOOL])
    assert again.status_code == 200, again.text
    assert again.json()["usage"]["prompt_tokens"] > len("21 degrees")


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_is_required(caller: httpx.Client, choice: Any) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city}}
    asked = {"tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
    response = ask(caller, tools=[tool], **asked)
    assert response.status_code == 200, response.text
    found = response.json()["choices"][0]
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] is None  # left to itself it says something first
    (call,) = found["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}


def test_tools_that_are_not_wanted_are_not_called(caller: httpx.Client) -> None:
    choice = ask(caller, tools=[TOOL], tool_choice="none").json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "".join(SCRIPT)


@pytest.mark.parametrize("arguments", ["{", "[" * 50_000, "9" * 5000, '"\\ud800"', "null"])
def test_arguments_that_are_no_object_are_passed_on(caller: httpx.Client, arguments: str) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    turns = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, *QUESTION]
    response = ask(caller, messages=turns, max_tokens=1)
    assert response.status_code in (200, 400)  # the longest do not fit


def test_tools_are_part_of_the_prompt_that_is_limited(caller: httpx.Client) -> None:
    long = {**TOOL, "function": {**TOOL["function"], "description": "y" * 400}}
    response = ask(caller, tools=[long])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required", "tools": None}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tools"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ],
)
def test_what_tools_cannot_do_is_named(
    caller: httpx.Client, body: dict[str, Any], param: str
) -> None:
    response = ask(caller, **{"tools": [TOOL], **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_template_without_tools_refuses_them(client: httpx.Client) -> None:
    response = ask(client, tools=[TOOL])
    assert response.status_code == 400
    assert "no place for tools" in response.json()["error"]["message"]
