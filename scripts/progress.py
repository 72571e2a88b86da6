"""Runs a command quietly: its output goes to a log, and a bar follows ninja's [n/m] lines.

    progress.py LOG COMMAND [ARGUMENT ...]

On a terminal the bar stays on one line; elsewhere every tenth is a line of its
own. Where the command fails, the end of its output is shown, and last of all
the sentence that CMake or pip gave as the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TextIO

_STEP = re.compile(r"\s*\[(\d+)/(\d+)\]\s")
_PHASE = re.compile(r"\s*(Collecting|Downloading|Fetching|Installing build|Using the native build)")
_WIDTH = 24


class Bar:
    """Progress of the compilation, drawn or listed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty() and os.environ.get("TERM") != "dumb"
        self._started: float | None = None
        self._tenth = 0

    def phase(self, text: str) -> None:
        """Say what is going on before or after the compilation."""
        if self._live and self._started is None:
            self._draw(text)

    def step(self, done: int, total: int) -> None:
        """`done` of `total` build steps are finished."""
        if self._started is None:
            self._started = time.monotonic()
            if not self._live:
                self._line(f"Building llama.cpp: {total} steps, some minutes, once")
        spent = time.monotonic() - self._started
        clock = f"{int(spent) // 60}:{int(spent) % 60:02d}"
        percent = 100 * done // total
        if self._live:
            filled = _WIDTH * done // total
            bar = "#" * filled + "-" * (_WIDTH - filled)
            self._draw(f"Building llama.cpp [{bar}] {percent:3d}%  {clock}")
        elif percent // 10 > self._tenth:
            self._tenth = percent // 10
            self._line(f"Building llama.cpp: {self._tenth * 10}% after {clock}")

    def clear(self) -> None:
        """Leave nothing of the live line behind."""
        if self._live:
            self._draw("")

    def _draw(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns
        self._out.write(f"\r{text[: columns - 1]}\x1b[K")
        self._out.flush()

    def _line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def reason(lines: list[str]) -> str | None:
    """The sentence behind a failure: CMake's first error, or pip's last one."""
    for i, line in enumerate(lines):
        if "CMake Error at " in line:
            text: list[str] = []
            for following in lines[i + 1 :]:
                if following.strip().startswith(("--", "***", "CMake ", "Call Stack")):
                    break
                text.append(following.strip())
            return re.sub(r"\s+", " ", " ".join(text)).strip() or None
    errors = [line.strip() for line in lines if line.lstrip().lower().startswith("error: ")]
    for error in errors:
        if "No matching distribution" in error:
            remedy = "check the network connection and pip's index settings (pip config list)"
            return f"{error}; {remedy}"
    # What a failed subprocess is followed by says nothing of its own.
    errors = [error for error in errors if "subprocess-exited-with-error" not in error]
    return errors[-1] if errors else None


def main(log: Path, command: list[str]) -> int:
    """Run the command; returns its exit status."""
    bar = Bar(sys.stdout)
    recent: deque[str] = deque(maxlen=400)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "NINJA_STATUS": "[%f/%t] "}
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                recent.append(line.rstrip())
                if step := _STEP.match(line):
                    bar.step(int(step[1]), int(step[2]))
                elif _PHASE.match(line):
                    bar.phase(line.strip())
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()
            status = 130
    bar.clear()
    if status not in (0, 130):
        lines = list(recent)
        print("\n".join(lines[-30:]), file=sys.stderr)
        print(f"\nThe whole output is in {log}", file=sys.stderr)
        why = reason(lines) or f"{command[0]} failed; the end of its output is above."
        print(f"\n{why}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
