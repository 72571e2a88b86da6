"""What the routes share: the generation thread, the limits, the defaults and the counters."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from parse_local.engine import Engine
from parse_local.events import Result
from parse_local.policy import Options, resolve
from parse_local.server.answers import Answers
from parse_local.server.errors import ApiError
from parse_local.server.metrics import Metrics
from parse_local.server.replies import usage
from parse_local.server.settings import Settings
from parse_local.server.worker import Job, Worker

_WITHOUT_DRAFTS = ("target", "draft", "speculative")
# Strategies that accept nothing.


class Service:
    """One server.

    Args:
        worker: the generation thread.
        settings: how it listens and what it allows.
        defaults: what requests leave open.
    """

    def __init__(self, worker: Worker, settings: Settings, defaults: Options) -> None:
        self.worker = worker
        self.settings = settings
        self.defaults = defaults
        self.metrics = Metrics(worker)
        worker.on_result = lambda result, job: self.metrics.answered(result, job.queue_s)
        self.answers = Answers(worker, seconds=settings.limits.seconds)
        self.created = int(time.time())

    @property
    def engine(self) -> Engine:
        """The loaded pair.

        Raises:
            ApiError: it is still being loaded.
        """
        if self.worker.engine is None:
            raise ApiError(503, "The models are being loaded.", code="loading", retry_after=2)
        return self.worker.engine

    def check_prompt(self, n_tokens: int, field: str) -> None:
        """Refuse a prompt that is longer than the server takes.

        Raises:
            ApiError: it is.
        """
        most = self.settings.limits.prompt_tokens
        if most is not None and n_tokens > most:
            message = f"The prompt has {n_tokens} tokens and the server takes {most}."
            raise ApiError(400, message, param=field, code="context_length_exceeded")

    def model_json(self) -> dict[str, Any]:
        """The loaded pair as an entry of `/v1/models`."""
        engine = self.engine
        writers = {"target": engine.target, "draft": engine.draft}
        return {
            "id": engine.pair_name,
            "object": "model",
            "created": self.created,
            "owned_by": "parse-local",
            "parse": {
                **{role: w.model.path.name if w else None for role, w in writers.items()},
                "n_ctx": engine.n_ctx,
                "calibrated": engine.profile.calibrated,
                "strategy": self.defaults.strategy,
                "accept": self._accept(self.defaults, raw=False),
            },
        }

    def usage(self, result: Result, options: Options, job: Job, *, raw: bool) -> dict[str, Any]:
        """The `usage` of an answer.

        Args:
            result: the answer.
            options: with which it was asked for.
            job: that it came from.
            raw: it went on with a text; there are no verdicts then.
        """
        accept = self._accept(options, raw=raw)
        return usage(result, strategy=options.strategy, accept=accept, queue_s=job.queue_s)

    def _accept(self, options: Options, *, raw: bool) -> str | None:
        if options.strategy in _WITHOUT_DRAFTS or self.engine.draft is None:
            return None
        if raw and options.strategy in ("auto", "parse"):
            options = replace(options, accept=options.accept or "exact")
        return resolve(options, self.engine.profile).accept
