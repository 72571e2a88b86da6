"""The routes of OpenAI's API, and those that look after the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.requests import Request

from parse_local.engine import Engine
from parse_local.events import Event, Finished, Result, Text
from parse_local.policy import Options
from parse_local.server import answer_schemas as answers
from parse_local.server import convert, metrics, schemas
from parse_local.server.errors import ApiError
from parse_local.server.replies import DONE, ChatReply, CompletionReply, Reply, sse
from parse_local.server.service import Service
from parse_local.server.worker import Job, Work

_ERRORS = {
    400: "The request is malformed, or asks for what is not supported.",
    401: "The API key is missing or wrong.",
    403: "The `Host` or `Origin` is not allowed.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The queue is full; see `Retry-After`.",
    503: "The models are being loaded, the server is being stopped, or llama.cpp failed.",
}


def _documented(
    answer: Any, *errors: int, stream: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    # What a route answers, for the OpenAPI document.
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": answers.ErrorBody, "description": _ERRORS[status]}
        for status in (*errors, 401, 403)
    }
    found[200] = {"model": answer, "description": "The answer."}
    if stream is not None:
        data = {"type": "string", "description": f"A `{stream.__name__}` as JSON, or `[DONE]`."}
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        found[200]["content"] = {"text/event-stream": {"schema": event}}
    return found


_POSTED = (400, 408, 413, 415, 429, 503)

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    tags=["OpenAI"],
    responses=_documented(answers.ChatCompletion, *_POSTED, stream=answers.ChatChunk),
)
async def chat_completions(request: Request, body: schemas.ChatRequest) -> Response:
    """Answers the last message; `parse` has this server's own options."""
    service = _service(request)
    convert.check_messages(body, service.settings.limits)
    options = convert.answer_options(body, service.defaults, service.settings.limits)
    messages = convert.conversation(body)
    tools, tool_choice = convert.tools_of(body)

    def work(engine: Engine) -> Iterator[Event]:
        if service.settings.limits.prompt_tokens is not None:
            prompt = engine.target.prompt(messages, thinking=options.thinking, tools=tools)
            service.check_prompt(len(prompt), "messages")
        wanted = convert.with_grammar(options, body.response_format)
        return engine.stream(messages, wanted, tools=tools, tool_choice=tool_choice)

    reply = ChatReply(service.engine.pair_name, **_shape(body))
    return await _Answering(service, request, options, reply).respond(work, body)


@router.post(
    "/v1/completions",
    summary="Go on with a text",
    tags=["OpenAI"],
    responses=_documented(answers.TextCompletion, *_POSTED, stream=answers.TextCompletion),
)
async def completions(request: Request, body: schemas.CompletionRequest) -> Response:
    """Goes on with the prompt, without a chat template."""
    service = _service(request)
    options = convert.answer_options(body, service.defaults, service.settings.limits)
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]

    def work(engine: Engine) -> Iterator[Event]:
        if service.settings.limits.prompt_tokens is not None:
            service.check_prompt(len(engine.target.encode(prompt)), "prompt")
        return engine.complete(prompt, options)

    reply = CompletionReply(service.engine.pair_name, **_shape(body))
    return await _Answering(service, request, options, reply, raw=True).respond(work, body)


@router.get(
    "/v1/models",
    summary="What is loaded",
    tags=["OpenAI"],
    responses=_documented(answers.ModelList, 503),
)
async def models(request: Request) -> JSONResponse:
    """The loaded pair, the only one."""
    return JSONResponse({"object": "list", "data": [_service(request).model_json()]})


@router.get(
    "/v1/models/{model:path}",
    summary="The loaded pair by its name",
    tags=["OpenAI"],
    responses=_documented(answers.ModelEntry, 404, 503),
)
async def model(request: Request, model: str) -> JSONResponse:
    """The loaded pair, if that is its name."""
    found = _service(request).model_json()
    if found["id"] != model:
        message = f"There is no such model here; {found['id']} is loaded."
        raise ApiError(404, message, param="model", code="model_not_found")
    return JSONResponse(found)


@router.get(
    "/health",
    summary="Whether it is ready",
    tags=["Server"],
    responses={
        200: {"model": answers.Health, "description": "It is."},
        403: {"model": answers.ErrorBody, "description": _ERRORS[403]},
        503: {"model": answers.Health, "description": "Not yet, or no longer."},
    },
)
async def health(request: Request) -> JSONResponse:
    """200 when the models are loaded, 503 before that and while it stops."""
    worker = _service(request).worker
    ready = worker.state == "ready"
    found = {
        "status": "ok" if ready else worker.state,
        "running": worker.n_running,
        "waiting": worker.n_waiting,
    }
    return JSONResponse(found, 200 if ready else 503)


@router.get(
    "/metrics",
    summary="Counters for Prometheus",
    tags=["Server"],
    response_class=PlainTextResponse,
    responses={
        status: {"model": answers.ErrorBody, "description": _ERRORS[status]}
        for status in (401, 403)
    },
)
async def prometheus(request: Request) -> Response:
    """Requests, tokens, seconds, the accepted share and the queue."""
    return Response(_service(request).metrics.text(), media_type=metrics.CONTENT_TYPE)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _shape(body: schemas.Request) -> dict[str, bool]:
    asked = body.stream_options is not None and bool(body.stream_options.include_usage)
    own = body.parse is not None
    events = bool(getattr(body.parse, "events", False))
    return {"events": events, "with_usage": bool(body.stream) and (asked or own)}


@dataclass
class _Answering:
    # One request for an answer, whole or streamed.
    service: Service
    request: Request
    options: Options
    reply: Reply
    raw: bool = False

    async def respond(self, work: Work, body: schemas.Request) -> Response:
        field = "prompt" if self.raw else "messages"
        job, events = self.service.answers.begin(self.request, work, field)
        if not body.stream:
            return JSONResponse(await self._whole(job, events))
        first = await anext(events)  # errors of the prompt still get a status of their own
        return StreamingResponse(
            self._stream(job, first, events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def _whole(self, job: Job, events: AsyncIterator[Event]) -> dict[str, Any]:
        texts: list[Text] = []
        async for event in events:
            if isinstance(event, Text):
                texts.append(event)
            if isinstance(event, Finished):
                usage = self._finish(job, event.result)
                found = self.reply.whole(event.result, usage, texts)
        return found

    async def _stream(
        self, job: Job, first: Event, events: AsyncIterator[Event]
    ) -> AsyncIterator[bytes]:
        ended = False
        try:
            async with aclosing(events):  # type: ignore[type-var]
                for chunk in self.reply.opening():
                    yield sse(chunk)
                event: Event | None = first
                while event is not None:
                    for chunk in self._chunks(job, event):
                        yield sse(chunk)
                    event = await anext(events, None)
            ended = True
            yield DONE
        except ApiError as error:
            ended = True
            yield sse(error.body)
        finally:
            if not ended:
                self._note("client left")

    def _chunks(self, job: Job, event: Event) -> Iterator[dict[str, Any]]:
        if isinstance(event, Finished):
            return self.reply.closing(event.result, self._finish(job, event.result))
        return self.reply.chunks(event)

    def _finish(self, job: Job, result: Result) -> dict[str, Any]:
        note = f"{result.usage.prompt_tokens}+{result.usage.completion_tokens} tokens"
        self._note(note if job.cancelled is None else f"{note}, stopped ({job.cancelled})")
        return self.service.usage(result, self.options, job, raw=self.raw)

    def _note(self, note: str) -> None:
        self.request.scope["state"]["note"] = note  # for the log line
