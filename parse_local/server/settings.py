"""How the server listens and what it allows: the single home of its defaults."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, and all of them together, may take.

    Args:
        body_bytes: size of a request's body.
        messages: turns of one conversation.
        prompt_tokens: tokens of a prompt; None for what the context holds.
        answer_tokens: tokens of an answer; a request that asks for more gets so many. None for
            what the context holds.
        seconds: of one request, waiting included; an answer that takes longer ends there.
        body_seconds: until a request's body has arrived.
        queued: requests that may wait while another one is answered.
        connections: open at the same time.
        header_bytes: of one request.
        idle_seconds: until a connection without a request is closed, or one whose client takes
            nothing of an answer.
    """

    body_bytes: int = 4 * MIB
    messages: int = 1000
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    seconds: float = 600.0
    body_seconds: float = 30.0
    queued: int = 16
    connections: int = 256
    header_bytes: int = 64 * 1024
    idle_seconds: int = 30


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the server listens.

    Args:
        host: address to listen at.
        port: 0 for a free one.
        api_key: what clients have to send as their bearer token; None for no key.
        allow_hosts: names that the `Host` header may have besides loopback and addresses;
            "*" for any.
        cors_origins: web origins whose pages may use the server; "*" for any.
        grace: seconds that a running answer gets when the server is stopped.
        limits: what requests may take.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    grace: float = 10.0
    limits: Limits = Limits()

    def __repr__(self) -> str:  # the key stays out of logs and tracebacks
        return f"Settings(host={self.host!r}, port={self.port})"
