"""Where results of `tune` lie, and which of them fit a file on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from parse_local.costs import CostCurve
from parse_local.errors import UsageError
from parse_local.fingerprint import fingerprint
from parse_local.hub.storage import size_of, storage_errors
from parse_local.llama import library
from parse_local.llama._bindings import LLAMA_CPP_PYTHON_VERSION
from parse_local.llama.context_params import default_threads
from parse_local.load_options import FlashAttention, KVType
from parse_local.paths import tune_dir
from parse_local.tune.check import Quality, Role
from parse_local.tune.measure import Speeds

_VERSION = 1  # of the file's layout; results of another are measured again

PATCHES = "d7feba5f"
"""Digest of ggml_patches, which change what decodes cost; a test keeps it true."""


class BrokenResultError(UsageError):
    """A file of results that cannot be read."""


@dataclass(frozen=True)
class Setting:
    """One way to run a model, and how much faster than llama.cpp's defaults that was."""

    n_threads: int
    flash_attn: FlashAttention
    kv_type: KVType
    speed: float


@dataclass(frozen=True)
class Candidate:
    """One requantisation that was tried.

    Args:
        recipe: its name.
        n_bytes: of the file.
        speed: times as fast as the original, None where it was not timed.
        quality: beside the original, None where it was not compared.
        verdict: "used", or why not.
    """

    recipe: str
    n_bytes: int
    speed: float | None
    quality: Quality | None
    verdict: str


@dataclass(frozen=True)
class Requantised:
    """The file that takes the original's place."""

    recipe: str
    file: str
    n_bytes: int

    @property
    def path(self) -> Path:
        """Where it lies."""
        return tune_dir() / self.file


@dataclass(frozen=True)
class Record:
    """What was found for one file in one role on one machine.

    Args:
        role: what the file was measured as.
        file: its name when it was measured.
        fingerprint: of its contents.
        machine: see `machine`.
        n_gpu_layers: layers that were on the GPU.
        n_threads, flash_attn: the fastest; the KV cache was f16.
        bare: a decode with one output row.
        rows: a decode with an output row for every token; None for drafts.
        speeds: against the original file with default settings.
        settings, candidates: what was tried.
        requantised: the file that takes its place, None to keep it.
    """

    role: Role
    file: str
    fingerprint: str
    machine: str
    n_gpu_layers: int
    n_threads: int
    flash_attn: FlashAttention
    bare: CostCurve
    rows: CostCurve | None
    speeds: Speeds
    settings: tuple[Setting, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    requantised: Requantised | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "version": _VERSION,
            **dataclasses.asdict(self),
            "bare": self.bare.to_json(),
            "rows": self.rows.to_json() if self.rows else None,
        }

    @classmethod
    def from_json(cls, value: Any) -> Record:
        """Undo `to_json`.

        Raises:
            ValueError, TypeError, KeyError: this is not a record.
        """
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        fields["bare"] = CostCurve.from_json(value["bare"])
        fields["rows"] = CostCurve.from_json(value["rows"]) if value["rows"] else None
        fields["speeds"] = Speeds(**value["speeds"])
        fields["settings"] = tuple(Setting(**s) for s in value["settings"])
        fields["candidates"] = tuple(
            Candidate(**{**c, "quality": Quality(**c["quality"]) if c["quality"] else None})
            for c in value["candidates"]
        )
        if value["requantised"]:
            fields["requantised"] = Requantised(**value["requantised"])
        return cls(**fields)


@cache
def machine() -> str:
    """This machine and llama.cpp's build, in words; timings hold for no other."""
    info = library.info()
    devices = "; ".join(f"{d.name} {d.description.strip()} ({d.type})" for d in info.devices)
    kind = f"patched ({PATCHES})" if info.patched else "stock"
    return (
        f"{devices}; {default_threads()} of {os.cpu_count()} cores; "
        f"llama.cpp of llama-cpp-python {LLAMA_CPP_PYTHON_VERSION}, {kind}; {info.system_info}"
    )


def _path(role: Role, of: str) -> Path:
    key = hashlib.sha256(f"{of} {machine()}".encode()).hexdigest()[:16]
    return tune_dir() / f"{role}-{key}.json"


def save(record: Record) -> None:
    """Keep a record, in place of an older one of the same file, role and machine.

    Raises:
        StorageError: it cannot be written; an older one is still there then.
    """
    path = _path(record.role, record.fingerprint)
    part = part_of(path)
    with storage_errors():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(record.to_json(), indent=1), encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        kept = record.requantised.file if record.requantised else ""
        for old in tune_dir().glob(_requantised("*", record.role, record.fingerprint)):
            if old.name != kept:  # of an earlier result
                old.unlink(missing_ok=True)


def find(role: Role, path: Path) -> Record | None:
    """What is known about a file in a role on this machine.

    Returns:
        None where nothing is, or what is known no longer holds: another version's
        result, or a requantised file that is gone.

    Raises:
        BrokenResultError: the result cannot be read.
    """
    try:
        where = _path(role, fingerprint(path))
    except OSError:  # loading the model says more
        return None
    if not where.exists():
        return None
    try:
        value = json.loads(where.read_text(encoding="utf-8"))
        if value["version"] != _VERSION:
            return None
        record = Record.from_json(value)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenResultError(
            f"The result of `parse-local tune` in {where} cannot be read, so it is not used; "
            "`parse-local tune --reset` removes it."
        ) from error
    kept = record.requantised
    return record if kept is None or size_of(kept.path) == kept.n_bytes else None


def is_outdated(role: Role, path: Path) -> bool:
    """Whether there are results of this file, but only of another machine or build."""
    try:
        of = fingerprint(path)
    except OSError:
        return False
    return not _path(role, of).exists() and any(True for _ in _results(role, of))


def _results(role: Role, of: str) -> Iterator[Path]:
    # Of all machines and builds.
    for path in tune_dir().glob(f"{role}-*.json"):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if found == of:
            yield path


def reset(files: Iterable[tuple[Role, Path]] | None = None) -> int:
    """Remove results and requantised files.

    Args:
        files: those of these files alone; None for everything.

    Returns:
        Bytes freed.

    Raises:
        StorageError: something cannot be removed.
    """
    if files is None:
        wanted = [
            path for kind in ("json", "gguf", "part") for path in tune_dir().glob(f"*.{kind}")
        ]
    else:
        wanted = []
        for role, path in files:
            of = fingerprint(path)
            wanted += {_path(role, of), *_results(role, of)}  # the first may be unreadable
            wanted += tune_dir().glob(_requantised("*", role, of))
    freed = 0
    with storage_errors():
        for path in wanted:
            freed += size_of(path)
            path.unlink(missing_ok=True)
    return freed


def part_of(path: Path) -> Path:
    """Where a file of this process lies until it is complete."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def remove_leftovers() -> None:
    """Remove unfinished files of runs that were killed."""
    for path in tune_dir().glob("*.part"):
        pid = path.name.split(".")[-2]
        if not (pid.isdigit() and psutil.pid_exists(int(pid))):
            path.unlink(missing_ok=True)


def requantised_path(role: Role, original: Path, of: str, recipe: str) -> Path:
    """Where a requantised file lies."""
    return tune_dir() / _requantised(f"{original.stem}.{recipe}", role, of)


def _requantised(begin: str, role: Role, of: str) -> str:
    return f"{begin}.{role}-{of}.gguf"
