"""What Prometheus can read at `/metrics`."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from parse_local.events import Result
from parse_local.server.worker import Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

disable_created_metrics()  # type: ignore[no-untyped-call] # a second series beside each, of no use here

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SPEEDS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 500, 1000)


class Metrics:
    """Counters of one server.

    Args:
        worker: whose queue is shown.
    """

    def __init__(self, worker: Worker) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "parse_local_requests", "HTTP requests.", ["method", "route", "status"],
            registry=registry,
        )  # fmt: skip
        self._answers = Counter(
            "parse_local_answers", "Answers by how they ended.", ["reason"], registry=registry
        )
        self._tokens = Counter(
            "parse_local_tokens",
            "Tokens: of prompts, of those found in the cache, of answers, of those accepted from "
            "the draft.",
            ["kind"],
            registry=registry,
        )
        self._decoded = Counter(
            "parse_local_decoded_tokens", "Tokens decoded.", ["by"], registry=registry
        )
        self._phases = Counter(
            "parse_local_seconds", "Seconds spent on answers.", ["phase"], registry=registry
        )
        self._seconds = Histogram(
            "parse_local_answer_seconds", "Seconds of an answer, without waiting for others.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._first = Histogram(
            "parse_local_first_text_seconds", "Seconds to an answer's first final text.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._speed = Histogram(
            "parse_local_tokens_per_second", "Tokens per second of an answer.",
            buckets=_SPEEDS, registry=registry,
        )  # fmt: skip
        self._share = Gauge(
            "parse_local_accepted_share", "Share of all answers' tokens that came from the draft.",
            registry=registry,
        )  # fmt: skip
        self._n_written = self._n_accepted = 0
        for name, text, value in (
            ("queue_length", "Requests that wait.", lambda: worker.n_waiting),
            ("running", "Requests that are being answered.", lambda: worker.n_running),
            ("ready", "1 when the models are loaded.", lambda: worker.state == "ready"),
        ):
            Gauge(f"parse_local_{name}", text, registry=registry).set_function(value)
        for kind in ("prompt", "cached", "completion", "accepted"):
            self._tokens.labels(kind)  # so that they can be read before the first answer

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count one HTTP request; `route` is "" for what fits none."""
        method = method if method in ("GET", "POST") else ""  # clients can make up any number
        self._requests.labels(method, route, str(status)).inc()

    def answered(self, result: Result, queue_s: float) -> None:
        """Count one answer."""
        tokens, timings = result.tokens, result.timings
        self._answers.labels(result.finish_reason).inc()
        self._n_written += result.usage.completion_tokens
        self._n_accepted += tokens.n_accept
        for kind, n in (
            ("prompt", result.usage.prompt_tokens),
            ("cached", tokens.reused),
            ("completion", result.usage.completion_tokens),
            ("accepted", tokens.n_accept),
        ):
            self._tokens.labels(kind).inc(n)
        for by, n in (
            ("draft", tokens.draft_decoded),
            ("target", tokens.target_decoded),
            ("judge", tokens.suffix_decoded),
        ):
            self._decoded.labels(by).inc(n)
        for phase in ("prompt", "draft", "verify", "target"):
            self._phases.labels(phase).inc(getattr(timings, f"{phase}_s"))
        self._phases.labels("queue").inc(queue_s)
        self._seconds.observe(timings.total_s)
        if result.usage.completion_tokens:
            self._first.observe(timings.ttft_s)
            self._speed.observe(result.tokens_per_second)
            self._share.set(self._n_accepted / self._n_written)

    def text(self) -> bytes:
        """All of them in Prometheus' format."""
        return generate_latest(self._registry)
