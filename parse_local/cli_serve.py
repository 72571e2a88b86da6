"""`parse-local serve`: the OpenAI-compatible server."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any

import click

from parse_local.cli_loading import load, options_from
from parse_local.cli_options import answer_options, pair_options
from parse_local.errors import ServerError, UsageError
from parse_local.load_options import MAX_CACHED
from parse_local.text_input import read_file

API_KEY = "PARSE_LOCAL_API_KEY"
"""Environment variable that holds the key where none is given."""


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen at, 0 for a free one.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    help=f"Key that clients must send; needed beyond this machine.  [default: ${API_KEY}]",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Read the key from a file, which other users cannot see in a list of processes.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Also answer to this name in the Host header; * for any.  May be given again.",
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin use the server; * for any.  May be given again.",
)
@click.option(
    "--queue",
    "n_queued",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    help="Requests that may wait while another is answered.",
)
@click.option(
    "--cached",
    "n_cached",
    type=click.IntRange(0, MAX_CACHED),
    default=4,
    show_default=True,
    help="Conversations that stay cached beside the last one, where memory allows.",
)
@click.option(
    "--limit-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of an answer, whatever is asked for.  [default: the context]",
)
@click.option(
    "--limit-prompt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of a prompt.  [default: the context]",
)
@click.option(
    "--limit-messages",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Most messages of a conversation.",
)
@click.option(
    "--limit-body",
    type=click.FloatRange(0.001, 1024),
    default=4.0,
    show_default=True,
    metavar="MIB",
    help="Most MiB of a request.",
)
@click.option(
    "--limit-seconds",
    type=click.FloatRange(min=0.1),
    default=600.0,
    show_default=True,
    help="Most seconds of a request, waiting included; its answer ends there.",
)
@click.option(
    "--limit-connections",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Most open connections.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a running answer may go on when the server is stopped.",
)
@pair_options
@answer_options
def serve(**values: Any) -> None:
    """Serve the OpenAI API, and a page to chat with, on this machine.

    Options of the answer are defaults for requests that leave them open. Stop with Ctrl-C.

    \b
    Examples:
      parse-local serve
      parse-local serve --pair qwen3-8b --port 11434
      parse-local serve --host 0.0.0.0 --api-key-file key.txt --allow-host my-machine
    """
    try:
        from parse_local.server.run import serve as run
        from parse_local.server.settings import MIB, Limits, Settings
    except ImportError as error:
        raise ServerError(
            f"The server's packages are not installed ({error.name} is missing); "
            "run: pip install 'parse-local[server]'"
        ) from None
    limits = Limits(
        body_bytes=int(values["limit_body"] * MIB),
        messages=values["limit_messages"],
        prompt_tokens=values["limit_prompt"],
        answer_tokens=values["limit_tokens"],
        seconds=values["limit_seconds"],
        queued=values["n_queued"],
        connections=values["limit_connections"],
    )
    settings = Settings(
        host=values["host"],
        port=values["port"],
        api_key=_api_key(values),
        allow_hosts=values["allow_hosts"],
        cors_origins=values["cors_origins"],
        grace=values["grace"],
        limits=limits,
    )
    options = options_from(values)
    values.pop("strategy")  # requests can choose another: load both models
    run(lambda: load(values), options, settings)


def _api_key(values: dict[str, Any]) -> str | None:
    key: str | None = values["api_key"]
    if values["api_key_file"] is not None:
        if key is not None:
            raise UsageError("Give --api-key or --api-key-file, not both.")
        key = read_file(values["api_key_file"]).strip()
    elif key is None:
        key = os.environ.get(API_KEY)
    if key is not None and not key.strip():
        raise UsageError("The API key is empty; give one, or leave the option out.")
    if key is None and not _is_loopback(values["host"]):
        raise UsageError(
            f"Listening at {values['host']} lets other machines in; give a key that they have to "
            f"send, with --api-key, --api-key-file or ${API_KEY}."
        )
    return key and key.strip()  # no header can carry white space around it


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
