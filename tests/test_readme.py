"""The README's commands, run as they are written.

`scripts/demo`, `scripts/test` and `pip install .` are run by .ci/run itself, the
interactive chat by tests/test_terminal_chat.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
ELSEWHERE = re.compile(r"^(scripts/(demo|test)|pip install \.|parse-local chat)\s*$", re.MULTILINE)
SHELL = [b for b in (ELSEWHERE.sub("", text).strip() for kind, text in BLOCKS if kind == "sh") if b]
PYTHON = [text for kind, text in BLOCKS if kind == "python"]


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


def test_the_readme_shows_all_that_is_run_elsewhere() -> None:
    for command in ("scripts/demo", "scripts/test", "pip install .", "parse-local chat"):
        assert re.search(rf"^{re.escape(command)}$", README, re.MULTILINE)
