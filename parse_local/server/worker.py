"""One thread that owns the models and answers one request after the other.

llama.cpp's contexts belong to one thread at a time, and two answers at once would only share
the same memory bandwidth. Requests wait in a bounded queue, first come, first served.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Literal

from parse_local.engine import Engine
from parse_local.errors import ParseLocalError
from parse_local.events import Event, Finished, Result
from parse_local.server.errors import ApiError, from_engine

State = Literal["loading", "ready", "stopping", "failed"]
Reason = Literal["disconnected", "timeout", "shutdown"]
Work = Callable[[Engine], Iterator[Event]]

RECENT = 8
"""Answers whose mean duration says when a queue will have room."""


class Job:
    """One request, from the queue to its last event.

    Args:
        work: starts the answer; called in the generation thread.
        field: of the request, that holds its prompt; for errors.
        loop: of the server, which reads the events.
    """

    def __init__(self, work: Work, field: str, loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.field = field
        self.cancelled: Reason | None = None
        self.submitted = time.perf_counter()
        self.started: float | None = None
        self.ended = False
        self._loop = loop
        self._items: asyncio.Queue[Event | ApiError] = asyncio.Queue()

    @property
    def queue_s(self) -> float:
        """Seconds that it has waited."""
        return (self.started or time.perf_counter()) - self.submitted

    def put(self, item: Event | ApiError) -> None:
        """Hand an event, or the error that ends the job, to the server; from any thread."""
        if isinstance(item, Finished | ApiError):
            self.ended = True
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def events(self) -> AsyncIterator[Event]:
        """The events, `Finished` last.

        Raises:
            ApiError: the request cannot be answered.
        """
        while True:
            item = await self._items.get()
            if isinstance(item, ApiError):
                raise item
            yield item
            if isinstance(item, Finished):
                return


class Worker:
    """The generation thread.

    Args:
        load: loads the models; called in the thread.
        n_queued: most jobs that wait.
        on_load: called in the thread when loading has ended, well or not.

    `on_result`, where it is set, gets every answer's result and the job, in the thread.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        *,
        n_queued: int,
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        self.state: State = "loading"
        self.error: BaseException | None = None
        """Why loading failed."""
        self.engine: Engine | None = None
        """To be asked from other threads for what never changes, and to be cancelled."""
        self.on_result: Callable[[Result, Job], None] = lambda result, job: None
        self._load = load
        self._n_queued = n_queued
        self._on_load = on_load
        self._changed = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)

    @property
    def n_waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """1 while a job is answered, else 0."""
        return int(self._running is not None)

    def start(self) -> None:
        """Load the models and begin to answer."""
        self._thread.start()

    def submit(self, work: Work, field: str) -> Job:
        """Queue a job, see `Job`; its events arrive in the running asyncio loop.

        Raises:
            ApiError: the queue is full (429), or the models are not ready (503).
        """
        job = Job(work, field, asyncio.get_running_loop())
        with self._changed:
            if self.state == "loading":
                raise ApiError(503, "The models are being loaded.", code="loading", retry_after=2)
            if self.state != "ready":
                raise ApiError(503, "The server is being stopped.", code="stopping")
            if len(self._queue) + self.n_running > self._n_queued:
                raise ApiError(
                    429,
                    f"The queue is full: {len(self._queue)} requests are waiting; try again later.",
                    code="queue_full",
                    retry_after=self._seconds_until_room(),
                )
            self._queue.append(job)
            self._changed.notify()
        return job

    def _seconds_until_room(self) -> int:
        mean = sum(self._seconds) / len(self._seconds) if self._seconds else 1.0
        return max(1, min(60, round(mean)))

    def cancel(self, job: Job, reason: Reason) -> None:
        """Stop a job: in the queue at once, else within one decode step; from any thread.

        An answer that begins at this moment clears the engine's flag, so that a caller that has
        to be sure calls again until `job.ended`.
        """
        with self._changed:
            job.cancelled = job.cancelled or reason
            if job in self._queue:
                self._queue.remove(job)
                job.put(_never_begun(job.cancelled))
            elif job is self._running and self.engine is not None:
                self.engine.cancel()

    def begin_stop(self) -> Job | None:
        """Take no more jobs and drop those that wait; returns the one that runs."""
        with self._changed:
            if self.state in ("loading", "ready"):
                self.state = "stopping"
            for job in self._queue:
                job.put(_never_begun("shutdown"))
            self._queue.clear()
            self._changed.notify()
            return self._running

    def join(self, timeout: float) -> bool:
        """Wait until the models are freed; returns whether they are."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.engine = self._load()
        except BaseException as error:
            self.error = error
            self.state = "failed"
            self._on_load()
            return
        with self._changed:
            if self.state == "loading":
                self.state = "ready"
        self._on_load()
        while (job := self._next()) is not None:
            self._answer(self.engine, job)
        self.engine.close()

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            while not self._queue:
                if self.state == "stopping":
                    return None
                self._changed.wait()
            job = self._running = self._queue.popleft()
            job.started = time.perf_counter()
            return job

    def _answer(self, engine: Engine, job: Job) -> None:
        started = time.perf_counter()
        try:
            for event in job.work(engine):
                if isinstance(event, Finished):
                    self.on_result(event.result, job)
                job.put(event)
                if job.cancelled:
                    engine.cancel()
        except ParseLocalError as error:
            job.put(from_engine(error, job.field))
        except ApiError as error:
            job.put(error)
        except Exception:  # a bug must not end the thread that all others wait for
            traceback.print_exc(file=sys.stderr)
            job.put(ApiError(500, "The server failed; its log says why.", code="internal_error"))
        self._seconds.append(time.perf_counter() - started)


def _never_begun(reason: Reason) -> ApiError:
    if reason == "shutdown":
        return ApiError(503, "The server is being stopped.", code="stopping")
    message = "The request has waited too long for others to finish; try again later."
    return ApiError(503, message, code="timeout", retry_after=10)
