"""A server that speaks the OpenAI protocol, as one more system of a run."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from parse_local.bench.record import Answered
from parse_local.chat_template import Message
from parse_local.errors import PeerError
from parse_local.events import FinishReason, Result, Span, Timings, TokenCounts, Usage
from parse_local.llama.model import Model

API_KEY = "OPENAI_API_KEY"
"""Environment variable that is sent as the bearer token where it is set."""
TIMEOUT_S = 600.0
"""Seconds without a sign of life."""


class OpenAIPeer:
    """Asks a server for chat completions, streamed, so that the first text can be timed.

    Args:
        name: as it stands in the tables.
        url: of the API, for example "http://127.0.0.1:8080/v1"; without a path, /v1 is meant.
        vocabulary: counts tokens where the server does not say how many it wrote.
        model: sent as the model's name.
        pid: of a local server, for its memory.
        extra: further fields of the request.
        counts_end: its counts include the token that ended the answer, as llama-server's do;
            ours do not.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        vocabulary: Model,
        model: str = "default",
        pid: int | None = None,
        extra: Mapping[str, Any] | None = None,
        counts_end: bool = False,
    ) -> None:
        self.name = name
        self.pid = pid
        self._url = url
        self._model = model
        self._vocabulary = vocabulary
        self._extra = dict(extra or {})
        self._counts_end = counts_end
        self._socket: socket.socket | None = None
        self._cancelled = False
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise PeerError(f"{url!r} is no address ({error}); give http://HOST:PORT/v1.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PeerError(f"{url!r} is no address of a server; give http://HOST:PORT/v1.")
        self._path = (parts.path.rstrip("/") or "/v1") + "/chat/completions"
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"

    def answer(self, messages: Sequence[Message], max_tokens: int) -> Answered:
        """As `System.answer`; tokens per second count from the request to the last byte.

        Raises:
            PeerError: the server cannot be reached, refuses, or sends what is no completion.
        """
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        text = ""
        reason: FinishReason = "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        started = time.perf_counter()
        first: float | None = None
        try:
            for chunk in self._stream(body):
                usage = chunk.get("usage") or usage
                timings = chunk.get("timings") or timings
                for choice in chunk.get("choices") or ():
                    piece = (choice.get("delta") or {}).get("content") or ""
                    if piece and first is None:
                        first = time.perf_counter() - started
                    text += piece
                    if choice.get("finish_reason") == "length":
                        reason = "length"
        except (AttributeError, TypeError, KeyError) as error:
            raise PeerError(f"{self._url} sent what is no chat completion ({error}).") from error
        total = time.perf_counter() - started
        n_tokens = usage.get("completion_tokens") or timings.get("predicted_n")
        if n_tokens is None:
            n_tokens = len(self._vocabulary.tokenize(text)) if text else 0
        elif self._counts_end and reason == "stop" and n_tokens:
            n_tokens -= 1
        return Answered(
            Result(
                text=text,
                finish_reason="cancelled" if self._cancelled else reason,
                usage=Usage(int(usage.get("prompt_tokens") or 0), int(n_tokens)),
                tokens=TokenCounts(
                    spec_proposed=int(timings.get("draft_n") or 0),
                    spec_accepted=int(timings.get("draft_n_accepted") or 0),
                ),
                timings=Timings(
                    prompt_s=float(timings.get("prompt_ms") or 0) / 1000,
                    target_s=float(timings.get("predicted_ms") or 0) / 1000,
                    total_s=total,
                    ttft_s=total if first is None else first,
                ),
                spans=(Span(text, "target"),) if text else (),
            )
        )

    def _stream(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        self._cancelled = False
        try:
            connection.request("POST", self._path, json.dumps(body), headers)
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status != 200:
                raise PeerError(
                    f"{self._url} answered with status {response.status}: "
                    f"{_reason(response.read(10_000))}"
                )
            for line in response:
                data = line.strip()
                if not data.startswith(b"data:"):
                    continue
                data = data[len(b"data:") :].strip()
                if data == b"[DONE]":
                    return
                chunk = json.loads(data)
                if isinstance(chunk, dict) and chunk.get("error"):
                    raise PeerError(f"{self._url} failed: {_reason(data)}")
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            if not self._cancelled:
                why = str(error) or type(error).__name__
                raise PeerError(f"{self._url} does not answer ({why}); is it running?") from error
        except ValueError as error:
            if not self._cancelled:
                raise PeerError(f"{self._url} sent what is no JSON ({error}).") from error
        finally:
            self._socket = None
            connection.close()

    def cancel(self) -> None:
        """As `System.cancel`: closes the connection, at which servers stop."""
        self._cancelled = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _reason(body: bytes) -> str:
    # What servers put into their errors, in one line.
    text = body.decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        while isinstance(found, dict):
            found = found.get("error") or found.get("message") or found.get("detail") or text
        text = str(found)
    return (" ".join(text.split())[:300] or "no reason given").rstrip(".") + "."
