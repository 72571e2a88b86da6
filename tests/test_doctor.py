"""`parse-local doctor` on a machine without models."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from parse_local import __version__
from parse_local.cli import main
from parse_local.llama import library


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    return tmp_path


def test_json(home: Path) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert report["versions"]["parse-local"] == __version__
    assert report["versions"]["python"] == platform.python_version()
    assert report["versions"]["llama-cpp-python"] == "0.3.36"
    expected = "patched" if library.seq_fork() is not None else "stock"
    assert report["library"]["llama.cpp"] == expected
    assert Path(report["library"]["path"]).exists()
    assert report["memory"]["total"] == psutil.virtual_memory().total
    assert report["directories"]["models"] == str(home / "models")
    assert "cpu" in [d["type"] for d in report["devices"]]
    # Nothing is here, and that keeps the default pair from running.
    assert (report["models"], report["placement"], report["tuned"]) == ([], [], [])
    assert len(report["problems"]) == 1
    assert "parse-local models pull qwen2.5-coder-1.5b" in report["problems"][0]
    assert result.exit_code == 1
    assert result.stderr == ""


@pytest.mark.usefixtures("home")
def test_for_people() -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "none yet" in result.stdout
    assert "✗" in result.stdout
    assert "parse-local models pull qwen2.5-coder-1.5b" in result.stdout.replace("\n", " ")
    kind = "patched" if library.seq_fork() is not None else "stock"
    assert kind in result.stdout
