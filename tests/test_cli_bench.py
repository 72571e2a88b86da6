"""`parse-local bench` from the command line, with tiny models and a task of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from filelock import FileLock
from tiny_gguf import READABLE

from parse_local.cli import main

KEYS = [
    "n",
    "accuracy",
    "accuracy_lo",
    "accuracy_hi",
    "tok_s",
    "speedup",
    "speedup_lo",
    "speedup_hi",
    "bound",
    "ttft_s",
    "accepted_share",
    "peak_mb",
]
PROBLEMS = [
    {"name": "one", "prompt": "Say <b>something</b>.", "checker": "len(answer) > 3"},
    {"name": "two", "prompt": "Hello.", "reference": "nobody says this"},
]


@pytest.fixture
def call(tmp_path: Path, tiny: Callable[..., Path]) -> Callable[..., list[str]]:
    """A function that makes the arguments of a small run into tmp_path/out."""
    task = tmp_path / "task.jsonl"
    task.write_text("".join(json.dumps({**p, "max_tokens": 24}) + "\n" for p in PROBLEMS))

    def arguments(*more: str, strategies: str = "parse,parse:accept=semantic,delta=8") -> list[str]:
        return [
            "bench",
            *("--draft", str(tiny(seed=2, weights_from=1, bias=READABLE))),
            *("--target", str(tiny(seed=1, bias=READABLE))),
            *("--ctx", "1024", "--threads", "1", "--spec", "none"),
            *("--task", str(task), "--out", str(tmp_path / "out"), "--allow-exec"),
            *("--strategies", strategies),
            *more,
        ]

    return arguments


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(main, arguments)


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    text = (tmp_path / "out" / "answers.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def measured(tmp_path: Path) -> list[list[str]]:
    costs = json.loads((tmp_path / "out" / "run.json").read_text())["costs"]
    return [list(c) for c in costs]


def test_a_run_leaves_everything(call: Callable[..., list[str]], tmp_path: Path) -> None:
    done = run(call())
    assert done.exit_code == 0, done.output
    names = ["target", "parse", "parse:accept=semantic,delta=8"]
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(found) == names
    for row in found.values():
        assert list(row) == KEYS
        assert (row["n"], row["accuracy"]) == (2, 0.5)
        assert row["tok_s"] > 0
        assert row["bound"] > 0
    assert found["target"]["speedup"] == found["target"]["bound"] == 1.0
    assert measured(tmp_path) == [["draft", "target", "target_bare"]] * 2  # before and after
    answers = lines(tmp_path)
    # Problem by problem, the order rotating.
    assert [(a["problem"], a["strategy"]) for a in answers] == [
        *(("one", n) for n in names),
        *(("two", n) for n in (*names[1:], names[0])),
    ]
    for answer in answers:
        assert answer["correct"] == (answer["problem"] == "one")
        assert answer["text"] == "".join(s["text"] for s in answer["spans"])
        assert answer["n_tokens"] == 24
        assert answer["timings"]["total_s"] > 0
    by_name = {a["strategy"]: a for a in answers if a["problem"] == "one"}
    assert by_name["parse"]["text"] == by_name["target"]["text"]  # lossless
    (judged,) = by_name["parse:accept=semantic,delta=8"]["rounds"]
    assert judged["n_draft"] == 24
    cuts = [b["n_tokens"] for b in judged["boundaries"]]
    assert len(cuts) > 1
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == 24
    assert all(0 < b["p_correct"] < 1 for b in judged["boundaries"])
    assert "| target | 1/2 |" in (tmp_path / "out" / "summary.md").read_text()
    html = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Say &lt;b&gt;something&lt;/b&gt;." in html
    assert "6/6 two target: wrong" in done.stderr


def test_an_interrupted_run_goes_on(call: Callable[..., list[str]], tmp_path: Path) -> None:
    run(call())
    whole = (tmp_path / "out" / "answers.jsonl").read_bytes()
    kept = whole.splitlines(keepends=True)[:2]
    torn = b"".join(kept) + whole.splitlines()[2][:50]
    (tmp_path / "out" / "answers.jsonl").write_bytes(torn)
    done = run(call())
    assert done.exit_code == 0
    assert "one target" not in done.stderr  # it was there
    assert "3/6 one parse:accept=semantic,delta=8: right" in done.stderr
    again = (tmp_path / "out" / "answers.jsonl").read_bytes().splitlines(keepends=True)
    assert again[:2] == kept
    assert [json.loads(a)["text"] for a in again] == [
        json.loads(a)["text"] for a in whole.splitlines()
    ]
    # Nothing left to do: the report is made anew, no model is asked.
    assert len(measured(tmp_path)) == 4
    (tmp_path / "out" / "summary.json").unlink()
    assert run(call()).exit_code == 0
    assert (tmp_path / "out" / "summary.json").exists()
    assert len(measured(tmp_path)) == 4


def test_a_run_with_one_measurement_of_older_versions(
    call: Callable[..., list[str]], tmp_path: Path
) -> None:
    run(call())
    file = tmp_path / "out" / "run.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "costs": kept["costs"][0]}))
    assert run(call()).exit_code == 0
    (tmp_path / "out" / "answers.jsonl").write_text("")
    assert run(call()).exit_code == 0
    assert len(measured(tmp_path)) == 3


def test_repeats(call: Callable[..., list[str]], tmp_path: Path) -> None:
    assert run(call("--repeat", "2", "--n", "1", strategies="")).exit_code == 0
    assert [(a["problem"], a["repeat"]) for a in lines(tmp_path)] == [("one", 0), ("one", 1)]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["target"]["n"] == 1


def test_another_run_is_not_mixed_in(call: Callable[..., list[str]], tmp_path: Path) -> None:
    assert run(call("--n", "1", strategies="")).exit_code == 0
    other = run(call(strategies=""))
    assert other.exit_code == 2
    assert "holds a run with other settings (problems: 1 there, 2 now); give the same" in (
        other.stderr
    )
    (tmp_path / "out" / "run.json").unlink()
    foreign = run(call())
    assert foreign.exit_code == 2
    assert "is not empty and holds no run; give --out another directory." in foreign.stderr
    assert foreign.stderr.count("\n") == 1


def test_two_runs_do_not_write_into_one_directory(
    call: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with FileLock(tmp_path / "out" / ".lock"):
        other = run(call(strategies=""))
    assert other.exit_code == 2
    assert "Another run is writing to" in other.stderr
    assert run(call("--n", "1", strategies="")).exit_code == 0


def test_a_damaged_directory_is_one_sentence(
    call: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert run(call("--n", "1", strategies="")).exit_code == 0
    answers = tmp_path / "out" / "answers.jsonl"
    answers.write_text('{"problem": 1}\n' + answers.read_text())
    damaged = run(call("--n", "1", strategies=""))
    assert damaged.exit_code == 2
    assert "holds a line that is no answer; remove that line" in damaged.stderr
    (tmp_path / "out" / "run.json").write_text("{")
    assert "run.json cannot be read" in run(call("--n", "1", strategies="")).stderr


def test_code_runs_only_where_it_may(call: Callable[..., list[str]], tmp_path: Path) -> None:
    arguments = [a for a in call() if a != "--allow-exec"]
    refused = run(arguments)
    assert refused.exit_code == 2
    assert "runs code that the models write, in a sandbox; say --allow-exec" in refused.stderr
    assert not (tmp_path / "out").exists()
    # The second problem runs none.
    harmless = run([*arguments, "--start", "1", "--strategies", ""])
    assert harmless.exit_code == 0, harmless.output


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (["--strategies", "prase"], 2, "There is no strategy 'prase'"),
        (["--peer", "ollama"], 2, "--peer 'ollama' is none of"),
        (["--task", "humanevil"], 2, "There is no task or JSONL file 'humanevil'"),
        (["--peer", "openai=http://127.0.0.1:9"], 1, "127.0.0.1:9 does not answer"),
        (["--n", "0"], 2, "--n"),
    ],
)
def test_mistakes_are_one_sentence(
    call: Callable[..., list[str]], more: list[str], status: int, said: str
) -> None:
    done = run(call(*more))
    assert done.exit_code == status
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_without_a_draft_only_the_target_runs(
    call: Callable[..., list[str]], tiny: Callable[..., Path]
) -> None:
    arguments = call(strategies="parse")
    at = arguments.index("--draft")
    del arguments[at : at + 2]
    done = run(arguments)
    assert done.exit_code == 2
    assert "This strategy needs a draft model" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise there")
def test_ctrl_c_keeps_and_reports_what_is_complete(
    call: Callable[..., list[str]], tmp_path: Path
) -> None:
    arguments = call("--repeat", "2000", "--n", "1", strategies="")
    program = "from parse_local.cli import main; main()"
    answers = tmp_path / "out" / "answers.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
    ) as process:
        while not (answers.exists() and answers.read_bytes().count(b"\n") > 2):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "No problem has been answered by every strategy yet." in out
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == {}
    assert "Say &lt;b&gt;something&lt;/b&gt;." in (tmp_path / "out" / "index.html").read_text()
    assert len(lines(tmp_path)) == answers.read_bytes().count(b"\n") >= 3
