"""The strategy "auto": the target's own text, drafts where they pay, a bounded loss where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import answer, ask, greedy_text
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.controller import Controller
from parse_local.costs import CostCurve, PairCosts
from parse_local.events import Drafted, Result, Text
from parse_local.llama import speculator

# A target at 85 ms a token that reads 16 for the price of three, and a draft at 25 ms.
TARGET = CostCurve(((1, 0.085), (4, 0.13), (16, 0.272), (64, 0.77), (512, 6.0)))
COSTS = PairCosts(CostCurve(((1, 0.025), (512, 2.5))), TARGET, TARGET)
DEAR_DRAFT = PairCosts(CostCurve(((1, 0.06), (512, 6.0))), TARGET, TARGET)
SLOW_DRAFT = PairCosts(CostCurve(((1, 0.2), (512, 5.0))), TARGET, TARGET)

DRAFTS: dict[str, dict[str, Any]] = {
    "the target itself": {"seed": 1},
    "close": {"seed": 2, "weights_from": 1, "noise": 0.05},
    "hostile": {"seed": 3},
    "close, other vocabulary": {"seed": 2, "weights_from": 1, "vocab_seed": 5},
    "hostile, other vocabulary": {"seed": 3, "vocab_seed": 6},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    target = tiny(seed=1, bias=READABLE)
    return {
        name: load_once(target=target, draft=tiny(bias=READABLE, **draft))
        for name, draft in DRAFTS.items()
    }


def reset(engine: Any, costs: PairCosts = COSTS) -> Any:
    """The engine as if it had just been loaded, on a machine with these costs."""
    engine.forget()
    engine.controller = Controller(costs, learns_costs=False)
    return engine


def seconds(result: Result, costs: PairCosts) -> float:
    """What all decodes of an answer cost on that machine."""
    total = sum(p.n * costs.draft.seconds(p.n_tokens) for p in result.draft_passes)
    for p in result.target_passes:
        curve = costs.target if p.n_rows == p.n_tokens else costs.target_bare
        total += p.n * curve.seconds(p.n_tokens)
    return total


@pytest.mark.parametrize("costs", [COSTS, SLOW_DRAFT], ids=["fast draft", "slow draft"])
@pytest.mark.parametrize("draft", sorted(DRAFTS))
def test_the_text_is_the_targets(engines: dict[str, Any], draft: str, costs: PairCosts) -> None:
    engine = reset(engines[draft], costs)
    for question in ("hello there", "日本語で答えて。", "Write the code."):
        for more in ({}, {"stop": ("gw", "%")}, {"repeat_penalty": 1.3}, {"window": 3}):
            common = {"max_tokens": 60, **{k: v for k, v in more.items() if k != "window"}}
            alone = answer(engine, question, strategy="target", **common)
            found = answer(engine, question, strategy="auto", **{**common, **more})
            assert found.text == alone.text
            assert found.finish_reason == alone.finish_reason
            assert all(r.n_accept == r.n_exact for r in found.rounds)


@pytest.mark.parametrize("draft", sorted(DRAFTS))
def test_a_seed_gives_the_targets_own_text(engines: dict[str, Any], draft: str) -> None:
    # Whatever the plan, which depends on measured times.
    how: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 50}
    texts = {
        answer(reset(engines[draft], costs), "hello there", strategy=strategy, **how).text
        for strategy in ("auto", "target")
        for costs in (COSTS, SLOW_DRAFT)
    }
    assert len(texts) == 1


@pytest.fixture(scope="module")
def with_ngrams(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    """Pairs that look up n-grams as well."""
    if not speculator.available():
        pytest.skip("this installation has no speculators")
    target = tiny(seed=1, bias=READABLE)
    return {
        name: load_once(target=target, draft=tiny(bias=READABLE, **DRAFTS[name]), spec="ngram")
        for name in ("the target itself", "close", "hostile", "close, other vocabulary")
    }


@pytest.mark.parametrize("draft", ["the target itself", "close", "hostile"])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seed"])
def test_ngrams_between_drafts_change_no_text(
    with_ngrams: dict[str, Any], draft: str, how: dict[str, Any]
) -> None:
    engine = reset(with_ngrams[draft])
    for question in ("hello there hello there", "日本語で答えて。"):
        alone = answer(engine, question, strategy="target", max_tokens=120, **how)
        found = answer(engine, question, strategy="auto", max_tokens=120, **how)
        assert found.text == alone.text
        assert found.usage.completion_tokens == alone.usage.completion_tokens


@pytest.mark.parametrize("right", [True, False])
def test_ngrams_are_read_for_as_long_as_they_hold(
    with_ngrams: dict[str, Any], right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = reset(with_ngrams["the target itself"])
    prompt = engine.target.prompt(ask("hello there"))
    own = greedy_text(engine.target.model, prompt, 200)

    def lookup(sequence: list[int], limit: int) -> list[int]:
        n = len(sequence) - len(prompt)
        found = own[n : n + min(limit, 16)]
        return found if right else [(token + 1) % 250 for token in found]

    monkeypatch.setattr(engine.speculation, "lookup", lookup)
    found = answer(engine, "hello there", strategy="auto", max_tokens=200)
    # The first decode of a draft reads the prompt.
    drafted = sum(p.n * p.n_tokens for p in found.draft_passes) - len(prompt)
    plain_s = 200 * COSTS.target.seconds(1)
    if right:  # one token is the target's own, 16 come with each round
        assert drafted < 10
        assert len(found.rounds) < 25
        assert seconds(found, COSTS) < 0.3 * plain_s
        assert engine.controller.account.balance < 22  # earned nothing that drafts could lose
    else:
        assert engine.controller.lookup_rates(following=False).chances[0] < 0.55
        assert drafted > 100  # the draft writes it all the same
        assert seconds(found, COSTS) < 0.7 * plain_s


def test_a_draft_that_only_does_what_ngrams_do_is_not_run(
    with_ngrams: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = reset(with_ngrams["the target itself"])

    def all_held(
        sequence: list[int], start: int, choose: Callable[[int], int]
    ) -> Iterator[tuple[int, int]]:
        while start < len(sequence):
            n = choose(16)
            yield n, n
            start += n + 1

    def drafted() -> int:
        engine.forget()
        found = answer(engine, "hello there", strategy="auto", max_tokens=150)
        assert found.text == alone.text
        return found.tokens.draft_decoded

    alone = answer(engine, "hello there", strategy="target", max_tokens=150)
    assert drafted() > 100  # better than plain, and no n-grams
    with monkeypatch.context() as patch:
        patch.setattr(engine.speculation, "retrace", all_held)
        for _ in range(3):
            drafted()
        assert drafted() == 0  # not in probes either
    for _ in range(100):  # answers without drafts
        engine.controller.hindsight.forget()
    assert drafted() > 100


def test_a_draft_that_promises_too_little_is_tried_once_that_is_earned(
    engines: dict[str, Any],
) -> None:
    # By the plan, which thinks little of the draft, it saves over an answer hardly more than
    # its reading of the prompt costs. In truth it is always right.
    engine = reset(engines["the target itself"])
    for _ in range(2):
        engine.controller.confidence.update([-0.01] * 5, n_agreed=1)
    engine.controller.updated()
    drafted, spent = [], []
    for i in range(12):
        engine.forget()
        found = answer(engine, f"{i} " + "hello there " * 5, strategy="auto", max_tokens=60)
        drafted.append(found.tokens.draft_decoded)
        spent.append(seconds(found, COSTS))
    first = next(i for i, n in enumerate(drafted) if n)
    assert 1 <= first < 8
    assert all(drafted[first:])  # it was worth it
    assert spent[-1] < 0.7 * spent[0]


@pytest.mark.parametrize("spec", ["ngram", "none", "draft"])
def test_a_draft_is_compared_with_what_is_known_without_decoding(
    load: Callable[..., Any], tiny: Callable[..., Path], spec: str
) -> None:
    if spec != "none" and not speculator.available():
        pytest.skip("this installation has no speculators")
    target, draft = tiny(seed=1, bias=READABLE), tiny(seed=2, weights_from=1, bias=READABLE)
    engine = reset(load(target=target, draft=draft, spec=spec))
    found = answer(engine, "hello there", strategy="auto", max_tokens=100)
    assert found.tokens.draft_decoded > 50
    known = engine.controller.hindsight.gain(0.0) != 0.0
    assert known == (spec != "draft")


def test_a_good_draft_writes_nearly_everything(engines: dict[str, Any]) -> None:
    engine = reset(engines["the target itself"])
    for _ in range(3):
        found = answer(engine, "hello there", strategy="auto", max_tokens=150)
    assert found.accepted_share > 0.9
    assert len(found.rounds) <= 150 / 12  # long windows, once it is known to be good
    assert seconds(found, COSTS) < 0.7 * 150 * 0.085


def test_a_plain_token_that_is_due_is_one_token(engines: dict[str, Any]) -> None:
    engine = reset(engines["the target itself"])
    found = answer(engine, "hello there", strategy="auto", window=3, max_tokens=400)
    plain = sum(p.n for p in found.target_passes if p.n_tokens == 1)
    assert len(found.rounds) > 60  # long enough for some to be due
    assert 3 < plain <= 3 + 3 * (1 + len(found.rounds) // 48)


@pytest.mark.parametrize(("noise", "least"), [(0.002, 0.95), (0.01, 1.0)])
def test_the_plan_is_as_good_as_the_best_fixed_window(
    load_once: Callable[..., Any], tiny: Callable[..., Path], noise: float, least: float
) -> None:
    # The target agrees with 99% and 95% of the tokens; windows of 16 and 8 are the best ones.
    draft = tiny(seed=2, weights_from=1, noise=noise, bias=READABLE)
    engine = reset(load_once(target=tiny(seed=1, bias=READABLE), draft=draft))
    spent: Counter[int | str] = Counter()
    for i in range(4):
        for window in (4, 8, 16, 64, "auto"):
            engine.forget()
            how = {"strategy": "auto"} if window == "auto" else {"window": window}
            found = answer(engine, f"question number {i}", max_tokens=150, **how)
            spent[window] += seconds(found, COSTS)
    assert min(v for w, v in spent.items() if w != "auto") >= least * spent["auto"]


def test_the_first_token_is_the_targets_own_and_comes_at_once(engines: dict[str, Any]) -> None:
    engine = reset(engines["the target itself"])
    events = list(engine.stream(ask("hello there"), Options(strategy="auto", max_tokens=40)))
    first = events[0]
    assert isinstance(first, Text)
    assert first.source == "target"
    assert any(isinstance(e, Drafted) for e in events)


def test_a_draft_that_cannot_pay_is_never_run(engines: dict[str, Any]) -> None:
    engine = reset(engines["the target itself"], SLOW_DRAFT)
    engine.controller.account.balance = 0.0
    found = answer(engine, "hello there", strategy="auto", max_tokens=60)
    assert found.tokens.draft_decoded == 0
    assert found.rounds == ()
    # An answer too short to earn what reading the prompt costs the draft.
    reset(engine).controller.account.balance = 0.1
    found = answer(engine, "hello there " * 40, strategy="auto", max_tokens=3)
    assert found.tokens.draft_decoded == 0


def test_nothing_is_spent_on_finding_out_where_even_a_good_draft_gains_nothing(
    engines: dict[str, Any],
) -> None:
    # Three percent of rejected tokens would eat up what the others save at this price.
    engine = reset(engines["close"], DEAR_DRAFT)
    for i in range(4):
        engine.forget()
        found = answer(engine, f"{i} hello there", strategy="auto", max_tokens=150)
        assert found.tokens.draft_decoded == 0


@pytest.mark.parametrize("draft", ["hostile", "hostile, other vocabulary"])
def test_hostile_drafts_cost_a_bounded_amount(engines: dict[str, Any], draft: str) -> None:
    engine = reset(engines[draft])
    plain_s = COSTS.target.seconds(1)
    lost = n_tokens = 0.0
    for i in range(20):
        spent = {}
        for strategy in ("target", "auto"):
            engine.forget()  # every prompt is new to both models
            found = answer(engine, f"question {i}", strategy=strategy, max_tokens=100)
            spent[strategy] = seconds(found, COSTS)
        n_tokens += found.usage.completion_tokens
        lost += spent["auto"] - spent["target"]
    # 16 tokens' worth and 32 for reading prompts, once, and 2% of the rest.
    assert lost <= (48 + 0.02 * n_tokens + 5) * plain_s  # 5: the last attempt may end below 0
    assert lost <= 0.05 * n_tokens * plain_s
    # It is still tried now and then: the text may change.
    assert found.tokens.draft_decoded > 0 or engine.controller.account.balance < 10


def test_a_hostile_draft_that_turns_good_is_found_out(engines: dict[str, Any]) -> None:
    engine = reset(engines["the target itself"])
    confidence = engine.controller.confidence
    for _ in range(30):
        confidence.update([-0.01] * 4, n_agreed=0)
    engine.controller.updated()
    assert not engine.controller.drafts
    shares = [
        answer(engine, "hello there", strategy="auto", max_tokens=200).accepted_share
        for _ in range(8)
    ]
    assert shares[-1] > 0.8


def test_windows_stop_where_the_draft_is_unsure(engines: dict[str, Any]) -> None:
    engine = reset(engines["close"])
    confidence = engine.controller.confidence
    for _ in range(60):  # sure tokens hold, unsure ones never do
        confidence.update([-0.001] * 12 + [-1.5], n_agreed=12)
    engine.controller.updated()
    sure, unsure = confidence.chance(-0.001), confidence.chance(-1.5)
    assert engine.controller.plan().goes_on(4, sure**4)
    assert not engine.controller.plan().goes_on(4, sure**3 * unsure)


def test_without_a_draft_model_the_target_writes(
    load: Callable[..., Any], tiny: Callable[..., Path]
) -> None:
    engine = load(target=tiny(seed=1))
    alone = answer(engine, "hello there", strategy="target", max_tokens=20)
    assert answer(engine, "hello there", strategy="auto", max_tokens=20).text == alone.text


# verdicts

CHEAP_QUESTIONS = PairCosts(COSTS.draft, TARGET, CostCurve(((1, 0.01), (512, 1.0))))
VERDICTS: dict[str, Any] = {"strategy": "auto", "accept": "semantic", "max_tokens": 120}


@pytest.fixture(scope="module")
def ending(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> Any:
    """A pair whose drafts end."""
    return load_once(target=tiny(seed=1), draft=tiny(seed=3, bias={"<|im_end|>": 16.0}))


def test_whole_answers_are_drafted_where_verdicts_accept_them(ending: Any) -> None:
    engine = reset(ending, CHEAP_QUESTIONS)
    engine.controller.whole.update(100, 100)
    found = answer(engine, "hello there", tau_full=0.0, **VERDICTS)
    (only,) = found.rounds
    assert only.whole
    assert only.boundaries[-1].complete
    assert not only.read  # its rows would have cost more than the verdict
    n_own = found.usage.completion_tokens - only.n_draft
    assert n_own == 3  # the first of a process, by which its speed-up is measured
    assert found.tokens.target_decoded == found.usage.prompt_tokens + n_own + only.n_draft
    # Rejected all the same, it is read again with its rows.
    engine.controller.whole.update(1000, 1000)
    engine.forget()
    found = answer(engine, "hello there", tau_full=1.0, tau_prefix=1.0, **VERDICTS)
    assert found.rounds[0].read
    assert found.text == answer(engine, "hello there", strategy="target", max_tokens=120).text
    # Where they never do, windows are written, and nothing is asked.
    engine.controller.whole.update(0, 100_000)
    engine.controller.exact.update(0, 10_000)
    found = answer(engine, "hello there", tau_full=1.0, **VERDICTS)
    assert found.tokens.suffix_decoded == 0
    assert found.text == answer(engine, "hello there", strategy="target", max_tokens=120).text


@pytest.mark.parametrize("accept", ["exact", "semantic"])
def test_the_first_token_is_on_the_screen_before_the_draft_reads_the_prompt(
    ending: Any, accept: str
) -> None:
    engine = reset(ending, CHEAP_QUESTIONS)
    engine.controller.whole.update(100, 100)  # a whole answer would be drafted
    options = Options(accept=accept, tau_full=0.0, max_tokens=60)
    events = []
    for event in engine.stream(ask("hello there"), options):
        if not events:
            # The target has read the prompt and decoded its last token, and nothing else ran.
            assert engine.target.context.n_decoded == 23
            assert engine.draft.context.n_decoded == 0
        events.append(event)
    assert isinstance(events[0], Text)
    assert events[0].source == "target"
    assert any(isinstance(e, Drafted) for e in events)


def test_prefix_verdicts_are_searched_for_or_not_bought(engines: dict[str, Any]) -> None:
    asked, kept = {}, {}
    for chance in (1, 0):
        engine = reset(engines["hostile"], CHEAP_QUESTIONS)
        engine.controller.whole.update(400, 400)
        for _ in range(50):
            engine.controller.prefix.update(10 * chance, 10)
            engine.controller.prefix_share.update(800, 1000)
        found = answer(engine, "hello there", delta=4, tau_prefix=0.0, **VERDICTS)
        asked[chance] = len(found.rounds[0].boundaries)
        kept[chance] = found.rounds[0].n_accept
    # All prefixes pass: the last of some thirty is found by asking at a few.
    assert kept[1] >= 112
    assert 3 <= asked[1] < 16
    assert (asked[0], kept[0]) == (0, 0)
