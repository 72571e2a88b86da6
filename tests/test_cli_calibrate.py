"""`parse-local calibrate` on a tiny pair: collects, fits, writes, and says what it cannot prove."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from simulated_answers import records, write

from parse_local.cli import main
from parse_local.profile import load_profile


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def pair(tiny: Callable[..., Path]) -> tuple[Path, Path]:
    readable = {"<|im_end|>": 3.0}
    return tiny(seed=2, weights_from=1, bias=readable), tiny(seed=1, bias=readable)


@pytest.fixture
def calibrate(pair: tuple[Path, Path], home: Path) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        files = ["--draft", str(pair[0]), "--target", str(pair[1])]
        return CliRunner().invoke(
            main, ["calibrate", *files, "--threads", "1", "--ctx", "512", *arguments]
        )

    return run


def simulated(tmp_path: Path, pair: tuple[Path, Path], n: int, **how: Any) -> str:
    names = f"{pair[0].name} + {pair[1].name}"
    return str(write(tmp_path / f"{n}.jsonl", records(n, pair=names, **how)))


def test_from_answers_to_a_mode(
    calibrate: Callable[..., Result], pair: tuple[Path, Path], home: Path, tmp_path: Path
) -> None:
    data = simulated(tmp_path, pair, 600)
    done = calibrate("--data", data, "--max-drop", "2")
    assert done.exit_code == 0, done.stderr
    profile_file = home / "profiles" / f"{pair[1].stem}+{pair[0].stem}.toml"
    assert done.stdout.splitlines()[-2:] == [
        f"Profile: {profile_file}",
        f"Picture: {profile_file.with_suffix('.png')}",
    ]
    assert profile_file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    profile = load_profile(profile_file)
    assert profile.calibrated
    assert [d.file for d in profile.drafts] == [pair[0].name]
    assert "of accuracy against the target alone, with 95% confidence." in done.stdout
    text = profile_file.read_text()
    assert 'tasks = ["sim"]' in text
    assert 'data = ["600.jsonl"]' in text
    assert "max_drop = 2.0" in text

    # It is found, and used: the whole answer is drafted at once, as `fused` does.
    files = ["--draft", str(pair[0]), "--target", str(pair[1]), "--threads", "1", "--ctx", "300"]
    how = ["--strategy", "parse", "--max-tokens", "100", "--json"]
    ran = CliRunner().invoke(main, ["run", *files, *how, "hello"])
    assert ran.exit_code == 0, ran.stderr
    assert "calibrated with another" not in ran.stderr
    found = json.loads(ran.stdout)
    (only,) = found["rounds"]
    assert only["n_draft"] > 16  # `exact` would have drafted 16 tokens


def test_where_nothing_is_proven_nothing_is_accepted(
    calibrate: Callable[..., Result], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "own.toml"
    done = calibrate("--data", simulated(tmp_path, pair, 120), "--out", str(out))
    assert done.exit_code == 0, done.stderr
    assert "so the pair stays lossless" in done.stdout
    assert "it takes 332 to prove that, 604 in all (--n 604)" in done.stdout
    assert not load_profile(out).calibrated
    assert out.with_suffix(".png").exists()


def test_collecting_ones_own_problems(
    calibrate: Callable[..., Result], home: Path, tmp_path: Path
) -> None:
    task = tmp_path / "mine.jsonl"
    problems = [{"prompt": f"Say {i}.", "reference": str(i), "max_tokens": 6} for i in range(5)]
    task.write_text("".join(json.dumps(p) + "\n" for p in problems))
    done = calibrate("--task", str(task), "--n", "3")
    assert done.exit_code == 1
    assert "at least 5 of each are needed" in done.stderr or "three parts" in done.stderr
    (kept,) = (home / "calibration").glob("*-mine-0.jsonl")
    first = kept.read_text().splitlines()
    assert len(first) == 3
    assert {json.loads(line)["task"] for line in first} == {"mine"}
    calibrate("--task", str(task), "--n", "5")
    again = kept.read_text().splitlines()
    assert again[:3] == first  # not answered twice
    assert len(again) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Say what to calibrate on: --task TASK, or --data FILE."),
        (["--task", "humaneval", "--data", "x"], "--data takes the place of --task"),
        (["--task", "nonsense"], "There is no task or JSONL file 'nonsense'"),
        (["--data", "none.jsonl"], "none.jsonl"),
        (["--task", "humaneval", "--max-drop", "0"], "--max-drop"),
        (["--task", "humaneval", "--confidence", "1"], "--confidence"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    calibrate: Callable[..., Result], arguments: list[str], message: str
) -> None:
    done = calibrate(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_answers_of_another_pair_are_refused(
    calibrate: Callable[..., Result], tmp_path: Path
) -> None:
    done = calibrate("--data", str(write(tmp_path / "other.jsonl", records(3))))
    assert done.exit_code == 2
    assert "holds answers of small.gguf + large.gguf, not of tiny-" in done.stderr
