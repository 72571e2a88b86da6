"""Running the server: its socket, uvicorn, and a stop that leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from parse_local.engine import Engine
from parse_local.errors import ServerError
from parse_local.policy import Options
from parse_local.server.app import create_app
from parse_local.server.errors import ApiError
from parse_local.server.service import Service
from parse_local.server.settings import Settings
from parse_local.server.worker import Worker

_SLACK_S = 5.0
# Beyond the grace, for the last chunks and for freeing the models.


def serve(load: Callable[[], Engine], defaults: Options, settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        load: loads the models; called in the generation thread.
        defaults: what requests leave open.
        settings: how to listen and what to allow.

    Raises:
        ServerError: the address cannot be listened at.
        ParseLocalError: as `load`.
    """
    listener = listen(settings)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server: Server

    def on_load() -> None:
        if worker.error is not None:
            server.should_exit = True
        elif worker.engine is not None and worker.state == "ready":
            click.echo(f"Ready: {worker.engine.pair_name} at {url} (API: {url}/v1)", err=True)

    worker = Worker(load, n_queued=settings.limits.queued, on_load=on_load)
    server = Server(worker, settings, defaults)
    server.run(sockets=[listener])
    if worker.error is not None:
        raise worker.error
    # A model that is still being read cannot be stopped; the process ends without it.
    if not worker.join(_SLACK_S) and worker.engine is None:
        os._exit(0)


def listen(settings: Settings) -> socket.socket:
    """A socket that listens at the address of the settings.

    Raises:
        ServerError: the address does not exist, or its port is taken.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"There is no address {where} ({error}); give another --host.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    if os.name == "posix":  # Windows would let two servers share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(settings.limits.connections)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ServerError(
                f"Port {settings.port} is in use; stop what listens there, or give another --port."
            ) from None
        raise ServerError(
            f"The server cannot listen at {where} ({error.strerror or error}); "
            "give another --host or --port."
        ) from None
    listener.set_inheritable(True)
    return listener


class Server(uvicorn.Server):
    """uvicorn, with a stop that ends streams properly and an exit status of 0.

    Args:
        worker: the generation thread.
        settings: how to listen and what to allow.
        defaults: what requests leave open.
    """

    def __init__(self, worker: Worker, settings: Settings, defaults: Options) -> None:
        limits = settings.limits
        service = Service(worker, settings, defaults)
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=type("Protocol", (_Protocol,), {"n_connections": limits.connections}),
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=limits.idle_seconds,
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_graceful_shutdown=int(settings.grace + _SLACK_S),
            )
        )
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what matters has a line already
        self._worker = worker
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and let the running answer end within the grace."""
        if self._worker.error is None:
            click.echo("Stopping.", err=True)
        stopping = asyncio.create_task(self._service.answers.stop_all(self._service.settings.grace))
        await super().shutdown(sockets)
        await stopping

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, and at once on the second; the process ends with 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # An ignored SIGINT (a job started with nohup or in the background) stays ignored.
        signals = [s for s in (signal.SIGINT, signal.SIGTERM) if _is_heard(s)]
        before = {s: signal.signal(s, self.handle_exit) for s in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; at the second signal without any grace."""
        if self.should_exit:
            self.force_exit = True
            if self._worker.engine is not None:
                self._worker.engine.cancel()
        self.should_exit = True


def _is_heard(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_IGN


class _Protocol(H11Protocol):
    # uvicorn's, with errors as JSON where there is one connection too many and where something is
    # no HTTP. A connection on which no whole request head arrives in time is closed, and one whose
    # client has stopped to read what it asked for: to close it would mean to wait for that client.
    n_connections: int
    _until: float | None = None
    _n_unread = 0
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # to be told of everything that is not read
        if len(self.connections) > self.n_connections:
            self.app = _full
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # stops the clock
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._until = None

    def _wait(self) -> None:
        self._until = self._until or self.loop.time() + self.timeout_keep_alive
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(
            self._until, self.timeout_keep_alive_handler
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._n_unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.timeout_keep_alive, self._check_reading)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_checking()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_checking()

    def _check_reading(self) -> None:
        before, self._n_unread = self._n_unread, self.transport.get_write_buffer_size()
        if self._n_unread < before:
            self._reading = self.loop.call_later(self.timeout_keep_alive, self._check_reading)
        else:
            self.transport.abort()

    def _stop_checking(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def send_400_response(self, msg: str) -> None:
        body = json.dumps(ApiError(400, msg, code="invalid_http").body).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


async def _full(scope: Any, receive: Any, send: Any) -> None:
    message = "The server has as many connections as it takes; try again later."
    error = ApiError(503, message, code="too_many_connections", retry_after=5)
    await error.response({"Connection": "close"})(scope, receive, send)
