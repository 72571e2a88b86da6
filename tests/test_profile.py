"""Profiles: TOML in, thresholds and wording out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from parse_local.errors import UsageError
from parse_local.fingerprint import fingerprint
from parse_local.paths import package_models_dir
from parse_local.profile import (
    FittedFile,
    Fusion,
    Profile,
    Weight,
    find_profile,
    for_files,
    load_profile,
    profile_name,
    user_profile,
)

WHOLE = """
name = "pair"
calibrated = true
tau_full = 0.97
tau_prefix = 0.92

[fitted]
on = "something"

[fitted.target]
file = "large.gguf"
fingerprint = "100-ab"

[[fitted.drafts]]
file = "small.gguf"
fingerprint = "10-cd"

[[fitted.drafts]]
file = "small-q4_0.gguf"
fingerprint = "8-ef"

[wording]
question_full = "Right?"
label_correct = "Yes"
label_incorrect = "No"

[fusion]
intercept = 0.25
threshold_full = 1
threshold_prefix = inf

[fusion.terms.log_odds]
mean = 2
std = 0.5
weight = 1

[fusion.terms.mean_logprob]
mean = -0.2
std = 0.1
weight = 0.5
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
    # Two deviations above on the verdict, two above on the likelihood.
    terms = {"log_odds": 3.0, "mean_logprob": 0.0, "log_length": 4.0}
    assert profile.fusion.parts(terms) == pytest.approx({"log_odds": 2.0, "mean_logprob": 1.0})
    assert profile.fusion.score(terms) == pytest.approx(3.25)
    assert profile.target == FittedFile("large.gguf", "100-ab")
    assert [d.fingerprint for d in profile.drafts] == ["10-cd", "8-ef"]


def test_what_a_profile_gives_no_weight_need_not_be_measured() -> None:
    one = Weight(0.0, 1.0, 1.0)
    verdict = Fusion({"log_odds": one, "mean_logprob": replace(one, weight=0.0)}, 0.0, 0.5, 0.5)
    assert (verdict.needs_verdict, verdict.needs_earlier, verdict.needs_tokens) == (1, 0, 0)
    assert verdict.accepts({"log_odds": 0.6}, complete=True)
    assert not verdict.accepts({"mean_logprob": 9.0}, complete=True)  # no verdict, no acceptance
    tokens = Fusion({"window_logprob": one}, 0.0, -2.0, math.inf)
    assert (tokens.needs_verdict, tokens.needs_earlier, tokens.needs_tokens) == (0, 0, 1)
    seen = {"window_logprob": -1.0, "mean_logprob": -0.1}
    assert tokens.accepts(seen, complete=True)
    assert not tokens.accepts(seen, complete=False)
    assert not tokens.accepts({"log_odds": 9.0}, complete=True)
    assert Fusion({"log_odds_change": one}, 0.0, 0.0, 0.0).needs_earlier


def test_an_empty_profile_is_the_default_one(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Profile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tau_full = ", "profile.toml"),
        ("tau = 0.5", "tau"),
        ("[fusion]\nintercept = 0.5", "missing"),
        ("[fusion.terms.mean_logprob]\nmean = 0.5", "missing"),
        ("[fusion.terms.luck]\nmean = 0.5", r"fusion\.terms\.luck is not one of: log_odds, "),
        ("calibrated = 1", "calibrated must be true or false, not 1"),
        ('target = "x.gguf"', r"target belongs into \[fitted\]"),
        ('tau_full = "high"', "tau_full must be a number"),
        ("tau_full = nan", "tau_full must be a number"),
        ("tau_full = inf", "tau_full must be a number"),
        (WHOLE.replace("std = 0.5", "std = 0"), "std must be above 0"),
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
        # None is proven at calibrate's own limit, so none makes a lossy mode the default.
        assert not profile.calibrated
        assert profile.fusion is not None
        assert profile.target is not None, "it says what it was fitted on"
        assert profile.drafts


# which profile a pair has, and whether its guarantee holds


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_users_profile_wins_over_the_shipped_one(home: Path) -> None:
    name = "qwen2.5-coder-1.5b"
    shipped = load_profile(package_models_dir() / "profiles" / f"{name}.toml")
    assert find_profile(name) == shipped
    own = user_profile(name)
    assert own == home / "home" / "profiles" / "qwen2.5-coder-1.5b.toml"
    own.parent.mkdir(parents=True)
    own.write_text("tau_full = 0.5\n")
    assert (find_profile(name).name, find_profile(name).tau_full) == (name, 0.5)
    assert find_profile("large+small") == Profile(name="large+small")


def test_a_pair_of_files_has_a_name_too() -> None:
    files = {"draft": Path("a/small.q4.gguf"), "target": Path("b/large.gguf")}
    assert profile_name("pair", files) == "pair"
    assert profile_name("", files) == "large+small.q4"


def test_a_guarantee_holds_for_the_files_it_was_fitted_on(tmp_path: Path) -> None:
    large, small, other = (tmp_path / f"{n}.gguf" for n in ("large", "small", "other"))
    large.write_bytes(b"GGUF large")
    small.write_bytes(b"GGUF small")
    other.write_bytes(b"GGUF other")
    fitted = FittedFile("small.gguf", fingerprint(small))
    profile = Profile(
        name="pair",
        calibrated=True,
        tau_full=0.7,
        target=FittedFile("large.gguf", fingerprint(large)),
        drafts=(FittedFile("x.gguf", "1-0"), fitted),
    )
    assert for_files(profile, {"target": large, "draft": small}) == (profile, "")
    moved = small.rename(tmp_path / "renamed.gguf")
    assert for_files(profile, {"target": large, "draft": moved})[0].calibrated
    assert for_files(profile, {"target": large}) == (profile, "")  # no draft, nothing accepted

    lossless, note = for_files(profile, {"target": large, "draft": other})
    assert lossless == replace(profile, calibrated=False)
    assert "calibrated with another draft than other.gguf, so answers stay lossless" in note
    assert "another target than other.gguf" in for_files(profile, {"target": other})[1]
    unknown = replace(profile, target=None, drafts=())
    assert not for_files(unknown, {"target": large})[0].calibrated
    uncalibrated = replace(profile, calibrated=False)
    assert for_files(uncalibrated, {"draft": other, "target": large}) == (uncalibrated, "")
