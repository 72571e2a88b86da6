"""A local stand-in for a model hub and its CDN, tiny data-only wheels, and an empty home."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c0ffee0000000000000000000000000000000001"


def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every cache at an empty directory and the network at nothing; returns the home."""
    home = tmp_path / "home"
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in (
        *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        *("PARSE_LOCAL_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # "discard": nothing listens there
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return home


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class HubServer:
    """Files by (repository, file), and the faults that the next answers have.

    Attributes:
        files: what GET returns; its digest is what HEAD announces.
        status: answer this to every resolve request instead.
        error_code: X-Error-Code header that goes with `status`.
        cuts: a CDN answer breaks off after so many bytes, one entry an answer.
        corrupt: the CDN flips the last byte.
        ignore_range: the CDN answers 200 with the whole file.
        delay: set before the CDN's answer goes on after half of the bytes.
        requests: everything that was asked, in order.
    """

    endpoint: str = ""
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    announced: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    error_code: str = ""
    cuts: deque[int] = field(default_factory=deque)
    corrupt: bool = False
    ignore_range: bool = False
    pause: threading.Event | None = None
    requests: list[Request] = field(default_factory=list)

    def seen(self, prefix: str, method: str = "GET") -> list[Request]:
        """Requests of one method whose path starts so."""
        return [r for r in self.requests if r.method == method and r.path.startswith(prefix)]


@contextmanager
def serve() -> Iterator[HubServer]:
    """Run a hub on 127.0.0.1, with its CDN under the other name of the same host."""
    hub = HubServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.requests.append(
                Request(
                    self.command,
                    self.path,
                    self.headers.get("Range"),
                    self.headers.get("Authorization"),
                )
            )
            if self.path.startswith("/cdn/"):
                self.send_body(self.path.removeprefix("/cdn/"))
            else:
                self.resolve()

        def resolve(self) -> None:
            repo, _, rest = self.path[1:].partition("/resolve/")
            revision, _, file = rest.partition("/")
            data = hub.files.get((repo, file))
            if hub.status is not None or data is None or revision != COMMIT:
                self.send_response(hub.status or 404)
                self.send_header("X-Error-Code", hub.error_code or "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            digest = hashlib.sha256(data).hexdigest()
            self.send_response(302)
            port = self.server.server_address[1]
            self.send_header("Location", f"http://localhost:{port}/cdn/{digest}")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Etag", f'"{hub.announced.get(file, digest)}"')
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("ETag", '"of-the-pointer-file"')
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_body(self, digest: str) -> None:
            data = next(d for d in hub.files.values() if hashlib.sha256(d).hexdigest() == digest)
            if hub.corrupt:
                data = data[:-1] + bytes([data[-1] ^ 1])
            start = 0
            asked = self.headers.get("Range")
            if asked and not hub.ignore_range:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(data):
                    self.send_response(416)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            else:
                self.send_response(200)
            body = data[start:]
            self.send_header("ETag", f'"{digest}"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cuts:
                self.wfile.write(body[: hub.cuts.popleft()])
                self.close_connection = True
                return
            half = len(body) // 2
            self.wfile.write(body[:half])
            if hub.pause:
                self.wfile.flush()
                hub.pause.wait(30)
            self.wfile.write(body[half:])

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass  # a client that hangs up is part of the tests

    server = Server(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        if hub.pause:
            hub.pause.set()
        server.shutdown()
        server.server_close()


def write_wheel(directory: Path, name: str, version: str, members: dict[str, bytes]) -> Path:
    """Build a data-only wheel that pip accepts."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = dict(members)
    files[f"{stem}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    files[f"{stem}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(
        f"{path},sha256={_b64(hashlib.sha256(data).digest())},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{stem}.dist-info/RECORD"] = f"{record}{stem}.dist-info/RECORD,,\n".encode()
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def _b64(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def catalog_text(
    data: bytes,
    *,
    name: str = "tiny",
    sources: str = "hub",
    size: int | None = None,
    sha256: str | None = None,
) -> str:
    """A catalogue entry for `data`.

    Args:
        sources: "hub", "wheels" (three, see `write_parts`) or "hub,wheels".
        size, sha256: None for the truth; "" leaves the digest out.
    """
    digest = hashlib.sha256(data).hexdigest() if sha256 is None else sha256
    lines = [
        f"[models.{name}]",
        f'file = "{name}.gguf"',
        f"size = {len(data) if size is None else size}",
        f'sha256 = "{digest}"' if digest else "",
        'licence = "Apache-2.0"',
        'parameters = "1K"',
        'quantisation = "F32"',
        f'description = "The {name} model"',
    ]
    for kind in sources.split(","):
        lines += [f"[[models.{name}.sources]]", f'kind = "{kind}"']
        if kind == "hub":
            lines += [f'repo = "org/{name}"', f'file = "{name}.gguf"', f'revision = "{COMMIT}"']
        else:
            wheels = ", ".join(
                f'{{ distribution = "{name}-part{i}", version = "1.0", '
                f'members = ["{name}_part{i}/data/a.bin", "{name}_part{i}/data/b.bin"] }}'
                for i in (1, 2, 3)
            )
            lines.append(f"wheels = [{wheels}]")
    return "\n".join(lines) + "\n"


def write_parts(directory: Path, name: str, data: bytes) -> list[Path]:
    """The three wheels of two members each that `catalog_text` names."""
    step = -(-len(data) // 6)
    pieces = [data[i * step : (i + 1) * step] for i in range(6)]
    return [
        write_wheel(
            directory,
            f"{name}-part{i + 1}",
            "1.0",
            {
                f"{name}_part{i + 1}/__init__.py": b"raise SystemExit('never import me')",
                f"{name}_part{i + 1}/data/a.bin": pieces[2 * i],
                f"{name}_part{i + 1}/data/b.bin": pieces[2 * i + 1],
            },
        )
        for i in range(3)
    ]
