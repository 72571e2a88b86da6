"""The directory of a run: its settings, its answers as they come, and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parse_local.bench.record import Record
from parse_local.bench.summary import Row
from parse_local.errors import UsageError
from parse_local.json_lines import drop_torn_line, whole_lines

_LOCK = ".lock"


class RunDirectory:
    """A directory that a run is written to, and taken up again from.

    Args:
        path: made where it does not exist.
        settings: what has to be the same for the answers to belong together; plain JSON.

    Raises:
        UsageError: the directory holds a run with other settings, or something else.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        from filelock import FileLock, Timeout

        self.path = path
        self.records: list[Record] = []
        """Answers that are there, in the order of the file."""
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / _LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UsageError(
                f"Another run is writing to {path}; wait for it, or give --out another directory."
            ) from None
        except NotImplementedError:
            pass  # a network file system without locks
        self._answers = path / "answers.jsonl"
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: Mapping[str, Any]) -> None:
        run = self.path / "run.json"
        if run.exists():
            self._require_same(run, settings)
            self.records = self._read()
        elif any(found.name != _LOCK for found in self.path.iterdir()):
            raise UsageError(
                f"{self.path} is not empty and holds no run; give --out another directory."
            )
        else:
            self.update(settings=settings)

    def _require_same(self, run: Path, settings: Mapping[str, Any]) -> None:
        try:
            found = json.loads(run.read_text(encoding="utf-8"))["settings"]
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"{run} cannot be read; give --out another directory, or remove this one."
            ) from None
        here = json.loads(json.dumps(settings))
        for name in [*here, *found]:
            if here.get(name) != found.get(name):
                raise UsageError(
                    f"{self.path} holds a run with other settings ({name}: {found.get(name)!r} "
                    f"there, {here.get(name)!r} now); give the same, or --out another directory."
                )

    def _read(self) -> list[Record]:
        drop_torn_line(self._answers)  # interrupted while it was written: it is made again
        try:
            return [Record.from_json(json.loads(line)) for line in whole_lines(self._answers)]
        except (ValueError, TypeError, KeyError):
            raise UsageError(
                f"{self._answers} holds a line that is no answer; remove that line, or give "
                "--out another directory."
            ) from None

    def add(self, record: Record) -> None:
        """Append an answer; it is on the disk when this returns."""
        line = json.dumps(record.to_json(), ensure_ascii=False)
        with self._answers.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.records.append(record)

    def write(self, name: str, text: str) -> None:
        """Write a file beside the answers, all of it or nothing."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        part = target.with_name(target.name + ".part")
        part.write_text(text, encoding="utf-8")
        part.replace(target)

    def close(self) -> None:
        """Let other runs in."""
        self._lock.release()

    def write_summary(self, rows: Sequence[Row]) -> None:
        """summary.json: one object a strategy."""
        found = {row.strategy: row.to_json() for row in rows}
        self.write("summary.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")

    def read(self, name: str) -> Any:
        """What run.json says under a name; None where it says nothing."""
        run = self.path / "run.json"
        return json.loads(run.read_text(encoding="utf-8")).get(name) if run.exists() else None

    def update(self, **facts: Any) -> None:
        """Keep further facts in run.json."""
        run = self.path / "run.json"
        kept = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
        self.write("run.json", json.dumps({**kept, **facts}, indent=2) + "\n")
