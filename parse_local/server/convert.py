"""Requests → conversations and `Options`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from parse_local.chat_template import Message, Tool
from parse_local.errors import GrammarError, UsageError
from parse_local.forced_calls import ToolChoice, forces
from parse_local.grammar import json_object, schema_grammar
from parse_local.policy import Options
from parse_local.server import schemas
from parse_local.server.errors import ApiError
from parse_local.server.settings import Limits


def answer_options(request: schemas.Request, defaults: Options, limits: Limits) -> Options:
    """What a request asks for, on top of the server's defaults.

    Raises:
        ApiError: options that contradict each other.
    """
    chosen: dict[str, Any] = {}
    if request.parse is not None:
        chosen |= request.parse.model_dump(exclude_none=True, exclude={"events"})
    for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty"):
        value = getattr(request, name)
        if value is not None:
            if name in chosen:
                raise ApiError(400, f"`{name}` is given twice, also as `parse.{name}`.", param=name)
            chosen[name] = value
    if request.seed is not None:
        chosen["seed"] = None if request.seed < 0 else request.seed
    if request.stop is not None:
        chosen["stop"] = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)
    n_asked = request.max_tokens
    if isinstance(request, schemas.ChatRequest):
        chosen |= _of_chat(request)
        n_asked = request.max_completion_tokens or n_asked
    elif isinstance(request, schemas.CompletionRequest) and request.logprobs is not None:
        chosen["logprobs"] = request.logprobs
    n_tokens = n_asked or defaults.max_tokens
    chosen["max_tokens"] = min(n_tokens, limits.answer_tokens or n_tokens)
    try:
        return replace(defaults, **chosen)
    except UsageError as error:
        raise ApiError(400, str(error), param="parse", code="invalid_value") from None


def _of_chat(request: schemas.ChatRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if request.logprobs:
        chosen["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs is not None:
        message = "`top_logprobs` needs `logprobs` to be true."
        raise ApiError(400, message, param="top_logprobs", code="invalid_value")
    if request.reasoning_effort is not None:
        chosen["thinking"] = request.reasoning_effort not in ("none", "minimal")
    arguments = request.chat_template_kwargs
    if arguments is not None and arguments.enable_thinking is not None:
        chosen["thinking"] = arguments.enable_thinking
    return chosen


def check_messages(request: schemas.ChatRequest, limits: Limits) -> None:
    """Refuse a conversation that no template could render.

    Raises:
        ApiError: too many messages, or one without content.
    """
    n = len(request.messages)
    if n > limits.messages:
        message = f"`messages` has {n} turns and the server takes {limits.messages}."
        raise ApiError(400, message, param="messages", code="too_many_messages")
    for i, turn in enumerate(request.messages):
        if turn.content is None and not (turn.role == "assistant" and turn.tool_calls):
            field = f"messages[{i}].content"
            raise ApiError(400, f"`{field}` is missing.", param=field, code="missing_field")
        if turn.tool_calls and turn.role != "assistant":
            field = f"messages[{i}].tool_calls"
            message = f"`{field}`: only an assistant's message can have tool calls."
            raise ApiError(400, message, param=field, code="invalid_value")
    last = request.messages[-1]
    if last.role == "assistant" and last.tool_calls:
        message = "Calls of tools cannot be gone on with; end `messages` with their results."
        raise ApiError(400, message, param="messages", code="unsupported_value")


def conversation(request: schemas.ChatRequest) -> list[Message]:
    """The turns as the engine takes them."""
    return [_turn(message) for message in request.messages]


def _turn(message: schemas.Message) -> Message:
    turn: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content),
    }
    if message.tool_calls:
        calls = [c.model_dump(exclude_none=True, exclude={"index"}) for c in message.tool_calls]
        turn["tool_calls"] = calls
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.reasoning_content:
        turn["reasoning_content"] = message.reasoning_content
    return turn


def _text(content: str | list[schemas.TextPart] | None) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content)
    return content or ""


def with_grammar(options: Options, wanted: schemas.ResponseFormat | None) -> Options:
    """The options with the grammar that the answer's format stands for.

    A large schema takes a while: not for the thread that serves HTTP.

    Raises:
        ApiError: there is another grammar already, or no schema, or one that says what a grammar
            cannot guarantee.
    """
    if wanted is None or wanted.type == "text":
        return options
    field = "response_format"
    if options.grammar is not None:
        message = "`parse.grammar` and `response_format` cannot both be followed; leave out one."
        raise ApiError(400, message, param=field, code="invalid_value")
    schema = wanted.schema_
    if wanted.type == "json_schema":
        schema = wanted.json_schema.schema_ if wanted.json_schema else None
        if schema is None:
            field = "response_format.json_schema.schema"
            raise ApiError(400, f"`{field}` is missing.", param=field, code="missing_field")
    try:
        grammar = json_object() if schema is None else schema_grammar(schema)
    except GrammarError as error:
        raise ApiError(400, str(error), param=field, code="invalid_value") from None
    return replace(options, grammar=grammar)


def tools_of(request: schemas.ChatRequest) -> tuple[list[Tool] | None, ToolChoice]:
    """The tools that are offered to the model, and whether it has to call one.

    Raises:
        ApiError: what is asked for contradicts itself, or cannot be had.
    """
    choice: ToolChoice = "auto"
    if isinstance(request.tool_choice, schemas.NamedTool):
        choice = request.tool_choice.model_dump()
    elif request.tool_choice == "required":
        choice = "required"
    if forces(choice):
        _check_choice(request)
    elif not request.tools or request.tool_choice == "none":
        return None, choice
    wanted = request.response_format
    refused = None
    if wanted is not None and wanted.type != "text":
        refused = "`tools` cannot be called in an answer with a `response_format`; leave out one."
    elif request.parallel_tool_calls is False and not forces(choice):
        refused = (
            "`parallel_tool_calls`: false needs a `tool_choice` that requires a call, which makes "
            "it one; left to itself a model may call several tools."
        )
    if refused is not None:
        raise ApiError(400, refused, param=refused.split("`")[1], code="unsupported_value")
    return [tool.model_dump(exclude_none=True) for tool in request.tools or ()], choice


def _check_choice(request: schemas.ChatRequest) -> None:
    choice, names = request.tool_choice, [tool.function.name for tool in request.tools or ()]
    message = None
    if not names:
        message = "`tool_choice` requires a call and there are no `tools`."
    elif isinstance(choice, schemas.NamedTool) and choice.function.name not in names:
        message = f"`tool_choice`: {choice.function.name!r} is not among the `tools`."
    if message is not None:
        raise ApiError(400, message, param="tool_choice", code="invalid_value")
