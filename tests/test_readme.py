"""The README's commands, and the examples of docs/server.md, run as they are written.

`scripts/demo`, `scripts/test` and `pip install .` are run by .ci/run itself, the
interactive chat by tests/test_terminal_chat.py. `parse-local serve` runs beside what asks it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
README, SERVER = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/server.md")
)
ELSEWHERE = re.compile(
    r"^(scripts/(demo|test)|pip install \.|parse-local chat|parse-local serve)\s*$", re.MULTILINE
)
ADDRESS = "http://127.0.0.1:8080"


def blocks(text: str, kind: str) -> list[str]:
    """What is fenced as this kind, without what is run elsewhere."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [b for b in (ELSEWHERE.sub("", block).strip() for block in found) if b]


SHELL = [block for block in blocks(README, "sh") if ADDRESS not in block]
PYTHON = blocks(README, "python")
ASKING = [b for text in (README, SERVER) for b in blocks(text, "sh") if ADDRESS in b]
CLIENTS = [b for b in blocks(SERVER, "python") if ADDRESS in b]


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("block", SHELL, ids=[b.splitlines()[0] for b in SHELL])
def test_shell_block(block: str, tmp_path: Path) -> None:
    subprocess.run(
        "git init -q . && echo one > a.txt && git add a.txt && echo two >> a.txt",
        shell=True,
        check=True,
        cwd=tmp_path,
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).strip()
    assert "Error" not in done.stderr


@pytest.mark.parametrize("block", PYTHON)
def test_python_block(block: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+\.\d tok/s, \d+% from the draft\s*$", done.stdout)


@pytest.fixture(scope="module")
def serving() -> Iterator[None]:
    """`parse-local serve`, as it is written."""
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(["parse-local", "serve"], env=environment(), stderr=log)
        try:
            end = time.monotonic() + 300
            while True:
                assert server.poll() is None, (log.seek(0), log.read())[1]
                assert time.monotonic() < end
                with suppress(OSError), urllib.request.urlopen(f"{ADDRESS}/health"):
                    break
                time.sleep(0.5)
            yield
        finally:
            server.terminate()
            assert server.wait(60) == 0


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("block", ASKING)
def test_asking_the_server(block: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    assert re.search(r'"choices":|"object":"list"|"status":"ok"', done.stdout)


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize("block", CLIENTS)
def test_a_client_of_the_server(block: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'strategy': 'auto'" in done.stdout


def test_the_readme_shows_all_that_is_run_elsewhere() -> None:
    for command in (
        "scripts/demo",
        "scripts/test",
        "pip install .",
        "parse-local chat",
        "parse-local serve",
    ):
        assert re.search(rf"^{re.escape(command)}$", README, re.MULTILINE)
