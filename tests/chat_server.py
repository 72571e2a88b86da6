"""A server that speaks the OpenAI protocol, in this process or as a program of its own.

As a program it takes llama-server's arguments, as `--peer llama-server=PATH` gives them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer(ThreadingHTTPServer):
    """Answers every question with the same pieces.

    Args:
        port: 0 for a free one.
        pieces: content of the chunks, in order.
        pause_s: before each of them.
        status: 200, or an error for every question.
        tail: what the last chunk holds besides.
    """

    daemon_threads = True

    def __init__(
        self,
        port: int = 0,
        *,
        pieces: tuple[str, ...] = ("2", " is", " it"),
        pause_s: float = 0.0,
        status: int = 200,
        tail: dict[str, Any] | None = None,
    ) -> None:
        self.pieces, self.pause_s, self.status = pieces, pause_s, status
        self.tail = (
            {"usage": {"prompt_tokens": 7, "completion_tokens": 3}} if tail is None else tail
        )
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        """Path, headers and body of each question."""
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client may hang up
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, dict(self.headers), body))
        self.send_response(server.status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if server.status != 200:
            self.wfile.write(json.dumps({"error": {"message": "No such\nmodel."}}).encode())
            return
        for piece in (None, *server.pieces):
            if piece is not None:
                time.sleep(server.pause_s)
            self._send({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        self._send({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._send({"choices": [], **server.tail})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**arguments: Any) -> Iterator[ChatServer]:
    """A server in a thread of this process."""
    with ChatServer(**arguments) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    print("arguments:", json.dumps(sys.argv[1:]), flush=True)
    if "--fail" in sys.argv:
        sys.exit("error: cannot load the model")
    drafting = "--spec-type" in sys.argv
    timings = {"predicted_n": 3, "prompt_ms": 1.0, "predicted_ms": 2.0}
    ChatServer(
        int(sys.argv[sys.argv.index("--port") + 1]),
        tail={
            "timings": {**timings, **({"draft_n": 4, "draft_n_accepted": 1} if drafting else {})}
        },
    ).serve_forever()
