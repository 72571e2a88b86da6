"""The HTTP application: routes, and how every failure is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from parse_local._version import __version__
from parse_local.server import guards, routes
from parse_local.server.errors import ApiError, from_validation, printable
from parse_local.server.service import Service

_PAGE = StaticFiles(directory=Path(__file__).parent / "page", html=True)

_SLACK_S = 30.0
# For a client to take the end of an answer that has used all its time.

_DOCS_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_DOCS_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>parse-local API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/files/swagger-ui.css"></head>
<body><div id="swagger-ui"></div>
<script src="/docs/files/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script></body></html>
"""
_DOCS_START = """SwaggerUIBundle({
  url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout",
});
"""


def create_app(service: Service) -> Any:
    """The ASGI application.

    Args:
        service: what the routes share; its thread is started and stopped with the application.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await service.answers.stop_all(0)

    app = FastAPI(
        title="parse-local",
        version=__version__,
        description="OpenAI's API for a local pair of models: a small one drafts, the large one "
        "verifies.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    keyed = [Depends(HTTPBearer(auto_error=False))]  # for the document; `guards` does the work
    app.include_router(routes.router, dependencies=keyed if service.settings.api_key else [])
    _add_docs(app)
    _add_errors(app)
    app.router.default = _page
    return _guarded(app, service)


def _guarded(app: FastAPI, service: Service) -> Any:
    settings = service.settings
    limits = settings.limits
    inner: Any = guards.Body(
        app,
        limit=limits.body_bytes,
        seconds=limits.body_seconds,
        total=limits.seconds + _SLACK_S,
    )
    inner = guards.Guard(inner, guards.check_json)
    if settings.api_key is not None:
        inner = guards.Guard(inner, guards.check_key(settings.api_key))
    inner = guards.Guard(inner, guards.check_origin(*settings.cors_origins))
    if settings.cors_origins:
        inner = CORSMiddleware(
            inner,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=("Retry-After",),
        )
    names = (settings.host, *settings.allow_hosts)
    inner = guards.Guard(inner, guards.check_host(*names))
    return guards.Log(inner, service.metrics.count_request)


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    # Where no route fits; a mount at "/" would take wrong methods on routes as well.
    if scope["method"] not in ("GET", "HEAD"):
        raise HTTPException(404)
    await _PAGE(scope, receive, send)


def _add_docs(app: FastAPI) -> None:
    # Swagger UI from a package, not from a CDN: it has to work offline. Its own page would need
    # an inline script.
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_DOCS_PAGE, headers={"content-security-policy": _DOCS_CSP})

    @app.get("/docs/start.js", include_in_schema=False)
    async def start() -> Response:
        return Response(_DOCS_START, media_type="text/javascript")

    assets = StaticFiles(directory=str(files("fastapi_offline") / "static"))
    app.mount("/docs/files", assets, name="docs")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return from_validation(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        what = printable(f"{request.method} {request.url.path}")
        messages = {
            404: f"There is no {what}; /docs lists what there is.",
            405: f"The method is not allowed: {what}.",
            400: "The body cannot be read as JSON.",
        }
        message = messages.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message).response(error.headers)

    @app.exception_handler(Exception)
    async def on_bug(_: Request, __: Exception) -> JSONResponse:
        message = "The server failed; its log says why."
        return ApiError(500, message, code="internal_error").response()
