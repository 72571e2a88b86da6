"""The `openai` client against a real server: what its users do daily."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from serving import Running, serving, tiny_pair, until

from parse_local import Options, load_pair

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello there"}]
KEY = "sk-local"


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    files = tiny_pair(tiny)
    with serving(
        lambda: load_pair(**files, n_ctx=4096, n_threads=1, spec="none"),
        options=Options(strategy="parse", accept="exact", window=4, max_tokens=20),
        api_key=KEY,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_whole_and_streamed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    whole = client.chat.completions.create(model=model.id, messages=MESSAGES)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    text, figures = "", None
    for chunk in client.chat.completions.create(
        model=model.id, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        figures = chunk.usage
    assert text == whole.choices[0].message.content
    assert figures is not None
    assert figures.completion_tokens == 20
    assert figures.prompt_tokens_details is not None
    assert figures.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1


def test_the_helper_that_collects_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="any", messages=MESSAGES, stop="J") as stream:
        for _ in stream:
            pass
        found = stream.get_final_completion()
    assert found.choices[0].finish_reason == "stop"
    assert "J" not in (found.choices[0].message.content or "")


def test_options_and_figures_of_parse(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_completion_tokens=12,
        extra_body={"parse": {"strategy": "parse", "accept": "semantic", "tau_full": 0.5}},
    )
    assert found.usage is not None
    figures = found.usage.model_extra["parse"]  # type: ignore[index]
    assert (figures["strategy"], figures["accept"]) == ("parse", "semantic")
    assert figures["accepted_share"] == pytest.approx(figures["tokens"]["accepted"] / 12, abs=1e-4)
    assert figures["timings"]["total_s"] > 0


def test_json_that_follows_a_schema(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    found = client.chat.completions.create(
        model="any",
        messages=MESSAGES,
        max_tokens=100,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert set(json.loads(found.choices[0].message.content or "")) == {"ok"}


def test_a_stream_that_is_closed_early(client: openai.OpenAI, server: Running) -> None:
    stream = client.chat.completions.create(
        model="any", messages=MESSAGES, max_tokens=4000, stream=True
    )
    for i, _ in enumerate(stream):
        if i == 3:
            break
    stream.close()
    until(lambda: server.worker.n_running == 0)
    engine = server.worker.engine
    assert engine is not None
    assert engine.target.context.n_decoded < 3000
    assert client.completions.create(model="any", prompt="a", max_tokens=2).usage is not None


def test_errors(client: openai.OpenAI, server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="any", messages=MESSAGES, n=2)
    assert bad.value.param == "n"
    assert "`n`: 2 is not supported" in bad.value.message
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="any", prompt="x" * 9000, stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="a")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        other.models.list()
