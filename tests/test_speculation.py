"""Token-level speculation: the tail as a guess, the governor's arithmetic, and lossless steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.errors import SpeculatorError, UsageError
from parse_local.llama import speculator
from parse_local.llama.sampler import Sampler
from parse_local.speculation import Governor, Speculation, Tail

Tiny = Callable[..., Path]
needs_speculators = pytest.mark.skipif(
    not speculator.available(), reason="a stock llama-cpp-python has no speculators"
)


# the tail


def test_the_first_guess_takes_the_targets_token_for_a_substitute() -> None:
    tail = Tail([10, 11, 12, 13])
    assert tail.propose([1, 2, 99], 8) == [11, 12, 13]
    assert tail.propose([1, 2, 99], 2) == [11, 12]


def test_a_token_that_the_tail_holds_further_on_needs_two_that_agree_to_jump() -> None:
    tail = Tail([10, 11, 12, 13, 14])
    tail.advance(1, followed=False)  # 99 was written, not what the tail said
    assert tail.propose([1, 99, 13], 8) == []
    assert tail.propose([1, 12, 13], 8) == [14]


def test_the_expected_place_needs_one_token_that_agrees() -> None:
    tail = Tail([10, 11, 12, 13])
    tail.advance(1, followed=False)  # expects 12 next: behind 11
    assert tail.propose([1, 99, 11], 8) == [12, 13]
    assert tail.propose([1, 99, 98], 8) == []


def test_after_following_the_tail_the_next_token_is_a_substitute_again() -> None:
    tail = Tail([10, 11, 12, 13, 14, 15])
    assert tail.propose([1, 99], 3) == [11, 12, 13]
    tail.advance(3, followed=True)  # 11, 12 and, in place of 13, something else
    assert tail.propose([1, 99, 11, 12, 98], 3) == [14, 15]


def test_the_place_that_agrees_most_wins() -> None:
    tail = Tail([5, 6, 7, 8, 5, 6, 7, 9])
    assert tail.propose([4, 5, 6, 7], 1) == [8]  # both agree in three tokens: the nearer one
    assert tail.propose([8, 5, 6, 7], 1) == [9]  # this one in four


def test_nothing_follows_the_end_of_the_tail() -> None:
    assert Tail([]).propose([1], 4) == []
    assert Tail([10]).propose([1, 99], 4) == []


# on paper


class Repeats:
    """Proposes what followed the last token where it came up before."""

    kind = "ngram-simple"

    def begin(self, sequence: Sequence[int]) -> None:
        self.sequence = list(sequence)

    def propose(self, n_max: int) -> list[int]:
        last = self.sequence[-1]
        before = [i for i, token in enumerate(self.sequence[:-1]) if token == last]
        return self.sequence[before[-1] + 1 :][:n_max] if before else []

    def accept(self, tokens: Sequence[int]) -> None:
        self.sequence += tokens


def test_a_text_is_written_again_without_a_decode(load: Callable[..., Any], tiny: Tiny) -> None:
    context = load(target=tiny()).target.context
    speculation = Speculation(context, Repeats(), n_max=3)
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 9, 9, 9]
    found = list(speculation.retrace(text, 5, lambda n: n))
    # 5 is new; 1 brings 2 3 4, which hold; after the 9 that follows, the second 9 is no news.
    assert found == [(0, 0), (3, 3), (0, 0), (1, 1)]
    assert list(speculation.retrace(text, 5, lambda n: min(n, 1)))[:3] == [(0, 0), (1, 1), (1, 1)]
    alone = Speculation(context).retrace(text, 5, lambda n: n)
    assert list(alone) == [(0, 0)] * 7
    assert context.n_decoded == 0


@needs_speculators
def test_on_paper_the_same_ngrams_are_found_as_in_writing(
    load: Callable[..., Any], tiny: Tiny
) -> None:
    context = load(target=tiny()).target.context
    with closing(speculator.Speculator("ngram-simple", context, n_max=4)) as ngrams:
        speculation = Speculation(context, ngrams, n_max=4)
        text = [*range(10, 30), *range(12, 24), 50, 51]
        steps = list(speculation.retrace(text, 23, lambda n: n))
        assert steps[0] == (4, 4)  # behind 12 13 14
        assert speculation.lookup(text[:23], 4) == text[23:27]
        assert sum(n_held + 1 for _, n_held in steps) >= len(text) - 23


# the governor


def test_nothing_is_proposed_before_a_plain_step_was_measured() -> None:
    governor = Governor()
    assert governor.choose("tail", 8) == 0
    governor.plain(1.0)
    assert governor.choose("tail", 8) > 0


def test_the_size_with_the_best_expected_speed_is_chosen() -> None:
    # Untried: rate 0.7, a proposed token costs half a plain step. One token gives
    # 1.7 for 1.5, two 2.19 for 2, three 2.53 for 2.5.
    governor = Governor()
    governor.plain(1.0)
    assert governor.choose("tail", 8) == 1
    # After 40 of 40 tokens the rate is (40 + 2.8) / 44 = 0.973, measured slope 0: all of them.
    for _ in range(10):
        governor.speculated("tail", 4, 5, 1.0)
    assert governor.rate("tail") > 0.95
    assert governor.choose("tail", 8) == 8
    assert governor.choose("ngram", 8) == 8  # costs are shared, 1 to 8 tokens cost the same
    assert governor.rate("ngram") == pytest.approx(0.7)


def test_rates_count_up_to_the_first_rejection() -> None:
    governor = Governor()
    governor.plain(1.0)
    governor.speculated("ngram", 8, 3, 2.0)  # two accepted, the third refused, five not looked at
    assert governor.rate("ngram") == pytest.approx((2 + 0.7 * 4) / (3 + 4))


def test_losses_are_bounded() -> None:
    # Nothing is ever accepted and every proposal doubles the step: the worst a source can be.
    governor = Governor()
    plain = spent = 0.0
    for _ in range(2000):
        plain += 1.0
        if governor.plain_s is not None and governor.choose("draft-simple", 8):
            governor.speculated("draft-simple", 8, 1, 2.0)
            spent += 2.0
        else:
            governor.plain(1.0)
            spent += 1.0
    assert spent / plain < 1.03


def test_an_empty_account_stops_even_a_promising_source() -> None:
    governor = Governor()
    governor.plain(1.0)
    for _ in range(2):
        governor.speculated("draft-eagle3", 0, 1, 5.0)  # asking alone costs four plain steps
    assert governor.choose("tail", 8) == 0
    for _ in range(400):
        governor.plain(1.0)
    assert (
        governor.choose("tail", 8) > 0
    )  # 2% of 400 steps earn the eight that were lost less three


def test_a_stalled_step_does_not_set_the_measure() -> None:
    governor = Governor()
    governor.plain(1.0)
    governor.plain(100.0)
    assert governor.plain_s == pytest.approx(1.2)


# steps on a real context


class Scripted:
    """A proposer that says what it was told to."""

    kind = "ngram-scripted"

    def __init__(self, *proposals: Sequence[int]) -> None:
        self.proposals = [list(p) for p in proposals]
        self.accepted: list[list[int]] = []
        self.begun: list[list[int]] = []

    def begin(self, sequence: Sequence[int]) -> None:
        self.begun.append(list(sequence))

    def propose(self, n_max: int) -> list[int]:
        return self.proposals.pop(0)[:n_max] if self.proposals else []

    def accept(self, tokens: Sequence[int]) -> None:
        self.accepted.append(list(tokens))


@pytest.fixture(scope="module")
def writer(load_once: Callable[..., Any], tiny: Tiny) -> Any:
    return load_once(target=tiny(seed=1, bias=READABLE), target_only=True).target


def greedy(writer: Any, prompt: list[int], n: int) -> list[int]:
    """The next `n` tokens, one at a time."""
    sampler = Sampler(writer.model)
    writer.context.prefill(prompt)
    sequence = list(prompt)
    while len(sequence) < len(prompt) + n:
        row = writer.context.last_row(sequence[-1:])[0]
        sequence.append(sampler.choose(row, sequence))
    return sequence[len(prompt) :]


def test_a_step_keeps_what_the_target_agrees_with_and_its_own_next_token(writer: Any) -> None:
    prompt = writer.prompt(ask("hello"))
    expected = greedy(writer, prompt, 8)
    wrong = (expected[3] + 1) % 256
    proposer = Scripted([*expected[:3], wrong, *expected[4:6]], expected[4:6], [])
    speculation = Speculation(writer.context, proposer, n_max=8)
    writer.context.prefill(prompt)
    speculation.begin(prompt)
    writer.context.start_count()
    sampler = Sampler(writer.model)
    sequence = list(prompt)

    assert speculation.step(sequence, sampler, 100) == expected[:4]
    assert writer.context.tokens == prompt + expected[:3]  # the rejected cells are gone
    assert writer.context.n_decoded == 7  # the last token and six proposals, in one decode
    sequence += expected[:4]
    assert speculation.step(sequence, sampler, 100) == expected[4:7]
    assert writer.context.tokens == prompt + expected[:6]
    sequence += expected[4:7]
    assert speculation.step(sequence, sampler, 100) == expected[7:8]
    assert (speculation.n_proposed, speculation.n_accepted) == (8, 5)
    assert proposer.begun == [prompt]
    assert proposer.accepted == [expected[:4], expected[4:7], expected[7:8]]


@pytest.mark.parametrize("architecture", ["mamba", "lfm2"])
def test_a_memory_that_cannot_be_cut_comes_back_to_where_the_proposals_began(
    load: Callable[..., Any], tiny: Tiny, architecture: str
) -> None:
    target = load(
        target=tiny(seed=1, architecture=architecture, n_layer=2), target_only=True
    ).target
    prompt = target.prompt(ask("hello there"))
    expected = greedy(target, prompt, 8)
    assert not any(target.model.is_eog(t) for t in expected)
    wrong = (expected[3] + 1) % 256
    proposer = Scripted([*expected[:3], wrong, *expected[4:6]], [wrong], expected[5:7])
    speculation = Speculation(target.context, proposer, n_max=8)
    target.context.prefill(prompt)
    speculation.begin(prompt)
    target.context.start_count()
    sampler = Sampler(target.model)
    sequence = list(prompt)
    decoded = 0
    # Behind a rejection the last token and what was accepted are decoded again.
    for tokens, n_decoded in ((expected[:4], 7 + 4), (expected[4:5], 2 + 1), (expected[5:8], 3)):
        assert speculation.step(sequence, sampler, 100) == tokens
        sequence += tokens
        assert target.context.tokens == sequence[:-1]
        decoded += n_decoded
        assert target.context.n_decoded == decoded


def test_no_more_tokens_than_wanted(writer: Any) -> None:
    prompt = writer.prompt(ask("hello"))
    expected = greedy(writer, prompt, 8)
    speculation = Speculation(writer.context, Scripted(expected, expected), n_max=8)
    writer.context.prefill(prompt)
    speculation.begin(prompt)
    sampler = Sampler(writer.model)
    assert speculation.step(prompt, sampler, 3) == expected[:3]
    writer.context.truncate(len(prompt) - 1)
    assert speculation.step(prompt, sampler, 1) == expected[:1]


def test_a_proposal_ends_behind_an_end_token(writer: Any) -> None:
    prompt = writer.prompt(ask("hello"))
    expected = greedy(writer, prompt, 2)
    end = writer.model.end_of_turn_token
    speculation = Speculation(writer.context, Scripted([expected[0], end, 1, 2]), n_max=8)
    writer.context.prefill(prompt)
    speculation.begin(prompt)
    assert speculation.step(prompt, Sampler(writer.model), 100) == expected
    assert (speculation.n_proposed, speculation.n_accepted) == (2, 1)


def test_a_failing_speculator_does_not_end_the_answer(writer: Any) -> None:
    class Failing(Scripted):
        def propose(self, n_max: int) -> list[int]:
            raise SpeculatorError("Speculation (test) failed: on purpose.")

    prompt = writer.prompt(ask("hello"))
    expected = greedy(writer, prompt, 2)
    speculation = Speculation(writer.context, Failing(), n_max=8)
    writer.context.prefill(prompt)
    speculation.begin(prompt)
    sampler = Sampler(writer.model)
    assert speculation.step(prompt, sampler, 100) == expected[:1]
    assert speculation.step([*prompt, *expected[:1]], sampler, 100) == expected[1:]


def test_a_tail_that_holds_is_taken_in_few_decodes(writer: Any) -> None:
    prompt = writer.prompt(ask("hello"))
    expected = greedy(writer, prompt, 33)
    wrong = (expected[0] + 1) % 256  # what the draft had where the target wrote expected[0]
    speculation = Speculation(writer.context, n_max=16)
    sequence = [*prompt, expected[0]]
    writer.context.prefill(sequence)
    speculation.begin(sequence, [wrong, *expected[1:]])
    n_steps = 0
    while len(sequence) < len(prompt) + 33:
        sequence += speculation.step(sequence, Sampler(writer.model), 100)
        n_steps += 1
    assert sequence[len(prompt) : len(prompt) + 33] == expected
    # 16 of the tail and one behind them, then the 15 that are left and one.
    assert n_steps == 2
    assert (speculation.n_proposed, speculation.n_accepted) == (31, 31)


def test_a_temperature_draws_the_same_tokens_with_and_without(writer: Any) -> None:
    # The target draws once a token, from its own distribution, whatever was proposed: with
    # one seed the very same tokens, so the same distribution.
    prompt = writer.prompt(ask("hello"))
    options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    runs = []
    for proposals in ((), "own", "wrong"):
        guesses = {"own": [runs[0][i:] for i in range(20)] if runs else [], "wrong": [[1] * 4] * 20}
        proposer = Scripted(*guesses.get(proposals, ())) if proposals else None
        speculation = Speculation(writer.context, proposer, n_max=4)
        sampler = Sampler(writer.model, **options)
        sequence = list(prompt)
        writer.context.prefill(sequence)
        speculation.begin(sequence)
        while len(sequence) < len(prompt) + 20:
            if proposals == "own":  # what comes next, at whatever length the run is now
                proposer.proposals = [runs[0][len(sequence) - len(prompt) :]]
            sequence += speculation.step(sequence, sampler, len(prompt) + 20 - len(sequence))
        runs.append(sequence[len(prompt) :])
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]
    assert len(set(runs[0])) > 5  # a draw, not one token for ever


# whole answers


def nearly_equal(tiny: Tiny, *, noise: float) -> tuple[Path, Path]:
    """A target, and a draft that often agrees with it."""
    target = tiny(seed=1, bias=READABLE)
    return target, tiny(seed=2, weights_from=1, noise=noise, bias=READABLE)


@needs_speculators
def test_the_target_is_offered_the_rejected_tail(load: Callable[..., Any], tiny: Tiny) -> None:
    # The draft is verified whole; behind the first token that differs the target goes on alone,
    # and the draft's tail is what it is offered first.
    target, draft = nearly_equal(tiny, noise=0.02)
    how = {"accept": "exact", "window": 0, "after_reject": "target", "max_tokens": 60}
    plain = answer(load(target=target, draft=draft), "hello", **how)
    spec = answer(load(target=target, draft=draft, spec="ngram"), "hello", **how)
    assert spec.text == plain.text
    assert spec.rounds == plain.rounds
    assert 0 < plain.rounds[0].n_accept < 40
    assert plain.tokens.spec_proposed == 0
    assert spec.tokens.spec_proposed >= spec.rounds[0].n_draft - spec.rounds[0].n_accept - 1 > 20
    # Every token decoded is the prompt's, the draft's, the continuation's or a rejected proposal.
    rejected = spec.tokens.spec_proposed - spec.tokens.spec_accepted
    assert spec.tokens.target_decoded == plain.tokens.target_decoded + rejected


@needs_speculators
@pytest.mark.parametrize("after_reject", ["target", "redraft"])
@pytest.mark.parametrize("spec", ["auto", "ngram", "draft"])
def test_parse_writes_the_same_with_any_speculator(
    load: Callable[..., Any], tiny: Tiny, spec: str, after_reject: str
) -> None:
    target, draft = nearly_equal(tiny, noise=0.1)
    how = {"accept": "exact", "after_reject": after_reject, "max_tokens": 50}
    texts = []
    for name in ("none", spec):
        engine = load(target=target, draft=draft, spec=name)
        turns = ask("hello")
        for _ in range(2):  # the second turn reuses both caches
            texts.append(answer(engine, turns, **how).text)
            turns = [*turns, {"role": "assistant", "content": texts[-1]}, *ask("and then?")]
    assert texts[:2] == texts[2:]


@needs_speculators
def test_verdicts_do_not_disturb_a_speculator(load: Callable[..., Any], tiny: Tiny) -> None:
    target, draft = nearly_equal(tiny, noise=0.1)
    how = {"accept": "semantic", "tau_full": 1.0, "tau_prefix": 0.5, "max_tokens": 40}
    plain = answer(load(target=target, draft=draft), "hello", **how)
    spec = answer(load(target=target, draft=draft, spec="draft"), "hello", **how)
    assert plain.tokens.suffix_decoded > 0
    assert spec.text == plain.text
    assert spec.rounds == plain.rounds


@needs_speculators
def test_cancelling_a_speculated_answer_keeps_the_engine_usable(
    load: Callable[..., Any], tiny: Tiny
) -> None:
    model = tiny(seed=1, bias=READABLE)
    engine = load(target=model, draft=model, spec="draft")
    expected = answer(engine, "hello", strategy="speculative", max_tokens=40)
    engine.forget()
    events = engine.stream(ask("hello"), Options(strategy="speculative", max_tokens=40))
    next(events)
    engine.cancel()
    result = list(events)[-1].result
    assert result.finish_reason == "cancelled"
    assert expected.text.startswith(result.text)
    again = answer(engine, "hello", strategy="speculative", max_tokens=40)
    assert again.text == expected.text


def test_speculative_without_speculation_is_refused(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), target_only=True, spec="none")
    with pytest.raises(UsageError, match=r"--spec none leaves out; load with another"):
        answer(engine, "hello", strategy="speculative")


@needs_speculators
def test_counts_are_zero_where_nothing_was_proposed(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), draft=tiny(seed=1), spec="ngram")
    answer(engine, "hello hello hello hello", strategy="speculative", max_tokens=20)
    result = answer(engine, "hello", strategy="target", max_tokens=5)
    assert (result.tokens.spec_proposed, result.tokens.spec_accepted) == (0, 0)
    assert np.isfinite(result.tokens_per_second)
