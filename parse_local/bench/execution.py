"""Runs code that a model wrote, in a process of its own with little to break."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

TIMEOUT_S = 10
MEMORY_BYTES = 1 << 30


def _limit() -> None:
    # In the child, before the code runs. The address space limit keeps a runaway
    # list from taking the machine along.
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT_S, TIMEOUT_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def passes(program: str) -> bool:
    """Whether a Python program runs to its end without an error.

    It gets an empty environment, a temporary directory, limits on time, memory,
    files and processes, and no site-packages. That stops accidents, not attacks:
    run it only where you would run the model's code yourself.
    """
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", program],
                cwd=directory,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                preexec_fn=_limit if os.name == "posix" else None,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0
