"""What is learnt from answers: rates, an account of losses, confidence, costs."""

from __future__ import annotations

import math

import pytest

from parse_local.controller import (
    Confidence,
    Controller,
    DriftingCurve,
    FreeRates,
    guess_costs,
)
from parse_local.costs import CostCurve, PairCosts
from parse_local.learning import Account, Rate


def test_a_rate_moves_from_its_prior_to_what_was_counted() -> None:
    rate = Rate(0.5, weight=4.0, keep=1.0)
    assert rate.value == 0.5
    rate.update(3, 4)
    assert rate.value == (3 + 2) / (4 + 4)
    forgetful = Rate(0.5, weight=1.0, keep=0.5)
    forgetful.update(4, 4)
    forgetful.update(0, 4)
    assert forgetful.value == (2 + 0.5) / (6 + 1)


def test_an_account_bounds_what_is_lost() -> None:
    account = Account(start=10.0, most=12.0, allowance=0.02)
    account.book(-11.0)
    assert account.balance == -1.0
    account.wrote(100)
    assert account.balance == pytest.approx(1.0)
    account.book(50.0)
    assert account.balance == 12.0


def test_what_no_decode_has_made_holds_for_long_or_not_at_all() -> None:
    rates = FreeRates()
    for _ in range(20):
        rates.update(0, 8)
        rates.update(8, 8)
    first, others = rates.chances
    assert first == pytest.approx(0.5, abs=0.05)
    assert others > 0.95
    for _ in range(40):
        rates.update(0, 8)
    low = rates.chances[0]
    assert low < 0.2
    for _ in range(200):  # not read any more, it gets another chance
        rates.forget()
    assert rates.chances[0] > 2 * low


def test_confidence_is_calibrated_by_what_the_target_says() -> None:
    confidence = Confidence()
    sure, unsure = math.log(0.98), math.log(0.4)
    before = confidence.chance(sure)
    assert confidence.chance(unsure) < before
    # The draft is unsure in vain: the target agrees with all of it.
    for _ in range(40):
        confidence.update([sure, unsure, sure], n_agreed=3)
    assert confidence.chance(unsure) > 0.9
    assert confidence.chance(sure) > before
    # Now each sure token is wrong, and what follows it says nothing.
    for _ in range(40):
        confidence.update([sure, unsure, unsure], n_agreed=0)
    assert confidence.chance(sure) < 0.2


def test_a_draft_that_is_sure_and_wrong_is_found_out_in_every_bucket_at_once() -> None:
    confidence = Confidence()
    for _ in range(6):
        confidence.update([math.log(0.98)], n_agreed=0)
    assert confidence.chance(math.log(0.9999)) < 0.5  # never seen, and 0.99 by itself
    shares = confidence.chances()
    assert sum(share for share, _ in shares) == pytest.approx(1.0)


FLAT = CostCurve(((1, 1.0), (512, 10.0)))
CHEAP = PairCosts(CostCurve(((1, 0.1), (512, 1.0))), FLAT, FLAT)


def test_the_plan_follows_what_is_learnt() -> None:
    controller = Controller(CHEAP, learns_costs=False)
    assert controller.drafts
    for _ in range(20):
        controller.confidence.update([math.log(0.98)] * 4, n_agreed=0)
        controller.updated()
    assert not controller.drafts
    assert controller.plan().mean_window == 0


def test_costs_follow_the_runs_own_timings() -> None:
    controller = Controller(CHEAP)
    assert controller.drafts
    for _ in range(30):  # the draft turns out to be as slow as the target
        controller.drafted(1, 1.0)
        controller.updated()
    assert controller.costs.draft.seconds(1) == pytest.approx(1.0, rel=0.1)
    assert not controller.drafts
    controller.read(False, 1, 5.0)
    assert controller.costs.target_bare.seconds(1) == 1.0
    fixed = Controller(CHEAP, learns_costs=False)
    fixed.drafted(1, 1.0)
    assert fixed.costs.draft.seconds(1) == 0.1


def test_the_price_of_a_token_follows_the_machine_where_nothing_is_drafted() -> None:
    # N-grams are read by it, and no draft says when it has changed.
    dear = PairCosts(CostCurve(((1, 2.0), (512, 20.0))), FLAT, FLAT)
    controller = Controller(dear)
    for seconds in (1.0, 1.4, 0.7):
        for _ in range(30):
            controller.read(False, 1, seconds)
            controller.plan()
        assert not controller.drafts
        assert controller.plan().seconds_per_token == pytest.approx(seconds)
        assert controller.saved_at_best() == 0.0


def test_unmeasured_costs_are_those_of_the_sizes_and_batches_look_cheap() -> None:
    costs = guess_costs(1_000_000_000, 3_000_000_000, slope=0.15)
    assert costs.target.seconds(1) == pytest.approx(3 * costs.draft.seconds(1))
    assert costs.target.seconds(11) == pytest.approx(2.5 * costs.target.seconds(1))
    assert Controller(costs).drafts
    costs.target.observe(11, 1.5)
    assert costs.target.seconds(11) == pytest.approx(1.5)
    on_cpu = guess_costs(1_000_000_000, 3_000_000_000)
    assert on_cpu.target.seconds(11) == pytest.approx(4 * on_cpu.target.seconds(1))
    assert Controller(on_cpu).drafts


def test_one_bad_moment_does_not_make_a_size_dear_for_good() -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=False)
    for _ in range(3):
        curve.observe(16, 0.3)
    curve.observe(32, 3.0)  # ten times what two of 16 cost
    assert curve.seconds(32) < 0.8
    for _ in range(3):  # but if it costs that much again and again, it does
        curve.observe(32, 3.0)
    assert curve.seconds(32) > 2


def test_a_machine_that_gets_faster_makes_every_size_cheaper() -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=True)
    for _ in range(60):
        curve.observe(16, curve.seconds(16) * 0.9)
    before = CostCurve(((1, 0.1), (64, 0.7)))
    assert curve.seconds(16) < 0.5 * before.seconds(16)
    assert curve.seconds(64) < 0.8 * before.seconds(64)


@pytest.mark.parametrize("measured", [True, False])
def test_three_decodes_show_that_other_programs_have_gone(measured: bool) -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=measured)
    for n in (1, 8) * 20:
        curve.observe(n, 0.1 if n == 1 else 0.2)
    for _ in range(40):  # twenty times slower while they ran
        curve.observe(1, 2.0)
    assert curve.seconds(1) == pytest.approx(2.0, rel=0.1)
    assert curve.seconds(8) > 0.8  # not read meanwhile, but hardly as fast as before
    for _ in range(3):
        curve.observe(1, 0.1)
    assert curve.seconds(1) == pytest.approx(0.1, rel=0.1)
    assert curve.seconds(8) < 0.4
    for _ in range(8):
        curve.observe(8, 0.2)
    assert curve.seconds(8) == pytest.approx(0.2, rel=0.1)


def test_two_stalls_change_nothing() -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=True)
    for seconds in [0.1] * 5 + [2.0, 2.0, 0.1, 2.0, 2.0]:
        curve.observe(1, seconds)
    assert curve.seconds(1) < 0.16


@pytest.mark.parametrize("measured", [True, False])
def test_stalls_now_and_then_make_no_other_size_dearer(measured: bool) -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=measured)
    for _ in range(5):
        curve.observe(1, 0.1)
        curve.observe(8, 0.2)
    for i in range(2000):  # one decode in twenty takes half as long again
        curve.observe(1, 0.15 if i % 20 == 7 else 0.1)
    assert curve.seconds(1) == pytest.approx(0.1, rel=0.05)
    assert curve.seconds(8) == pytest.approx(0.2, rel=0.1)


def test_a_slower_machine_is_slower_at_every_size_and_so_is_a_faster_one() -> None:
    curve = DriftingCurve(CostCurve(((1, 0.1), (64, 0.7))), measured=True)
    for factor in (1.3, 0.8, 1.0):
        for _ in range(40):
            curve.observe(1, factor * 0.1)
        for n, seconds in ((1, 0.1), (8, 0.1 + 7 * 0.6 / 63), (64, 0.7)):
            assert curve.seconds(n) == pytest.approx(factor * seconds, rel=0.01)


def test_a_plain_token_is_due_when_none_was_timed_for_long() -> None:
    controller = Controller(CHEAP)
    for _ in range(48):
        assert not controller.plain_due()
        controller.read(False, 8, 0.2)
    due = 0
    for _ in range(480):
        controller.read(False, 8, 0.2)
        if controller.plain_due():
            due += 1
            controller.read(False, 1, 0.1)
    assert due == pytest.approx((480 + due) * 3 / 48, abs=1.5)
    for _ in range(100):  # whoever proposes at every step leaves no plain one
        controller.read(False, 8, 0.2)
        assert not (controller.plain_due() and controller.plain_due() and controller.plain_due())


def test_how_long_an_answer_still_gets() -> None:
    controller = Controller(CHEAP)
    assert controller.n_expected(0, 1000) == 200
    assert controller.n_expected(150, 1000) == 50
    assert controller.n_expected(500, 1000) == 50
    assert controller.n_expected(0, 16) == 16
    for _ in range(30):
        controller.n_tokens.update(20, 1)
    assert controller.n_expected(0, 1000) < 60
