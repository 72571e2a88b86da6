"""A file from a Hugging Face repository, resumable and without copying it into a cache.

huggingface_hub's own `hf_hub_download` starts over after an interruption, so this takes
its parts: it resolves the address, asks for the metadata (with HF_ENDPOINT, HF_TOKEN and the
proxy settings applied) and then reads the body in ranges.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from parse_local.catalog import HubSource, Model
from parse_local.hub.errors import SourceError, UnreachableError
from parse_local.hub.progress import Progress
from parse_local.hub.storage import format_size, size_of

CONNECT_TIMEOUT = 5.0
"""Seconds; many office networks drop the packets, and the next source is waiting."""
READ_TIMEOUT = 30.0
RETRY_DELAYS = (1.0, 2.0, 4.0)
"""Seconds to wait after a cut; counted anew whenever bytes have arrived."""


def fetch(source: HubSource, model: Model, partial: Path, progress: Progress) -> str | None:
    """Complete `partial` from the hub, going on from what it holds.

    Returns:
        The sha256 that the hub gives for the file, or None where it gives none.

    Raises:
        UnreachableError: the hub does not answer.
        SourceError: it answers, but not with this file.
        OSError: the disk failed.
    """
    from huggingface_hub import hf_hub_url  # 0.1 s, and only pulls need it

    url = hf_hub_url(
        source.repo,
        source.file,
        revision=source.revision,
        endpoint=os.environ.get("HF_ENDPOINT"),
    )
    sha256 = _check_metadata(url, source, model)
    done = size_of(partial)
    progress.begin(model.name, done, model.size)
    try:
        _read_body(url, source, model, partial, progress)
    finally:
        progress.end()
    return sha256


def _check_metadata(url: str, source: HubSource, model: Model) -> str | None:
    """Refuse a file that cannot be the right one before a byte of it is fetched."""
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.errors import HfHubHTTPError

    for last in (False, True):
        try:
            metadata = get_hf_file_metadata(url, timeout=CONNECT_TIMEOUT)
            break
        except HfHubHTTPError as error:
            if last or not _is_transient(error):
                raise _refusal(error, source) from error
        except (_client_error(), OSError) as error:  # OSError: huggingface_hub is itself offline
            if last:
                raise UnreachableError(
                    f"{_host(url)} cannot be reached ({_reason(error)})"
                ) from error
    if metadata.size is not None and metadata.size != model.size:
        raise SourceError(
            f"{source.repo} holds another {source.file} "
            f"({format_size(metadata.size)} instead of {format_size(model.size)})"
        )
    sha256 = metadata.etag if re.fullmatch("[0-9a-f]{64}", metadata.etag or "") else None
    if sha256 and model.sha256 and sha256 != model.sha256:
        raise SourceError(f"{source.repo} holds another {source.file} (its sha256 differs)")
    return sha256


def _read_body(
    url: str, source: HubSource, model: Model, partial: Path, progress: Progress
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    delays = iter(RETRY_DELAYS)
    while (done := size_of(partial)) != model.size:
        if done > model.size:
            partial.unlink()
            done = 0
        try:
            _read_once(url, model, partial, done, progress)
            reason = "the connection was cut"
        except HfHubHTTPError as error:
            if not _is_transient(error):
                raise _refusal(error, source) from error
            reason = _reason(error)
        except _client_error() as error:
            reason = _reason(error)
        arrived = size_of(partial)
        if arrived == model.size:
            return
        if arrived > done:
            delays = iter(RETRY_DELAYS)
        delay = next(delays, None)
        if delay is None:
            raise SourceError(
                f"{_host(url)} stopped after {format_size(arrived)} of "
                f"{format_size(model.size)} ({reason})"
            )
        progress.note(f"{_host(url)}: {reason}; going on from {format_size(arrived)}.")
        time.sleep(delay)


def _read_once(url: str, model: Model, partial: Path, done: int, progress: Progress) -> None:
    """One GET from byte `done` on; ends early, by exception or not, when the connection does."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    headers = build_hf_headers(headers={"Accept-Encoding": "identity"})
    if done:
        headers["Range"] = f"bytes={done}-"
    session: Any = get_session()  # httpx.Client, and httpx2.Client in later versions
    # The address is resolved anew each time: signed CDN links expire.
    with (
        session.stream(
            "GET", url, headers=headers, timeout=READ_TIMEOUT, follow_redirects=True
        ) as response,
        partial.open("ab") as file,
    ):
        if response.status_code == 416:  # nothing after `done`: not a prefix of this file
            file.truncate(0)
            return
        hf_raise_for_status(response)
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        if done and not resumed:  # the server ignored the range and sends the whole file
            file.truncate(0)
            done = 0
        for chunk in response.iter_bytes():  # no chunk size: a cut would lose what it buffers
            file.write(chunk)
            done += len(chunk)
            progress.update(done)
            if done > model.size:
                raise SourceError(f"{_host(url)} sends more than {format_size(model.size)}")


def _client_error() -> type[Exception]:
    """Base of all errors of huggingface_hub's HTTP client: httpx's, later httpx2's HTTPError."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _is_transient(error: Any) -> bool:
    status: int = error.response.status_code
    return status >= 500 or status in (408, 429)


def _refusal(error: Any, source: HubSource) -> SourceError:
    """What an HTTP status of the hub means to the user."""
    status = error.response.status_code
    host = _host(str(error.response.url))
    if status in (401, 403):  # also what the hub says of a repository that is not there
        return SourceError(
            f"{host} does not give you {source.repo} (HTTP {status}): accept its licence on the "
            "repository's page, and set HF_TOKEN to a token of your account"
        )
    if status == 404:
        return SourceError(f"{host} has no {source.file} in {source.repo} at {source.revision}")
    return UnreachableError(f"{host} answers with HTTP {status}")


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _reason(error: Exception) -> str:
    """The error in a few words, without the addresses of objects and stack of causes."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"^\[Errno -?\d+\] ", "", text).rstrip(".")
