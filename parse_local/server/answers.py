"""Between HTTP and the generation thread: each request's job, its limits and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import Request

from parse_local.events import Event
from parse_local.server.worker import Job, Reason, Work, Worker

_AGAIN_S = 0.05
# Between two requests to cancel: an answer that is just beginning forgets an earlier one.


class Answers:
    """Starts jobs, and stops those whose client is gone or whose time is up.

    Args:
        worker: the generation thread.
        seconds: most time of one request, waiting included.
    """

    def __init__(self, worker: Worker, *, seconds: float) -> None:
        self._worker = worker
        self._seconds = seconds
        self._stopping: set[asyncio.Task[None]] = set()

    def begin(self, request: Request, work: Work, field: str) -> tuple[Job, AsyncIterator[Event]]:
        """Queue a job for a request.

        Args:
            request: whose body has been read; its client is watched from now on.
            work: starts the answer.
            field: of the request, that holds its prompt.

        Returns:
            The job, and its events; the job ends at the latest when they are closed.

        Raises:
            ApiError: as `Worker.submit`; the events raise as `Job.events`.
        """
        job = self._worker.submit(work, field)
        watch = asyncio.create_task(self._watch(request, job))
        return job, self._events(job, watch)

    async def _events(self, job: Job, watch: asyncio.Task[None]) -> AsyncIterator[Event]:
        try:
            async for event in job.events():
                yield event
        finally:
            watch.cancel()
            if not job.ended:
                task = asyncio.create_task(self.stop(job, "disconnected"))
                self._stopping.add(task)
                task.add_done_callback(self._stopping.discard)

    async def _watch(self, request: Request, job: Job) -> None:
        reason: Reason = "disconnected"
        try:
            await asyncio.wait_for(_disconnected(request), self._seconds)
        except asyncio.TimeoutError:
            reason = "timeout"
        await self.stop(job, reason)

    async def stop(self, job: Job, reason: Reason) -> None:
        """Stop a job and wait until it has ended."""
        while not job.ended:
            self._worker.cancel(job, reason)
            await asyncio.sleep(_AGAIN_S)

    async def stop_all(self, grace: float) -> None:
        """Take no more jobs, drop those that wait, and give the running one `grace` seconds."""
        job = self._worker.begin_stop()
        if job is None:
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_ended(job), grace)
        await self.stop(job, "shutdown")


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _ended(job: Job) -> None:
    while not job.ended:
        await asyncio.sleep(_AGAIN_S)
