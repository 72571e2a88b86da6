"""`parse-local verify` on a tiny model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parse_local.cli import main

ANSWER = "One is one. Two is two.\n\nThree 日本。 Four 🎉!"


@pytest.fixture
def verify(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs the command on a question and ANSWER; returns stdout."""
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    question, answer = tmp_path / "q.txt", tmp_path / "a.txt"
    question.write_text("Count, please.\n", encoding="utf-8")
    answer.write_text(ANSWER + "\n", encoding="utf-8")

    def run(*options: str) -> str:
        files = ["--prompt-file", str(question), "--draft-file", str(answer)]
        model = ["--target", str(tiny(seed=1)), "--threads", "1", "--ctx", "600"]
        exact = ["--kv-type", "f32", "--flash-attn", "off"]
        result = CliRunner().invoke(main, ["verify", *files, *model, *exact, *options])
        assert result.exit_code == 0, result.stderr
        assert result.stderr == ""
        return result.stdout

    return run


def test_json(verify: Callable[..., str]) -> None:
    found: dict[str, Any] = json.loads(verify("--json", "--delta", "1000"))
    ends = ["One is one.", "Two is two.", "Three 日本。", "Four 🎉!"]
    assert [ANSWER[:n].endswith(e) for n, e in zip(found["n_chars"], ends, strict=True)] == [
        True
    ] * 4
    assert found["n_chars"][-1] == len(ANSWER)
    assert found["complete"] == [False, False, False, True]
    for name in ("n_chars", "complete", "p_correct", "label_mass", "terms"):
        assert len(found[name]) == 4, name
    assert all(0 < p < 1 for p in found["p_correct"])
    assert not {"p_correct_sequential", "parts", "score"} & set(found)
    for p, terms in zip(found["p_correct"], found["terms"], strict=True):
        assert terms["log_odds"] == pytest.approx(math.log(p / (1 - p)), abs=1e-4)
    assert "log_odds_change" not in found["terms"][0]
    odds = [terms["log_odds"] for terms in found["terms"]]
    assert found["terms"][-1]["log_odds_change"] == pytest.approx(odds[3] - sum(odds[:3]) / 3)
    # Every byte is a token but those of " t", the only merge of the vocabulary that occurs.
    assert found["n_draft"] == found["boundaries"][-1] == len(ANSWER.encode()) - 1


def test_sequential_adds_the_same_verdicts(verify: Callable[..., str]) -> None:
    found = json.loads(verify("--json", "--sequential", "--delta", "4"))
    assert len(found["p_correct_sequential"]) == len(found["boundaries"]) > 8
    assert found["p_correct_sequential"] == pytest.approx(found["p_correct"], rel=1e-4)


def test_thresholds(verify: Callable[..., str]) -> None:
    everything = json.loads(verify("--json", "--tau", "0"))
    assert everything["n_accept"] == everything["n_draft"]
    nothing = json.loads(verify("--json", "--tau", "1"))
    assert nothing["n_accept"] == nothing["n_exact"] == 0


def test_max_forks_bounds_the_verdicts(verify: Callable[..., str]) -> None:
    found = json.loads(verify("--json", "--delta", "1", "--max-forks", "3"))
    assert len(found["boundaries"]) == 4  # three prefixes and the whole


def test_the_drawing(verify: Callable[..., str]) -> None:
    drawn = verify("--delta", "1000", "--tau", "0")
    assert "P(Corr.)" in drawn
    assert "│ One is one." in drawn
    assert "cut" not in drawn
    rejected = verify("--delta", "1000", "--tau", "1", "--sequential")
    assert "· One is one." in rejected
    assert "──── cut" in rejected
    assert "forks against plain passes: at most 0.0000 apart" in rejected


PROFILE = """
[fusion]
intercept = 0.5
threshold_full = -50
threshold_prefix = inf
[fusion.terms.log_odds]
mean = 1
std = 2
weight = 0.75
[fusion.terms.min_logprob]
mean = -5
std = 2
weight = 0
"""


def test_the_part_of_every_term(verify: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "profile.toml"
    file.write_text(PROFILE)
    found = json.loads(verify("--json", "--delta", "1000", "--profile", str(file)))
    for terms, parts, score in zip(found["terms"], found["parts"], found["score"], strict=True):
        assert parts["log_odds"] == pytest.approx(0.75 * (terms["log_odds"] - 1) / 2)
        assert parts["min_logprob"] == 0
        assert score == pytest.approx(0.5 + parts["log_odds"])

    drawn = verify("--delta", "1000", "--profile", str(file)).splitlines()
    (row,) = (line for line in drawn if line.startswith("log-odds of P(Correct)"))
    here, part = found["terms"][-1]["log_odds"], found["parts"][-1]["log_odds"]
    assert row.split()[-5:] == [f"{here:.3f}", "1.000", "±", "2.000", f"{part:+.3f}"]
    score = f"{found['score'][-1]:+.3f}"
    assert drawn[-1] == f"score {score}: --accept fused accepts it (needs more than -50.000)"

    file.write_text(PROFILE.replace("-50", "inf"))
    assert "rejects it (nothing passes)" in verify("--profile", str(file))
