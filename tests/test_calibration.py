"""Samples → weights → a threshold with a guarantee → a profile, on data whose truth is known."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from simulated_answers import INTERCEPT, PAIR, WEIGHTS, records, write

from parse_local.calibration.calibrate import Outcome, calibrate, fitted_table, profile_of
from parse_local.calibration.fit import auc, fit, regress, scores_of, verdict_scores
from parse_local.calibration.report import print_outcome, roc, save_picture
from parse_local.calibration.risk import accepted_losses
from parse_local.calibration.samples import SHARES, losses, read_samples, sample_of
from parse_local.errors import CalibrationError, UsageError
from parse_local.profile import JudgeWording, Profile, dump_profile, load_profile


def samples(n: int, seed: int = 0, task: str = "sim") -> list:
    return sorted((sample_of(r) for r in records(n, seed=seed, task=task)), key=lambda s: s.draw(0))


def test_the_area_counts_pairs() -> None:
    # (3 over 1), (3 over 2), (1 ties 1: half), (1 under 2)
    assert auc([3.0, 1.0, 1.0, 2.0], [True, True, False, False]) == 2.5 / 4
    assert math.isnan(auc([1.0], [True]))


def test_regression_recovers_known_weights() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8000, 3))
    right = rng.random(8000) < 1 / (1 + np.exp(-(1.5 * x[:, 0] - 0.7 * x[:, 1] + 0.5)))
    names = ["mean_logprob", "log_length", "log_odds"]
    rows = [{"mean_logprob": -1 + 0.2 * a, "log_length": 5 + b, "log_odds": 3 * c} for a, b, c in x]
    found = regress(rows, right, names, 1e-5)
    assert found.intercept == pytest.approx(0.5, abs=0.1)
    assert found.weights["mean_logprob"].weight == pytest.approx(1.5, abs=0.1)
    assert found.weights["mean_logprob"].mean == pytest.approx(-1, abs=0.02)
    assert found.weights["mean_logprob"].std == pytest.approx(0.2, abs=0.02)
    assert found.weights["log_length"].weight == pytest.approx(-0.7, abs=0.1)
    assert abs(found.weights["log_odds"].weight if "log_odds" in found.weights else 0) < 0.1


def test_a_weight_against_the_known_direction_is_none() -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=500)
    right = rng.random(500) < 1 / (1 + np.exp(2 * value))  # more of it, seldomer right
    rows = [{"log_odds": v, "log_length": v} for v in value]
    found = regress(rows, right, ["log_odds", "log_length"], 0.01)
    assert set(found.weights) == {"log_length"}
    assert found.weights["log_length"].weight < -1


@pytest.fixture(scope="module")
def others() -> list:
    return samples(3000, seed=1)


def test_the_fit_finds_what_the_evidence_is_worth(others: list) -> None:
    found = fit(samples(1200))
    assert found.wording == "correct"
    assert found.wording_auc["correct"] > 0.75
    assert found.wording_auc["mistake"] == pytest.approx(0.5, abs=0.06)
    assert {"log_odds", "mean_logprob"} <= set(found.fusion.weights)
    assert len(found.fusion.weights) <= 4
    assert not found.fusion.needs_earlier  # early verdicts are noise, and not bought
    assert found.fusion.weights["log_odds"].weight == pytest.approx(WEIGHTS["log_odds"], abs=0.3)
    assert found.fusion.intercept == pytest.approx(INTERCEPT, abs=0.3)
    right = [s.draft_right for s in others]
    gain = auc(scores_of(found.fusion, "correct", others), right) - auc(
        verdict_scores("correct", others), right
    )
    assert gain == pytest.approx(_true_gain(others, right), abs=0.01)
    assert gain > 0.04


def _true_gain(others: list, right: list[bool]) -> float:
    terms = [s.terms["correct"] for s in others]
    verdict = np.array([t["log_odds"] for t in terms]) - 2
    likelihood = (np.array([t["mean_logprob"] for t in terms]) + 1.0) / 0.1
    return auc(1.5 * verdict + likelihood, right) - auc(verdict, right)


def test_too_few_wrong_drafts_teach_nothing() -> None:
    right = [replace(s, draft_right=True) for s in samples(60)]
    with pytest.raises(CalibrationError, match=r"60 are right and 0 wrong; at least 5 of each"):
        fit(right)
    with pytest.raises(CalibrationError, match="2 problems cannot be cut into three parts"):
        calibrate(samples(2), max_drop=0.01, confidence=0.95, seed=0)


# samples


def test_a_problem_stays_in_its_part_whatever_comes_beside_it() -> None:
    few, many = samples(100), samples(1000)
    split = {s.problem: s.split(0) for s in many}
    assert all(split[s.problem] == s.split(0) for s in few)
    for name, share in SHARES.items():
        assert list(split.values()).count(name) / 1000 == pytest.approx(share, abs=0.05)
    assert any(s.split(0) != s.split(1) for s in few)


def test_a_draft_without_an_end_is_never_accepted() -> None:
    record = records(1)[0]
    record["draft"]["finish_reason"] = "length"
    cut = sample_of(record)
    fusion = fit(samples(200)).fusion
    assert scores_of(fusion, "correct", [cut]).tolist() == [-math.inf]
    assert verdict_scores("correct", [cut]).tolist() == [-math.inf]
    empty = sample_of({**record, "logprobs": [], "ranks": [], "verdicts": []})
    assert not empty.finished


def test_a_change_counts_only_if_the_engine_would_measure_the_same(tmp_path: Path) -> None:
    found = records(3)
    terms = [s.terms["correct"] for s in read_samples([write(tmp_path / "a.jsonl", found)])]
    assert all("log_odds_change" in t for t in terms)
    for record in found:  # one verdict before the end instead of three
        record["verdicts"] = record["verdicts"][2:]
    fewer = [s.terms["correct"] for s in read_samples([write(tmp_path / "b.jsonl", found)])]
    assert [set(a) - set(b) for a, b in zip(terms, fewer, strict=True)] == [{"log_odds_change"}] * 3


def test_malformed_answers_are_refused(tmp_path: Path) -> None:
    good = records(2)
    file = write(tmp_path / "a.jsonl", good)
    assert len(read_samples([file], pair=PAIR)) == 2
    with pytest.raises(UsageError, match=r"holds answers of small\.gguf \+ large\.gguf, not of x"):
        read_samples([file], pair="x + y")
    with pytest.raises(UsageError, match="the problem sim/0 is in another file too"):
        read_samples([file, write(tmp_path / "b.jsonl", good[:1])])
    with pytest.raises(UsageError, match="x is not a collected answer"):
        read_samples([write(tmp_path / "c.jsonl", [{"problem": "x"}])])
    with pytest.raises(UsageError, match=r"There are no collected answers in .*none\.jsonl"):
        read_samples([tmp_path / "none.jsonl"])


# the guarantee


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return calibrate(samples(1000), max_drop=0.02, confidence=0.95, seed=0)


def test_the_chosen_threshold_loses_no_more_than_promised(outcome: Outcome, others: list) -> None:
    assert outcome.chosen is not None
    assert outcome.chosen.p <= 0.05
    assert outcome.chosen.accepted > 0.3
    assert "loses at most 2 points" in outcome.sentence()
    scores = scores_of(outcome.fit.fusion, "correct", others)
    lost = accepted_losses(scores, losses(others), outcome.chosen.threshold)
    assert lost.mean() <= 0.02
    low, high = outcome.held_out_interval
    assert low <= outcome.held_out.mean() <= high
    assert low <= lost.mean() <= high
    assert sum(outcome.counts.values()) == 1000


def test_the_next_threshold_was_not_proven(outcome: Outcome) -> None:
    assert outcome.chosen is not None
    behind = outcome.points[outcome.points.index(outcome.chosen) + 1]
    assert behind.p > 0.05
    assert behind.accepted >= outcome.chosen.accepted


def test_where_nothing_can_be_proven_the_pair_stays_lossless() -> None:
    small = calibrate(samples(200), max_drop=0.001, confidence=0.99, seed=0)
    assert small.chosen is None
    assert small.fit.fusion.threshold_full == math.inf
    assert "so the pair stays lossless" in small.sentence()
    # log(0.01) / log(1 + 0.9 * 0.001 / 0.999) problems, in a part that holds 55%
    assert "it takes 5,115 to prove that, 9,300 in all" in small.sentence()
    assert not small.held_out.any()
    profile = profile_of(small, Profile(tau_full=0.77), JudgeWording())
    assert (profile.calibrated, profile.tau_full) == (False, 0.77)


def test_a_profile_comes_back_as_it_was_written(outcome: Outcome, tmp_path: Path) -> None:
    wording = JudgeWording(question_full='Is "this" right?\nSay\tso: \\ ü', label_correct="Yes")
    profile = profile_of(outcome, Profile(name="pair"), wording)
    file = tmp_path / "pair.toml"
    file.write_text(dump_profile(profile, fitted_table(outcome)), encoding="utf-8")
    assert load_profile(file) == profile
    assert profile.calibrated
    text = file.read_text()
    assert f"held-out = {outcome.counts['held-out']}" in text
    assert text.count("\n[fitted.not_fitted_on.sim]\n") == 1
    assert dump_profile(Profile()) == dump_profile(load_profile(_empty(tmp_path)))


def _empty(tmp_path: Path) -> Path:
    (tmp_path / "empty.toml").write_text("")
    return tmp_path / "empty.toml"


def test_the_report(outcome: Outcome) -> None:
    out = io.StringIO()
    print_outcome(outcome, Console(file=out, width=100))
    text = out.getvalue()
    assert "log-odds of P(Correct)" in text
    assert text.count("chosen") == 1
    assert "Held-out check: of " in text
    assert text.rstrip().endswith(outcome.sentence())


def test_the_picture(outcome: Outcome, tmp_path: Path) -> None:
    save_picture(tmp_path / "a.svg", outcome, "title")
    drawn = (tmp_path / "a.svg").read_text()
    assert "<svg" in drawn
    assert len(drawn) > 10_000
    false, true = roc(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, False, True, False]))
    assert (false.tolist(), true.tolist()) == ([0, 0, 0.5, 1], [0, 0.5, 1, 1])
