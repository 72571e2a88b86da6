"""Answers of OpenAI's API with what this server adds, for the OpenAPI document.

Nothing is validated with them while the server runs; the tests compare real answers with them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FinishReason = Literal["stop", "length", "tool_calls"]


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(_Object):
    """What went wrong."""

    message: str
    type: str
    param: str | None = Field(description="The field that is wrong.")
    code: str | None = Field(description="A word that programs can compare.")


class ErrorBody(_Object):
    """The body of every answer that is an error."""

    error: Error


class CachedTokens(_Object):
    """Where the prompt's tokens came from."""

    cached_tokens: int = Field(description="Prompt tokens found in the KV cache.")


class ParseUsage(_Object):
    """This server's own figures."""

    strategy: str
    accept: str | None = Field(description="Acceptance mode; null where nothing is drafted.")
    accepted_share: float = Field(description="Share of the answer's tokens from the draft.")
    tokens_per_second: float
    speedup: float | None = Field(
        description="Against the target alone, measured in this process; null before that."
    )
    n_rounds: int
    tokens: dict[str, int] = Field(description="Tokens that were decoded, by purpose.")
    timings: dict[str, float] = Field(description="Seconds, by purpose; queue_s is the wait.")


class Usage(_Object):
    """Token counts and figures of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    parse: ParseUsage


class CalledFunction(_Object):
    """The function and its arguments."""

    name: str
    arguments: str = Field(description="A JSON object.")


class Call(_Object):
    """A tool that the model wants to have called."""

    index: int | None = None
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(_Object):
    """The model's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class TopLogprob(_Object):
    """A token and its log-probability under the target."""

    token: str
    logprob: float | None = Field(description="null where the target did not read it.")
    bytes: list[int]


class TokenLogprobs(TopLogprob):
    """A token of the answer, with the likeliest ones there."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Object):
    """Of every token of the answer."""

    content: list[TokenLogprobs]
    refusal: None = None


class Delta(_Object):
    """What is added to the model's turn; `content` is final text, never taken back."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class ChatChoice(_Object):
    """The answer."""

    index: Literal[0]
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChunkChoice(_Object):
    """A piece of the answer."""

    index: Literal[0]
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class _Head(_Object):
    id: str
    created: int
    model: str = Field(description="What answered, whatever was asked for.")


class ChatCompletion(_Head):
    """A whole answer."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    parse: dict[str, Any] | None = Field(
        None, description="With `parse.events`: rounds, and who wrote what."
    )


class ChatChunk(_Head):
    """One event of a stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: Usage | None = None
    parse: dict[str, Any] | None = Field(
        None, description="With `parse.events`: a draft, a verdict, or who wrote this."
    )


class TextLogprobs(_Object):
    """Of every token of the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None]]
    text_offset: list[int]


class TextChoice(_Object):
    """The text, or a piece of it."""

    index: Literal[0]
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(_Head):
    """What goes on from a prompt, whole or as one event of a stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage | None = None
    parse: dict[str, Any] | None = None


class LoadedPair(_Object):
    """What a pair is made of."""

    target: str
    draft: str | None
    n_ctx: int
    calibrated: bool
    strategy: str = Field(description="Where a request names none.")
    accept: str | None


class ModelEntry(_Object):
    """The loaded pair."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parse: LoadedPair


class ModelList(_Object):
    """All that is loaded: one pair."""

    object: Literal["list"]
    data: list[ModelEntry]


class Health(_Object):
    """Whether it is ready."""

    status: Literal["ok", "loading", "stopping", "failed"]
    running: int
    waiting: int
