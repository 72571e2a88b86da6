"""Events and results → objects of OpenAI's API, whole or as chunks of a stream."""

from __future__ import annotations

import json
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from parse_local.events import (
    Accepted,
    Drafted,
    Event,
    Result,
    RolledBack,
    Round,
    Text,
    TokenLogprob,
    Verified,
)

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"

_REASONS = {"cancelled": "length"}
# OpenAI knows no answer that was stopped by the server; "length" says that it is cut short.

_NEVER = -9999.0
# What OpenAI writes for a log-probability that is not a finite number.


def sse(data: Json) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"


def usage(result: Result, *, strategy: str, accept: str | None, queue_s: float) -> Json:
    """The `usage` of an answer, with this server's own figures in `parse`."""
    prompt, completion = result.usage.prompt_tokens, result.usage.completion_tokens
    found = result.to_json()
    # The counts are those of the model that reads the prompt: the draft, where it answers alone.
    reused = result.tokens.reused_draft if strategy == "draft" else result.tokens.reused
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reused},
        "parse": {
            "strategy": strategy,
            "accept": accept,
            "accepted_share": round(result.accepted_share, 4),
            "tokens_per_second": round(result.tokens_per_second, 2),
            "speedup": result.speedup if result.speedup is None else round(result.speedup, 3),
            "n_rounds": len(result.rounds),
            "tokens": found["tokens"] | {"accepted": result.tokens.n_accept},
            "timings": found["timings"] | {"queue_s": round(queue_s, 4)},
        },
    }


def round_json(found: Round, n_accept_chars: int) -> Json:
    """A round with what is needed to mark it in the draft's text."""
    return {
        **found.to_json(),
        "complete": [b.complete for b in found.boundaries],
        "n_chars": [b.n_chars for b in found.boundaries],
        "n_accept_chars": n_accept_chars,
    }


class Reply(ABC):
    """One answer on its way to the client.

    Args:
        model: name of what answers.
        events: tell of drafts and verdicts too.
        with_usage: every chunk has a `usage`, null until the last.
    """

    kind = ""
    prefix = ""

    def __init__(self, model: str, *, events: bool = False, with_usage: bool = False) -> None:
        self._events = events
        self._with_usage = with_usage
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "object": self.kind,
            "created": int(time.time()),
            "model": model,
        }
        self._verified: Verified | None = None
        self._n_chars = 0

    def opening(self) -> Iterator[Json]:
        """What a stream begins with."""
        yield from ()

    def chunks(self, event: Event) -> Iterator[Json]:
        """What a stream says of one event."""
        if isinstance(event, Text):
            more = {"event": "text", "source": event.source} if self._events else None
            yield self._chunk(self._content(event), parse=more)
        elif self._events:
            yield from self._drafting(event)

    def _drafting(self, event: Event) -> Iterator[Json]:
        if self._verified is not None:  # what is accepted follows it, if anything is
            n_chars = len(event.text) if isinstance(event, Accepted) else 0
            found, self._verified = self._verified, None
            data = round_json(found.round, n_chars)
            yield self._nothing({"event": "verified", "round": data, "text": found.text})
        match event:
            case Drafted(text=text, n_draft=n, channel=channel):
                yield self._nothing(
                    {"event": "drafted", "text": text, "n_draft": n, "channel": channel}
                )
            case Verified():
                self._verified = event
            case Accepted(n_accept=n, text=text):
                yield self._nothing({"event": "accepted", "n_accept": n, "text": text})
            case RolledBack(n_tokens=n, text=text):
                yield self._nothing({"event": "rolled_back", "n_tokens": n, "text": text})

    def closing(self, result: Result, usage: Json) -> Iterator[Json]:
        """What a stream ends with."""
        yield self._chunk(self._last(result), reason=_reason(result))
        if self._with_usage:
            yield {**self._head, "choices": [], "usage": usage}

    def whole(self, result: Result, usage: Json, texts: Sequence[Text]) -> Json:
        """The answer to a request that is not streamed.

        Args:
            result: the answer.
            usage: its figures.
            texts: its text as it came, with the tokens.
        """
        tokens = [t for e in texts if e.channel == "answer" for t in e.tokens]
        choice = {
            "index": 0,
            **self._message(result),
            "logprobs": self._logprobs(tokens),
            "finish_reason": _reason(result),
        }
        found = {**self._head, "choices": [choice], "usage": usage}
        if self._events:
            spans = [
                {"text": s.text, "source": s.source, "channel": s.channel} for s in result.spans
            ]
            found["parse"] = {"rounds": [r.to_json() for r in result.rounds], "spans": spans}
        return found

    def _chunk(
        self, content: Json, *, reason: str | None = None, parse: Json | None = None
    ) -> Json:
        choice = {"index": 0, **content, "finish_reason": reason}
        choice.setdefault("logprobs", None)
        found = {**self._head, "choices": [choice]}
        if self._with_usage:
            found["usage"] = None
        if parse is not None:
            found["parse"] = parse
        return found

    def _nothing(self, parse: Json) -> Json:
        return self._chunk(self._empty(), parse=parse)

    @abstractmethod
    def _empty(self) -> Json: ...

    @abstractmethod
    def _content(self, event: Text) -> Json: ...

    def _last(self, result: Result) -> Json:
        return self._empty()

    @abstractmethod
    def _message(self, result: Result) -> Json: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json | None: ...


class ChatReply(Reply):
    """For `/v1/chat/completions`."""

    kind = "chat.completion"
    prefix = "chatcmpl"

    def opening(self) -> Iterator[Json]:
        """The role."""
        self._head["object"] = "chat.completion.chunk"
        yield self._chunk({"delta": {"role": "assistant", "content": ""}})

    def _empty(self) -> Json:
        return {"delta": {}}

    def _content(self, event: Text) -> Json:
        if event.channel == "reasoning":
            return {"delta": {"reasoning_content": event.text}}
        return {"delta": {"content": event.text}, "logprobs": self._logprobs(event.tokens)}

    def _last(self, result: Result) -> Json:
        calls = _tool_calls(result)
        return {"delta": {"tool_calls": calls} if calls else {}}

    def _message(self, result: Result) -> Json:
        message: Json = {"role": "assistant", "content": result.text, "refusal": None}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if calls := _tool_calls(result):
            message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls]
            message["content"] = result.text or None
        return {"message": message}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json | None:
        if not tokens:
            return None
        content = [
            {**_token(t.text, t.logprob), "top_logprobs": [_token(*top) for top in t.top]}
            for t in tokens
        ]
        return {"content": content, "refusal": None}


class CompletionReply(Reply):
    """For `/v1/completions`."""

    kind = "text_completion"
    prefix = "cmpl"

    def _empty(self) -> Json:
        return {"text": ""}

    def _content(self, event: Text) -> Json:
        return {"text": event.text, "logprobs": self._logprobs(event.tokens)}

    def _message(self, result: Result) -> Json:
        return {"text": result.text}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json | None:
        if not tokens:
            return None
        texts = [_text(t.text) for t in tokens]
        *offsets, self._n_chars = accumulate(map(len, texts), initial=self._n_chars)
        return {
            "tokens": texts,
            "token_logprobs": [_number(t.logprob) for t in tokens],
            "top_logprobs": [{_text(text): _number(p) for text, p in t.top} for t in tokens],
            "text_offset": offsets,
        }


def _reason(result: Result) -> str:
    return _REASONS.get(result.finish_reason, result.finish_reason)


def _tool_calls(result: Result) -> list[Json]:
    return [
        {
            "index": i,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_json},
        }
        for i, call in enumerate(result.tool_calls)
    ]


def _token(text: bytes, logprob: float | None) -> Json:
    return {"token": _text(text), "logprob": _number(logprob), "bytes": list(text)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _number(logprob: float | None) -> float | None:
    if logprob is None:
        return None
    return logprob if math.isfinite(logprob) else _NEVER
