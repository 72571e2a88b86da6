"""What goes through llama_decode: nothing twice, and never more than the budget allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask
from tiny_gguf import CHATML

from parse_local import Options
from parse_local.chat_template import ChatTemplate
from parse_local.errors import ContextLengthError
from parse_local.events import Pass
from parse_local.judge import make_judge
from parse_local.llama.context import Context

PROMPT = 23  # tokens of the question below in the tiny vocabulary
QUESTION = "hello there"
CLOSE: dict[str, Any] = {"seed": 2, "weights_from": 1}
FAR: dict[str, Any] = {"seed": 3}


@pytest.fixture
def engine(load: Callable[..., Any], tiny: Callable[..., Path]) -> Callable[..., Any]:
    """A function that loads a pair anew, whose caches are empty."""

    def fresh(draft: dict[str, Any] = CLOSE, target: dict[str, Any] | None = None, **more: Any):
        return load(target=tiny(**(target or {"seed": 1})), draft=tiny(**draft), **more)

    return fresh


def suffixes(engine: Any) -> tuple[int, int]:
    """Lengths of the questions for finished and for unfinished answers."""
    judge = make_judge(
        engine.target.model, engine.target.template, ask(QUESTION), engine.profile.wording
    )
    return len(judge.full.suffix), len(judge.prefix.suffix)


def test_the_target_alone(engine: Callable[..., Any]) -> None:
    found = answer(engine(), QUESTION, strategy="target", max_tokens=20)
    assert found.usage.prompt_tokens == PROMPT
    # The last token is written but never read.
    assert found.tokens.target_decoded == PROMPT + 20 - 1
    assert found.tokens.draft_decoded == 0
    # The prompt without its last token, then one row a token.
    assert found.target_passes == (Pass(1, 1, 20), Pass(PROMPT - 1, 0, 1))
    assert found.draft_passes == ()


@pytest.mark.parametrize("after_reject", ["target", "redraft"])
def test_one_rejected_draft(engine: Callable[..., Any], after_reject: str) -> None:
    found = answer(
        engine(FAR),
        QUESTION,
        accept="semantic",
        after_reject=after_reject,
        draft_budget=1.0,  # the first draft uses it up
        tau_full=1.0,
        tau_prefix=1.0,
        delta=8,
        max_tokens=40,
    )
    (only,) = found.rounds
    n_draft = only.n_draft
    assert n_draft == 40
    assert only.n_accept == only.n_exact == 0
    assert len(only.boundaries) >= 40 // 8
    n_own = found.usage.completion_tokens
    # Prompt, draft, and the target's own 40 tokens, the last of which is never read.
    assert found.tokens.target_decoded == PROMPT + n_draft + n_own - 1
    # 23 prompt tokens, and the draft without its last.
    assert found.tokens.draft_decoded == PROMPT + n_draft - 1
    _, prefix = suffixes(engine())
    n_forks = len(only.boundaries)
    assert found.tokens.suffix_decoded == n_forks * prefix
    # The prompt's last token is read with the draft; what replaces its first costs nothing more.
    assert set(found.target_passes) == {
        Pass(PROMPT - 1, 0, 1),
        Pass(1 + n_draft, 1 + n_draft, 1),
        Pass(n_forks * prefix, n_forks, 1),
        Pass(1, 1, n_own - 1),
    }
    assert found.draft_passes == (Pass(1, 1, n_draft), Pass(PROMPT - 1, 0, 1))


def test_a_draft_accepted_whole(engine: Callable[..., Any]) -> None:
    draft = {**CLOSE, "bias": {"<|im_end|>": 16.0}}
    found = answer(engine(draft), QUESTION, accept="semantic", tau_full=0.0, max_tokens=200)
    (only,) = found.rounds
    assert only.whole
    assert only.n_accept == only.n_draft == found.usage.completion_tokens
    assert 0 < only.n_draft < 200
    assert [b.n_tokens for b in only.boundaries] == [only.n_draft]
    assert found.finish_reason == "stop"
    full, _ = suffixes(engine(draft))
    assert found.tokens.target_decoded == PROMPT + only.n_draft
    assert found.tokens.suffix_decoded == full  # one fork
    # Its last token is read: only then <|im_end|> follows.
    assert found.tokens.draft_decoded == PROMPT + only.n_draft


def test_a_finished_draft_that_fails_is_asked_twice(engine: Callable[..., Any]) -> None:
    draft = {**FAR, "bias": {"<|im_end|>": 16.0}}
    pair = engine(draft)
    found = answer(
        pair, QUESTION, accept="semantic", tau_full=1.0, tau_prefix=1.0, delta=4, max_tokens=100
    )
    (only,) = found.rounds
    assert only.n_draft > 8
    assert only.boundaries[-1].complete
    assert not any(b.complete for b in only.boundaries[:-1])
    full, prefix = suffixes(pair)
    n_prefixes = len(only.boundaries) - 1
    assert n_prefixes >= 2
    assert found.tokens.suffix_decoded == full + n_prefixes * prefix
    n_own = found.usage.completion_tokens
    n_unread = 1 if found.finish_reason == "length" else 0
    assert found.tokens.target_decoded == PROMPT + only.n_draft + n_own - n_unread


@pytest.mark.parametrize("window", [1, 5, 8, 0])
@pytest.mark.parametrize("draft", [CLOSE, FAR])
@pytest.mark.parametrize("accept", ["exact", "semantic"])
def test_every_draft_is_read_once_and_every_own_token_once(
    engine: Callable[..., Any], accept: str, draft: dict[str, Any], window: int
) -> None:
    pair = engine(draft)
    found = answer(
        pair,
        QUESTION,
        accept=accept,
        window=window,
        after_reject="redraft",
        tau_prefix=0.001,
        max_tokens=50,
    )
    n_drafted = sum(r.n_draft for r in found.rounds)
    n_own = found.usage.completion_tokens - found.tokens.n_accept
    # Only a last token that the target itself wrote is not read; drafts are read whole.
    n_unread = int(found.finish_reason == "length" and found.spans[-1].source == "target")
    assert found.tokens.target_decoded == PROMPT + n_drafted + n_own - n_unread
    full, prefix = suffixes(pair)
    asked = [full if b.complete else prefix for r in found.rounds for b in r.boundaries]
    assert found.tokens.suffix_decoded == sum(asked)
    assert bool(asked) == (accept == "semantic")
    # The draft reads the prompt, what it writes and what the target writes; the last token of
    # a draft at most a second time, because a cache never gives back the row of a kept token.
    assert found.tokens.draft_decoded <= PROMPT + n_drafted + n_own + len(found.rounds)


# reuse


def test_the_same_question_again_reuses_the_prompt(engine: Callable[..., Any]) -> None:
    pair = engine()
    first = answer(pair, QUESTION, accept="exact", window=0, max_tokens=20)
    again = answer(pair, QUESTION, accept="exact", window=0, max_tokens=20)
    assert first.text == again.text
    assert (first.tokens.reused, first.tokens.reused_draft) == (0, 0)
    # All of the prompt but its last token, whose row is needed.
    assert (again.tokens.reused, again.tokens.reused_draft) == (PROMPT - 1, PROMPT - 1)
    for name in ("target_decoded", "draft_decoded"):
        assert getattr(again.tokens, name) == getattr(first.tokens, name) - (PROMPT - 1)


def test_a_conversation_reuses_earlier_turns_in_both_caches(engine: Callable[..., Any]) -> None:
    # Printable text without merges, so that the answer's own tokens come back in the next prompt.
    bias = dict.fromkeys([chr(i) for i in range(ord("p"), ord("z"))], 60.0)
    pair = engine({**CLOSE, "bias": bias}, {"seed": 1, "bias": bias})
    first = answer(pair, QUESTION, accept="exact", max_tokens=20)
    assert first.text.isascii()
    turns = [*ask(QUESTION), {"role": "assistant", "content": first.text}, *ask("And then?")]
    second = answer(pair, turns, accept="exact", max_tokens=20)
    # Question and answer are there; the answer's last token need not be.
    for reused in (second.tokens.reused, second.tokens.reused_draft):
        assert PROMPT + 20 - 3 <= reused <= PROMPT + 20
    assert (
        second.text
        == answer(
            engine({**CLOSE, "bias": bias}, {"seed": 1, "bias": bias}),
            turns,
            accept="exact",
            max_tokens=20,
        ).text
    )
    n_new = second.usage.prompt_tokens - second.tokens.reused
    n_drafted = sum(r.n_draft for r in second.rounds)
    n_own = second.usage.completion_tokens - second.tokens.n_accept
    assert second.tokens.target_decoded - (n_new + n_drafted + n_own) in (0, -1)


def test_an_edited_conversation_reuses_what_is_before_the_edit(engine: Callable[..., Any]) -> None:
    pair = engine()
    answer(pair, "aaaaaaaaaaaaaaaaaaaa,one", strategy="target", max_tokens=10)
    found = answer(pair, "aaaaaaaaaaaaaaaaaaaa,two", strategy="target", max_tokens=10)
    before = pair.target.model.tokenize("<|im_start|>user\naaaaaaaaaaaaaaaaaaaa,", special=True)
    assert found.tokens.reused == len(before)


# bounds


@pytest.mark.parametrize("min_progress", [1, 4])
@pytest.mark.parametrize("draft_budget", [0.5, 1.0, 2.0, 4.0])
def test_a_draft_that_is_always_rejected_costs_a_bounded_amount(
    engine: Callable[..., Any], draft_budget: float, min_progress: int
) -> None:
    n = 120
    pair = engine(FAR, kv_type="f32")
    found = answer(
        pair,
        QUESTION,
        accept="semantic",
        after_reject="redraft",
        window=0,
        tau_full=1.0,
        tau_prefix=1.0,
        min_progress=min_progress,
        draft_budget=draft_budget,
        max_tokens=n,
    )
    assert found.usage.completion_tokens == n
    assert found.tokens.n_accept <= 2  # a far draft agrees now and then by chance
    budget = int(draft_budget * n)
    n_drafted = sum(r.n_draft for r in found.rounds)
    assert n_drafted <= budget
    # A whole-answer draft takes what is left of the answer, so few fit into the budget.
    # Round i drafts about n - i * min_progress tokens, more than n / 2 of them for i < 15.
    assert len(found.rounds) <= 2 * draft_budget + 1
    assert found.tokens.target_decoded <= PROMPT + budget + n
    assert found.tokens.draft_decoded <= PROMPT + budget + n


def test_empty_drafts_are_bounded_too(engine: Callable[..., Any]) -> None:
    draft = {**FAR, "bias": {"<|im_end|>": 200.0}}  # ends every answer at once
    found = answer(
        engine(draft),
        QUESTION,
        accept="exact",
        after_reject="redraft",
        min_progress=4,
        max_tokens=40,
    )
    assert found.usage.completion_tokens == 40
    assert {(r.n_draft, r.n_accept) for r in found.rounds} == {(0, 0)}
    assert len(found.rounds) == 10  # four tokens a round
    assert found.tokens.target_decoded == PROMPT + 40 - 1


def test_no_budget_means_no_draft(engine: Callable[..., Any]) -> None:
    found = answer(engine(), QUESTION, accept="exact", draft_budget=0.0, max_tokens=20)
    assert found.rounds == ()
    assert found.tokens.draft_decoded == 0
    assert found.tokens.target_decoded == PROMPT + 19


# the context's end


def test_an_answer_fills_the_context_exactly(engine: Callable[..., Any]) -> None:
    pair = engine(n_ctx=64)
    for options in (
        {"strategy": "target"},
        {"accept": "exact", "window": 0},
        {"accept": "exact", "window": 7},
        {"accept": "semantic", "tau_prefix": 0.0, "tau_full": 0.0},
        {"accept": "semantic", "tau_prefix": 1.0, "tau_full": 1.0},
        {"accept": "semantic", "tau_prefix": 1.0, "tau_full": 1.0, "after_reject": "redraft"},
    ):
        found = answer(pair, QUESTION, max_tokens=500, **options)
        assert found.finish_reason == "length", options
        assert found.usage.prompt_tokens + found.usage.completion_tokens == 64, options


def test_a_draft_model_whose_prompt_is_longer_leaves_the_rest_to_the_target(
    engine: Callable[..., Any],
) -> None:
    # The draft's template adds 30 tokens, so the draft runs out of context before the target.
    pair = engine({**CLOSE, "template": "x" * 30 + CHATML}, n_ctx=100)
    alone = answer(pair, QUESTION, strategy="target", max_tokens=500)
    found = answer(pair, QUESTION, accept="exact", draft_budget=9.0, max_tokens=500)
    assert found.text == alone.text
    assert found.usage.prompt_tokens + found.usage.completion_tokens == 100
    assert 0 < sum(r.n_accept for r in found.rounds) <= 100 - PROMPT - 30
    # No token is written behind the last row that the draft's context can hold.
    assert len(pair.draft.context.tokens) <= 100


def test_a_prompt_too_long_for_the_draft_only_is_answered_by_the_target(
    engine: Callable[..., Any],
) -> None:
    pair = engine({**CLOSE, "template": "x" * 80 + CHATML}, n_ctx=100)
    alone = answer(pair, QUESTION, strategy="target", max_tokens=20)
    found = answer(pair, QUESTION, accept="exact", max_tokens=20)
    assert found.text == alone.text
    assert found.rounds == ()
    assert found.tokens.draft_decoded == 0


def test_a_prompt_that_does_not_fit_is_refused_with_the_counts(engine: Callable[..., Any]) -> None:
    pair = engine(n_ctx=64)
    fits = "x" * (63 - len(pair.target.prompt(ask(""))))
    found = answer(pair, fits, accept="exact", max_tokens=500)
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (63, 1)
    for context in (pair.target.context, pair.draft.context):
        context.clear()
        context.start_count()
    with pytest.raises(ContextLengthError, match=r"has 64 tokens .* holds 64; raise --ctx"):
        answer(pair, fits + "x", accept="exact", max_tokens=500)
    assert [w.context.n_decoded for w in (pair.target, pair.draft)] == [0, 0]


def test_more_forks_than_the_pair_was_loaded_for(engine: Callable[..., Any]) -> None:
    text = "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten."
    few, many = engine(max_forks=2), engine(max_forks=32)
    found = [p.verify(ask(QUESTION), text, options=Options(max_forks=32)) for p in (few, many)]
    p_correct = [[b.p_correct for b in r.boundaries] for r in found]
    assert len(p_correct[0]) == len(p_correct[1]) == 10
    np.testing.assert_allclose(p_correct[0], p_correct[1], rtol=1e-4)


def test_a_conversation_whose_question_is_longer_than_at_load(
    load: Callable[..., Any], tiny: Callable[..., Path]
) -> None:
    # This template repeats the system prompt in every turn, so the suffix grows with it.
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% else %}"
        "<|im_start|>{{ m.role }}\n[{{ ns.s }}]{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = "{% set ns = namespace(s='') %}" + template
    assert ChatTemplate(template).render(ask("x")).startswith("<|im_start|>user\n[]x")
    engine = load(target=tiny(seed=1, template=template), max_forks=8, n_ctx=600)
    messages = [{"role": "system", "content": "s" * 200}, *ask(QUESTION)]
    text = "One. Two. Three. Four. Five. Six."
    found = engine.verify(messages, text)
    plain = engine.verify(messages, text, sequential=True)
    assert [b.n_tokens for b in found.boundaries] == [b.n_tokens for b in plain.boundaries]
    assert len(found.boundaries) == 6
    np.testing.assert_allclose(
        [b.p_correct for b in found.boundaries],
        [b.p_correct for b in plain.boundaries],
        rtol=1e-4,
    )


# quantised caches


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_a_pair_runs_on_a_quantised_cache(
    load: Callable[..., Any], tiny: Callable[..., Path], kv_type: str
) -> None:
    wide = {"n_embd": 128}
    engine = load(
        target=tiny(seed=1, **wide),
        draft=tiny(**CLOSE, **wide),
        kv_type=kv_type,
        flash_attn="auto",
        n_threads=2,
    )
    found = answer(engine, QUESTION, accept="semantic", tau_prefix=0.0, tau_full=0.0, max_tokens=30)
    assert found.usage.completion_tokens == 30
    assert found.tokens.n_accept >= 29
    assert isinstance(engine.target.context, Context)
