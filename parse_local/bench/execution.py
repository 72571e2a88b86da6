"""Runs code that a model wrote, in a process of its own with little to break.

What protects, and what does not:

- everywhere: an empty environment, a temporary directory, no site-packages, a time limit that
  ends the process and what it started, and an audit hook that refuses Python's sockets and
  processes (it cannot be removed, but knows nothing of calls made past Python);
- on POSIX also limits on memory (not on macOS), processor time, file size and processes;
- on Linux also, where the kernel offers them: an empty network namespace, a seccomp filter
  without sockets, new processes and signals to others, and Landlock, under which only the
  temporary directory can be written to. None needs root, and none can be undone from inside.

Files can still be read, and memory is not limited on Windows and macOS. A hole in the kernel is
a hole here. Whoever must not trust the code at all runs the benchmark in a virtual machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TIMEOUT_S = 10
MEMORY_BYTES = 1 << 30
_SANDBOX = Path(__file__).with_name("sandbox.py")


def passes(program: str, *, timeout_s: int = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> bool:
    """Whether a Python program runs to its end without an error.

    One that leaves early, with `sys.exit` for example, does not pass, whatever its exit status.
    It runs in the sandbox that this module describes.

    Args:
        program: the source.
        timeout_s: seconds until it is ended.
        memory_bytes: address space that it may have.
    """
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SANDBOX), str(timeout_s), str(memory_bytes)],
            cwd=directory,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the benchmark, not for the program
        )
        try:
            out, _ = process.communicate(
                f"{secret}\n{program}".encode("utf-8", "surrogatepass"), timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
    return out == secret.encode()


def _end(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.communicate()
