"""Profiles: TOML in, thresholds and wording out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from parse_local.errors import UsageError
from parse_local.paths import package_models_dir
from parse_local.profile import Profile, load_profile

WHOLE = """
name = "pair"
calibrated = true
tau_full = 0.97
tau_prefix = 0.92

[fitted]
on = "something"

[wording]
question_full = "Right?"
label_correct = "Yes"
label_incorrect = "No"

[fusion]
p_mean = 0.9
p_std = 0.1
logprob_mean = -0.2
logprob_std = 0.1
threshold_full = 1
threshold_prefix = inf
"""


def read(tmp_path: Path, text: str) -> Profile:
    file = tmp_path / "profile.toml"
    file.write_text(text, encoding="utf-8")
    return load_profile(file)


def test_a_whole_profile(tmp_path: Path) -> None:
    profile = read(tmp_path, WHOLE)
    assert (profile.name, profile.calibrated) == ("pair", True)
    assert (profile.tau_full, profile.tau_prefix) == (0.97, 0.92)
    assert profile.wording.question_full == "Right?"
    assert profile.wording.question_prefix == Profile().wording.question_prefix
    assert (profile.wording.label_correct, profile.wording.label_incorrect) == ("Yes", "No")
    assert profile.fusion is not None
    assert profile.fusion.threshold_prefix == math.inf
    # One deviation above on P(Correct), two above on the likelihood.
    assert profile.fusion.score(1.0, 0.0) == pytest.approx(3.0)


def test_an_empty_profile_is_the_default_one(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Profile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tau_full = ", "profile.toml"),
        ("tau = 0.5", "tau"),
        ("[fusion]\np_mean = 0.5", "missing"),
        ('tau_full = "high"', "tau_full must be a number"),
        ("tau_full = nan", "tau_full must be a number"),
        ("tau_full = inf", "tau_full must be a number"),
        (WHOLE.replace("p_std = 0.1", "p_std = 0"), "p_std must be above 0"),
        (WHOLE.replace('"Yes"', "3"), "label_correct must be a text"),
    ],
)
def test_a_malformed_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: No such file"):
        load_profile(tmp_path / "none.toml")


def test_shipped_profiles_can_be_read_and_promise_nothing_they_cannot_keep() -> None:
    files = sorted((package_models_dir() / "profiles").glob("*.toml"))
    assert "qwen2.5-coder-1.5b.toml" in [f.name for f in files]
    for file in files:
        profile = load_profile(file)
        assert profile.name == file.stem
        assert not profile.calibrated  # none comes with a guarantee yet
