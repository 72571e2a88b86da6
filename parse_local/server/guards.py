"""What every request has to pass before a route sees it, as plain ASGI applications.

From the outside in: log, `Host`, CORS (Starlette's), origin, key, body.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parse_local.server.errors import ApiError, printable

_GUARDED = ("/v1", "/metrics")
# Paths that need the key. The page, its files, /health and the documentation hold no secrets.

SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer that does not set them itself."""


class Log:
    """One line on stderr for every request, and its count.

    Never a query, a header or a body: they hold prompts and keys.

    Args:
        app: what follows.
        count: gets method, route and status.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, str, int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499  # the client left before an answer began
        started = time.perf_counter()
        state = scope.setdefault("state", {})

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route = scope.get("route")
            known = getattr(route, "path", "")
            self._count(scope["method"] if known else "", known, status)
            self._print(scope, status, time.perf_counter() - started, state.get("note", ""))

    def _print(self, scope: Scope, status: int, seconds: float, note: str) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        what = f"{printable(scope['method'])} {printable(scope['path'])[:200]}"
        line = f"{when} {what} {status} {note + ' ' if note else ''}{seconds:.2f} s"
        with suppress(OSError, ValueError):  # a closed stderr stops no server
            print(line, file=sys.stderr, flush=True)


class Guard:
    """Refuses requests by their headers, and reads the body, up to its limit.

    Args:
        app: what follows.
        check: raises an ApiError for headers that are not welcome.
    """

    def __init__(self, app: ASGIApp, check: Callable[[Scope, Headers], None]) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            try:
                self._check(scope, Headers(scope=scope))
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Body:
    """Reads the whole body before the application does, and ends what takes too long.

    Args:
        app: what follows.
        limit: bytes.
        seconds: until the body has arrived.
        total: seconds until the client has taken the whole answer; then its connection is closed.
    """

    def __init__(self, app: ASGIApp, *, limit: int, seconds: float, total: float) -> None:
        self._app = app
        self._limit = limit
        self._seconds = seconds
        self._total = total

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), self._seconds)
        except asyncio.TimeoutError:
            error = ApiError(408, f"The body took more than {self._seconds:g} s to arrive.")
            await error.response({"Connection": "close"})(scope, receive, send)
            return
        except ApiError as error:
            await error.response({"Connection": "close"})(scope, receive, send)
            return
        if body is None:
            return  # the client is gone
        message: Message = {"type": "http.request", "body": body, "more_body": False}
        waiting = [message]

        async def again() -> Message:
            return waiting.pop() if waiting else await receive()

        # Answers end in time by themselves, but a client may stop to read one.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._app(scope, again, send), self._total)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared[:20]) > self._limit:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limit:
                raise self._too_large()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self) -> ApiError:
        message = f"The body has more than {self._limit} bytes, the most that this server takes."
        return ApiError(413, message, code="body_too_large")


def check_host(*allowed: str) -> Callable[[Scope, Headers], None]:
    """A check of `Host` against DNS rebinding.

    A web page can make a browser send requests to a name of its own that resolves to this
    machine; it cannot make it send an address, or `localhost`, in that header.

    Args:
        allowed: names besides; "*" for any.
    """
    names = {name.lower().rstrip(".") for name in allowed}

    def check(scope: Scope, headers: Headers) -> None:
        name = _host_name(headers.get("host", ""))
        if "*" in names or name in names or _is_here(name):
            return
        raise ApiError(
            403,
            f"The server does not answer to the name {printable(name)!r}; "
            "start it with --allow-host and that name.",
            code="host_not_allowed",
        )

    return check


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_here(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(*allowed: str) -> Callable[[Scope, Headers], None]:
    """A check that requests of web pages come from the server's own page or an allowed one."""

    def check(scope: Scope, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or "*" in allowed or origin in allowed:
            return
        if origin in (f"http://{headers.get('host')}", f"https://{headers.get('host')}"):
            return
        raise ApiError(
            403,
            f"Pages of {printable(origin)[:200]!r} may not use this server; "
            "start it with --cors-origin and that origin.",
            code="origin_not_allowed",
        )

    return check


def check_key(key: str) -> Callable[[Scope, Headers], None]:
    """A check of the bearer token, in constant time."""
    expected = key.encode()

    def check(scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if not any(path == p or path.startswith(p + "/") for p in _GUARDED):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(
            given.strip(" ").encode("latin-1"), expected
        ):
            raise ApiError(
                401,
                "The API key is missing or wrong; send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
            )

    return check


def check_json(scope: Scope, headers: Headers) -> None:
    """A body has to say that it is JSON.

    A page of another origin can send a form or plain text without asking; JSON it cannot.

    Raises:
        ApiError: 415.
    """
    if scope["method"] != "POST":
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, "Send JSON with the header `Content-Type: application/json`.", code="not_json"
        )
