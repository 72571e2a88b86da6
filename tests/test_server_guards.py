"""What a request has to pass: host, origin, key, size, kind; and how the page is served."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import QUESTION, Running, serving, until
from tiny_gguf import READABLE

from parse_local import Options, load_pair
from parse_local.server.settings import Limits

KEY = "s3cret-ключ-à"  # its last byte is a space in Latin-1
ORIGIN = "http://app.example"


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path]) -> Iterator[Running]:
    with serving(
        lambda: load_pair(target=tiny(seed=1, bias=READABLE), n_ctx=256, spec="none"),
        options=Options(strategy="target", max_tokens=3),
        api_key=KEY,
        allow_hosts=("box.example",),
        cors_origins=(ORIGIN,),
        limits=Limits(body_bytes=2000, body_seconds=1.0, header_bytes=4096),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": f"Bearer {KEY}".encode()}) as client:
        yield client


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", f"Basic {KEY}", KEY])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x", "/metrics", "/v1/nothing"])
def test_the_key_is_needed(server: Running, path: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    with server.client() as client:
        response = client.get(path, headers=headers)
    assert error(response, 401)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


def test_with_the_key(client: httpx.Client, capfd: pytest.CaptureFixture[str]) -> None:
    body = {"messages": QUESTION}
    assert client.post("/v1/chat/completions?x=query", json=body).status_code == 200
    log = ""

    def logged() -> bool:  # the line follows the reply
        nonlocal log
        log += capfd.readouterr().err
        return "POST /v1/chat/completions 200 23+3 tokens" in log

    until(logged)
    for secret in (KEY, "query", QUESTION[0]["content"]):
        assert secret not in log


@pytest.mark.parametrize("path", ["/health", "/docs", "/openapi.json", "/"])
def test_what_needs_no_key(server: Running, path: str) -> None:
    with server.client() as client:
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["localhost:8080", "127.0.0.1", "[::1]:80", "192.168.1.7:1", "box.example", "BOX.example."],
)
def test_hosts_that_are_answered(client: httpx.Client, host: str) -> None:
    assert client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:80", "127.0.0.1.nip.io", ""]
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_hosts_that_are_not(client: httpx.Client, host: str, path: str) -> None:
    found = error(client.get(path, headers={"Host": host}), 403)
    assert found["code"] == "host_not_allowed"
    assert "--allow-host" in found["message"]


def test_origins(client: httpx.Client, server: Running) -> None:
    for origin in (server.url, ORIGIN):
        assert client.get("/v1/models", headers={"Origin": origin}).status_code == 200
    for origin in ("http://evil.example", "null"):
        response = client.get("/v1/models", headers={"Origin": origin})
        assert error(response, 403)["code"] == "origin_not_allowed"
        assert "access-control-allow-origin" not in response.headers


def test_a_preflight_of_an_allowed_origin_needs_no_key(server: Running) -> None:
    headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with server.client() as client:
        allowed = client.options("/v1/chat/completions", headers=headers)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        other = {**headers, "Origin": "http://evil.example"}
        refused = client.options("/v1/chat/completions", headers=other)
        assert "access-control-allow-origin" not in refused.headers


def test_a_large_body_is_refused(client: httpx.Client) -> None:
    body = b'{"messages": [{"role": "user", "content": "' + b"x" * 3000 + b'"}]}'
    json = {"Content-Type": "application/json"}
    declared = client.post("/v1/chat/completions", content=body, headers=json)
    assert error(declared, 413)["code"] == "body_too_large"
    pieces = (body[i : i + 500] for i in range(0, len(body), 500))
    chunked = client.post("/v1/chat/completions", content=pieces, headers=json)
    assert error(chunked, 413)["code"] == "body_too_large"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_read(client: httpx.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    response = client.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert error(response, 415)["code"] == "not_json"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 1900, b"9" * 1900, b'{"n":NaN']
)
def test_what_is_no_json_object_is_a_bad_request(client: httpx.Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    error(client.post("/v1/chat/completions", content=body, headers=headers), 400)


def test_paths_and_methods_that_are_not_there(client: httpx.Client) -> None:
    assert error(client.post("/v1/embeddings", json={}), 404)["type"] == "not_found_error"
    error(client.get("/nothing"), 404)
    error(client.get("/%2e%2e/app.py"), 404)
    assert client.get("/v1/chat/completions").headers["allow"] == "POST"
    error(client.get("/v1/chat/completions"), 405)
    error(client.put("/v1/models"), 405)
    error(client.get("/v1/models/other"), 404)


def raw(server: Running, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 10) as link:
        link.sendall(data)
        found = b""
        while piece := link.recv(65536):
            found += piece
    return found


def test_what_is_no_http(server: Running) -> None:
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 5000):
        found = raw(server, data)
        assert found.startswith(b"HTTP/1.1 400")
        assert b'"code": "invalid_http"' in found


def test_a_body_that_does_not_arrive(server: Running) -> None:
    found = raw(
        server,
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n{",
    )
    assert found.startswith(b"HTTP/1.1 408")


def test_the_documentation_works_offline(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert "://" not in page.text
    files = ["/docs/files/swagger-ui.css", "/docs/files/swagger-ui-bundle.js", "/docs/start.js"]
    for file in files:
        assert file in page.text
        assert client.get(file).status_code == 200
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {
        "HTTPBearer": {"type": "http", "scheme": "bearer"}
    }
    paths = document["paths"]
    assert set(paths) == {
        "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}", "/health",
        "/metrics",
    }  # fmt: skip


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


def test_one_connection_too_many(tiny: Callable[..., Path]) -> None:
    with (
        serving(
            lambda: load_pair(target=tiny(seed=1, bias=READABLE), n_ctx=256, spec="none"),
            limits=Limits(connections=2, idle_seconds=2),
        ) as running,
        running.client() as one,
        running.client() as two,
        running.client() as three,
    ):
        until(lambda: not running.server.server_state.connections)
        assert one.get("/health").status_code == two.get("/health").status_code == 200
        refused = error(three.get("/health"), 503)
        assert refused["code"] == "too_many_connections"
        assert one.get("/health").status_code == 200
        until(lambda: not running.server.server_state.connections)  # they were idle
        assert three.get("/health").status_code == 200


def test_a_client_that_stops_to_read_is_left(tiny: Callable[..., Path]) -> None:
    asset = b"GET /docs/files/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        serving(
            lambda: load_pair(target=tiny(seed=1, bias=READABLE), n_ctx=256, spec="none"),
            limits=Limits(idle_seconds=1),
        ) as running,
        socket.socket() as client,
    ):
        until(lambda: not running.server.server_state.connections)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
        client.sendall(asset * 8)  # 11 MB, more than the system takes in its stead
        until(lambda: len(running.server.server_state.connections) == 1)
        until(lambda: not running.server.server_state.connections)


def test_a_connection_without_a_whole_request_is_closed(tiny: Callable[..., Path]) -> None:
    with serving(
        lambda: load_pair(target=tiny(seed=1, bias=READABLE), n_ctx=256, spec="none"),
        limits=Limits(idle_seconds=1),
    ) as running:
        assert raw(running, b"") == b""
        assert raw(running, b"GET /health HTTP/1.1\r\nHost: local") == b""
