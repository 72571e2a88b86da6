"""Requests of OpenAI's API, with what llama-server and this server add.

Every field of that API is either used, accepted and ignored because it changes nothing here, or
refused by name. Types are strict: a number in quotation marks is an error, as at OpenAI.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, create_model

from parse_local.policy import MAX_LOGPROBS, Options


class Strict(BaseModel):
    """An object whose fields are all known."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _branch(value: Any) -> str:
    # The "~" keeps the branch of a union out of the names that errors report.
    return "~list" if isinstance(value, list) else "~dict" if isinstance(value, dict) else "~str"


Stop = Annotated[
    Annotated[str, Tag("~str")] | Annotated[list[str], Field(max_length=16), Tag("~list")],
    Discriminator(_branch),
]


def _parse_options() -> type[Strict]:
    # Of all options, so that none is written down twice; `Options` checks their ranges. What has
    # a name in OpenAI's API is given by that.
    elsewhere = {"max_tokens", "stop", "temperature", "top_p", "seed", "logprobs", "cues"}
    hints = get_type_hints(Options)
    fields: dict[str, Any] = {
        field.name: (hints[field.name] | None, None)
        for field in dataclasses.fields(Options)
        if field.name not in elsewhere
    }
    events = Field(False, description="Stream drafts and verdicts too, as `parse` of the chunks.")
    return create_model(
        "ParseOptions",
        __base__=Strict,
        __doc__="Options of this server alone: how the answer is made.",
        events=(bool, events),
        **fields,
    )


ParseOptions = _parse_options()


class StreamOptions(Strict):
    """What else is streamed."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class FunctionCall(Strict):
    """A call that the model made in an earlier turn."""

    name: str
    arguments: str


class ToolCall(Strict):
    """A tool that the model called in an earlier turn."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class TextPart(Strict):
    """A part of a message; only text can be read."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("~str")] | Annotated[list[TextPart], Tag("~list")],
    Discriminator(_branch),
]


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = Field(None, description="Ignored.")
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = Field(None, description="Ignored.")
    annotations: list[Any] | None = Field(None, description="Ignored.")
    type: Literal["text", "message"] | None = Field(None, description="Ignored.")
    audio: None = None
    function_call: None = None


class Function(Strict):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9_.-]+$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """A tool that the model has to call."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~str")]
    | Annotated[NamedTool, Tag("~dict")],
    Discriminator(_branch),
]


class JsonSchema(Strict):
    """A schema that the answer has to follow."""

    model_config = ConfigDict(extra="forbid", strict=True, serialize_by_alias=True)

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="With json_object, as llama-server takes it."
    )


class TemplateArguments(Strict):
    """Variables of the chat template."""

    enable_thinking: bool | None = None


class Request(Strict):
    """What completions of both kinds have in common."""

    model: str | None = Field(None, description="Any name: what is loaded answers.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    seed: int | None = Field(None, ge=-1, description="-1 draws one.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="0 is greedy. Left out: the server's, greedy by default."
    )
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, description="0 for all tokens. As in llama-server.")
    min_p: float | None = Field(None, ge=0, le=1, description="As in llama-server.")
    repeat_penalty: float | None = Field(
        None, ge=0.1, le=10, description="1 is none. As in llama-server."
    )
    max_tokens: int | None = Field(None, ge=1)
    n: Literal[1] | None = None
    parse: ParseOptions | None = None  # type: ignore[valid-type]

    # Accepted and ignored: they say nothing about the answer.
    user: str | None = Field(None, description="Ignored.")
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")
    store: bool | None = Field(None, description="Ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored: prefixes are always cached.")
    prompt_cache_retention: str | None = Field(None, description="Ignored.")
    cache_prompt: bool | None = Field(None, description="Ignored: prefixes are always cached.")
    prediction: dict[str, Any] | None = Field(None, description="Ignored.")

    # Known and not supported: only what means the same as leaving them out.
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None


class ChatRequest(Request):
    """A conversation to be answered."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = Field(
        None, description="Lets a model that can think do so; none and minimal do not."
    )
    chat_template_kwargs: TemplateArguments | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None
    audio: None = None
    functions: None = None
    function_call: None = None
    web_search_options: None = None


class CompletionRequest(Request):
    """A text to be gone on with."""

    prompt: Annotated[
        Annotated[str, Tag("~str")]
        | Annotated[list[str], Field(min_length=1, max_length=1), Tag("~list")],
        Discriminator(_branch),
    ]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
