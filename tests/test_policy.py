"""Options, their defaults, and how they are checked."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest

from parse_local import LoadOptions, Options
from parse_local.errors import UsageError
from parse_local.policy import STRATEGIES, Strategy, resolve
from parse_local.profile import Fusion, Profile, Weight

FUSION = Fusion(
    {"log_odds": Weight(2.0, 1.0, 1.0), "mean_logprob": Weight(-0.5, 0.5, 1.0)}, 0.0, 1.0, 1.0
)


def test_nothing_lossy_happens_without_a_calibrated_profile() -> None:
    assert resolve(Options(), Profile()).accept == "exact"
    assert resolve(Options(), Profile(fusion=FUSION)).accept == "exact"
    assert resolve(Options(), Profile(fusion=FUSION, calibrated=True)).accept == "fused"


def test_defaults_follow_the_mode() -> None:
    exact = resolve(Options(strategy="parse", accept="exact"), Profile())
    assert (exact.window, exact.after_reject) == (16, "redraft")
    assert (exact.asks_verdicts, exact.needs_logprobs) == (False, False)
    semantic = resolve(Options(strategy="parse", accept="semantic"), Profile())
    assert (semantic.window, semantic.after_reject) == (0, "target")  # the paper's setting
    assert (semantic.asks_verdicts, semantic.needs_logprobs) == (True, False)
    fused = resolve(Options(accept="fused"), Profile(fusion=FUSION))
    assert (fused.asks_verdicts, fused.needs_logprobs, fused.asks_earlier) == (True, True, False)


@pytest.mark.parametrize(
    ("term", "bought"),
    [
        ("log_odds", (True, False, False)),
        ("log_odds_change", (True, False, True)),
        ("min_logprob", (False, True, False)),
        ("log_length", (False, False, False)),
    ],
)
def test_only_evidence_that_counts_is_bought(term: str, bought: tuple[bool, ...]) -> None:
    fusion = Fusion({term: Weight(0.0, 1.0, 0.5)}, 0.0, 1.0, math.inf)
    policy = resolve(Options(accept="fused"), Profile(fusion=fusion))
    assert (policy.asks_verdicts, policy.needs_logprobs, policy.asks_earlier) == bought


@pytest.mark.parametrize("accept", ["exact", "loose", "semantic"])
def test_auto_leaves_windows_to_the_plan(accept: str) -> None:
    how: dict[str, Any] = {"strategy": "auto", "accept": accept}
    planned = resolve(Options(**how), Profile())
    assert (planned.window, planned.after_reject) == (0, "redraft")
    given = resolve(Options(window=8, after_reject="target", **how), Profile())
    assert (given.window, given.after_reject) == (8, "target")


def test_loose_drafts_windows_and_asks_no_verdicts() -> None:
    loose = resolve(Options(strategy="parse", accept="loose"), Profile())
    assert (loose.window, loose.after_reject, loose.min_progress) == (16, "redraft", 4)
    assert (loose.loose_entropy, loose.loose_window) == (0.8, 6)
    assert (loose.asks_verdicts, loose.needs_logprobs) == (False, True)
    fly = resolve(Options(strategy="fly"), Profile(calibrated=True, fusion=FUSION))
    assert (fly.accept, fly.window, fly.after_reject) == ("loose", 15, "redraft")
    assert (fly.loose_entropy, fly.loose_window, fly.min_progress) == (0.3, 6, 1)
    given = resolve(Options(strategy="fly", loose_entropy=0.0, loose_window=0), Profile())
    assert (given.loose_entropy, given.loose_window) == (0.0, 0)


@pytest.mark.parametrize("options", [{"strategy": "fly"}, {"accept": "loose"}])
def test_loose_is_greedy_only(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="use --temperature 0, or --accept exact"):
        resolve(Options(temperature=0.7, **options), Profile())  # type: ignore[arg-type]


def test_a_strategy_with_another_acceptance_is_refused() -> None:
    with pytest.raises(
        UsageError, match="fly has a way of accepting of its own; leave out --accept exact"
    ):
        resolve(Options(strategy="fly", accept="exact"), Profile())
    assert resolve(Options(strategy="fly", accept="loose"), Profile()).accept == "loose"


def test_strategies_that_draft_by_segments() -> None:
    reason = resolve(Options(strategy="specreason"), Profile(calibrated=True, fusion=FUSION))
    assert (reason.turns, reason.accept, reason.window) == ("segments", "semantic", 512)
    assert (reason.question, reason.min_score, reason.score_by) == ("score", 7.0, "greedy")
    assert (reason.asks_verdicts, reason.min_confidence) == (True, None)
    conf = resolve(Options(strategy="confspec"), Profile(tau_prefix=0.8))
    assert (conf.turns, conf.accept, conf.window) == ("segments", "semantic", 512)
    assert (conf.question, conf.min_confidence, conf.tau_prefix) == ("correct", 0.9, 0.8)
    thinking = resolve(Options(strategy="speculative-thinking"), Profile())
    assert (thinking.turns, thinking.accept, thinking.window) == ("takeovers", None, 20)
    assert (thinking.asks_verdicts, thinking.needs_logprobs) == (False, False)
    assert thinking.takeover == 20
    for name in ("parse", "fly"):
        assert resolve(Options(strategy=name), Profile()).turns == "windows"
        assert resolve(Options(strategy=name), Profile()).min_confidence is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "specreason", "accept": "exact"}, "leave out --accept exact"),
        ({"strategy": "speculative-thinking", "accept": "semantic"}, "leave out --accept semantic"),
        ({"strategy": "confspec", "after_reject": "redraft"}, "leave out --after-reject"),
        ({"confidence_by": "verdict"}, "--confidence-by verdict needs --strategy confspec"),
        ({"question": "score"}, "needs --strategy specreason or confspec"),
    ],
)
def test_what_a_strategy_says_itself_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(Options(**options), Profile())  # type: ignore[arg-type]


def test_every_strategy_says_what_it_does() -> None:
    assert list(STRATEGIES) == list(get_args(Strategy))


def test_verdicts_that_could_accept_nothing_are_not_asked_for() -> None:
    never = replace(FUSION, threshold_prefix=math.inf)
    assert resolve(Options(accept="semantic"), Profile(fusion=never)).can_accept_prefixes
    assert resolve(Options(accept="fused"), Profile(fusion=FUSION)).can_accept_prefixes
    assert not resolve(Options(accept="fused"), Profile(fusion=never)).can_accept_prefixes


def test_what_is_given_wins() -> None:
    options = Options(accept="exact", window=0, after_reject="target", tau_full=0.5, tau_prefix=0.0)
    policy = resolve(options, Profile(tau_full=0.7, tau_prefix=0.8))
    assert (policy.window, policy.after_reject) == (0, "target")
    assert (policy.tau_full, policy.tau_prefix) == (0.5, 0.0)
    of_profile = resolve(Options(accept="exact"), Profile(tau_full=0.7, tau_prefix=0.8))
    assert (of_profile.tau_full, of_profile.tau_prefix) == (0.7, 0.8)


def test_fused_needs_weights() -> None:
    with pytest.raises(UsageError, match="--profile FILE"):
        resolve(Options(accept="fused"), Profile())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("strategy", "fast", "parse, speculative, fly, confspec, specreason"),
        ("accept", "all", "exact, loose, semantic, fused"),
        ("after_reject", "stop", "target, redraft"),
        ("rule", "first", "first-failure, longest"),
        ("window", -1, "at least 0"),
        ("tau_full", 1.5, "between 0 and 1"),
        ("max_tokens", 0, "at least 1"),
        ("temperature", float("nan"), "at least 0"),
        ("min_progress", 0, "at least 1"),
    ],
)
def test_impossible_options_are_refused(option: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**{option: value})  # type: ignore[arg-type]


def test_impossible_load_options_are_refused() -> None:
    with pytest.raises(UsageError, match="f16, q8_0, q4_0, f32"):
        LoadOptions(kv_type="q2")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="between 1 and 255"):
        LoadOptions(max_forks=256)


def test_one_stop_string_is_not_taken_for_its_letters() -> None:
    assert Options(stop="END").stop == ("END",)  # type: ignore[arg-type]
