"""`parse-local run` and a piped `chat` on tiny models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from parse_local.cli import main
from parse_local.llama import library

STATS = re.compile(r"^\d+ tokens? · [\d.]+ tok/s( · .*)?\n$")


@pytest.fixture
def files(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Options that name a tiny pair, with the user's directories out of the way."""
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path))
    target, draft = tiny(seed=1), tiny(seed=2, weights_from=1)
    return [
        *("--target", str(target), "--draft", str(draft)),
        *("--threads", "1", "--ctx", "512", "--kv-type", "f32", "--flash-attn", "off"),
    ]


def invoke(*arguments: Any, **options: Any) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_json(files: list[str], *arguments: Any) -> dict[str, Any]:
    result = invoke("run", *files, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    return dict(json.loads(result.stdout))


def test_the_answer_goes_to_stdout_and_statistics_to_stderr(files: list[str]) -> None:
    how = ("--strategy", "parse", "--max-tokens", 12)  # auto drafts only where that pays
    result = invoke("run", *files, *how, "hello there")
    expected = run_json(files, *how, "hello there")
    assert result.exit_code == 0
    assert STATS.match(result.stderr)
    assert "from the draft" in result.stderr
    assert "12 tokens" in result.stderr
    # Control characters that the model wrote are not sent to the terminal as they are.
    kept = "".join(c for c in expected["text"] if c.isprintable())
    assert "".join(c for c in result.stdout if c.isprintable()) == kept


def test_json_has_exactly_the_documented_fields(files: list[str]) -> None:
    how = ("--strategy", "parse", "--accept", "semantic")
    options = (*how, "--tau", "1", "--delta", "5", "--max-tokens", "30")
    found = run_json(files, *options, "hello there")
    documented = {
        *("text", "reasoning", "finish_reason", "usage", "rounds", "tokens", "timings"),
        "speedup",
    }
    assert documented <= set(found) <= documented | {"spans"}
    assert found["usage"] == {"prompt_tokens": 23, "completion_tokens": 30}
    assert found["finish_reason"] == "length"
    (one,) = found["rounds"]
    assert set(one) == {"n_draft", "n_exact", "n_accept", "boundaries", "p_correct", "label_mass"}
    assert one["n_draft"] == 30
    assert len(one["boundaries"]) == len(one["p_correct"]) == len(one["label_mass"]) >= 5
    assert one["boundaries"] == sorted(set(one["boundaries"]))
    tokens = {
        *("draft_decoded", "target_decoded", "suffix_decoded", "reused"),
        *("spec_proposed", "spec_accepted"),
    }
    assert tokens <= set(found["tokens"])
    rejected = found["tokens"]["spec_proposed"] - found["tokens"]["spec_accepted"]
    assert found["tokens"]["target_decoded"] == 23 + 30 + (30 - one["n_accept"]) - 1 + rejected
    timings = {"prompt_s", "draft_s", "verify_s", "fork_s", "target_s", "total_s", "ttft_s"}
    assert set(found["timings"]) == timings
    parts = sum(found["timings"][t] for t in timings - {"total_s", "ttft_s"})
    assert 0 < parts <= found["timings"]["total_s"] + 0.001
    assert 0 < found["timings"]["ttft_s"] <= found["timings"]["total_s"]


def test_exact_is_the_target_alone_from_the_command_line_too(files: list[str]) -> None:
    texts = {
        run_json(files, "--strategy", strategy, "--max-tokens", 40, "hello there")["text"]
        for strategy in ("parse", "target")
    }
    assert len(texts) == 1


def test_the_prompt_may_come_from_stdin(files: list[str]) -> None:
    piped = invoke("run", *files, "--json", "--max-tokens", 10, input="hello there\n")
    given = run_json(files, "--max-tokens", 10, "hello there")
    assert json.loads(piped.stdout)["text"] == given["text"]
    assert json.loads(piped.stdout)["usage"]["prompt_tokens"] == 23


def test_a_system_prompt_comes_first(files: list[str]) -> None:
    plain = run_json(files, "--max-tokens", 5, "hello there")
    with_system = run_json(files, "--max-tokens", 5, "--system", "Be brief.", "hello there")
    # <|im_start|> system \n Be brief. <|im_end|> \n: every byte a token here but "in" and "er".
    n = len("system\nBe brief.\n") + 2
    assert with_system["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"] == n


def test_stop_strings(files: list[str]) -> None:
    whole = run_json(files, "--max-tokens", 40, "hello there")["text"]
    stop = next(c for c in whole[5:] if c.isascii() and c.isprintable())
    other = "\x02 never \x03"
    found = run_json(files, "--max-tokens", 40, "--stop", other, "--stop", stop, "hello there")
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_a_temperature_and_a_seed(files: list[str]) -> None:
    options = ("--temperature", 1, "--max-tokens", 20, "hello there")
    texts = [run_json(files, "--seed", seed, *options)["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_tau_decides_what_is_accepted(files: list[str]) -> None:
    options = ("--strategy", "parse", "--accept", "semantic", "--max-tokens", 29, "hello there")
    everything = run_json(files, "--tau", 0, *options)
    assert [(r["n_draft"], r["n_accept"]) for r in everything["rounds"]] == [(29, 29)]
    nothing = run_json(files, "--tau", 1, *options)
    assert nothing["rounds"][0]["n_accept"] == nothing["rounds"][0]["n_exact"] < 29


def test_show_accepted_marks_the_drafts_part(files: list[str]) -> None:
    how = ("--strategy", "parse", "--accept", "semantic", "--tau", 0)
    options = (*how, "--max-tokens", 18, "--show-accepted")
    result = invoke("run", *files, *options, "hello there")
    assert result.exit_code == 0
    assert "accepted from the draft: 18 of 18 tokens (100%)" in result.stdout
    assert "│" in result.stdout


def test_verbose_shows_the_log_and_the_placement(files: list[str], tiny: Any) -> None:
    quiet = invoke("run", *files, "--max-tokens", 2, "hello there")
    assert quiet.stderr.count("\n") == 1
    loud = invoke("run", *files, "--max-tokens", 2, "--verbose", "hello there")
    assert "llama_model_loader" in loud.stderr
    assert f"{tiny(seed=1).name}: 0.00 GiB, 0 of 1 layers on the GPU" in loud.stderr
    assert loud.stdout == quiet.stdout
    again = invoke("run", *files, "--max-tokens", 2, "hello there")
    assert again.stderr.count("\n") == 1
    assert library.log.verbose is False


def test_a_piped_chat_answers_once(files: list[str]) -> None:
    result = invoke("chat", *files, "--max-tokens", 10, input="hello there\n")
    expected = invoke("run", *files, "--max-tokens", 10, "hello there")
    assert result.exit_code == 0
    assert result.stdout == expected.stdout
    assert "10 tokens" in result.stderr
    quiet = invoke("chat", *files, "--max-tokens", 10, "--quiet", input="hello there\n")
    assert (quiet.stdout, quiet.stderr) == (expected.stdout, "")


def test_a_chat_without_a_message(files: list[str]) -> None:
    result = invoke("chat", *files, input="")
    assert result.exit_code == 2
    assert "There is no message on stdin" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_keeps_what_is_final_and_exits_with_130(
    files: list[str], tiny: Callable[..., Path]
) -> None:
    # It writes for many seconds, because it never ends an answer.
    slow = tiny(seed=1, n_layer=8, n_embd=256, n_ctx=40_000, bias={"<|im_end|>": -99.0})
    command = [sys.executable, "-m", "parse_local.cli", "run", *files[4:6], "--ctx", "30000"]
    command += ["--strategy", "target", "--max-tokens", "30000", "--target", str(slow), "hello"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    assert first
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - pressed < 5
    assert process.returncode == 130
    assert b"cancelled" in err
    assert b"Traceback" not in err


def test_a_closed_pipe_ends_quietly(files: list[str]) -> None:
    command = [sys.executable, "-m", "parse_local.cli", "run", *files, "--max-tokens", "300", "hi"]
    pipe = f"{' '.join(command)} | true"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_an_answer_of_a_form(files: list[str], tmp_path: Path) -> None:
    schema = {"enum": ["red", "green", "blue"]}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(schema))
    grammar = tmp_path / "colours.gbnf"
    grammar.write_text('root ::= "red" | "green" | "blue"')
    answers = {
        how: invoke("run", *files, *how, "hello there").stdout.strip()
        for how in (
            ("--json-schema", path),
            ("--json-schema", json.dumps(schema)),
            ("--grammar", grammar),
            ("--grammar", 'root ::= "red" | "green" | "blue"'),
        )
    }
    as_json, as_json_too, plain, plain_too = answers.values()
    assert json.loads(as_json) in schema["enum"]
    assert as_json_too == as_json
    assert plain in schema["enum"]
    assert plain_too == plain


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--json-schema", "{"), "is not JSON"),
        (("--json-schema", '{"not": {}}'), "asks for `not`"),
        (("--json-schema", "no-such-file.json"), "Cannot read no-such-file.json"),
        (("--grammar", "root ::= a"), "line 1: there is no rule `a`"),
        (("--json-schema", "{}", "--grammar", 'root ::= "a"'), "leave out one of the two"),
    ],
)
def test_forms_that_are_none(files: list[str], options: tuple[str, ...], reason: str) -> None:
    result = invoke("run", *files, *options, "hello there")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
