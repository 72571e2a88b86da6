"""Verdicts decide: rollback, continuation, and verdicts on texts of any origin."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask, greedy_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parse_local import Options
from parse_local.drafting import Drafter
from parse_local.errors import ContextLengthError, JudgeError, UsageError
from parse_local.llama.context import Context
from parse_local.profile import Fusion, JudgeWording, Profile, Weight

QUESTION = "hello there"
DRAFTS: dict[str, dict[str, Any]] = {
    "close": {"seed": 2, "weights_from": 1},
    "far": {"seed": 3},
    "ends early": {"seed": 3, "bias": {"<|im_end|>": 12.0}},
    "other vocabulary": {"seed": 2, "weights_from": 1, "vocab_seed": 5},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    target = tiny(seed=1)
    return {name: load_once(target=target, draft=tiny(**draft)) for name, draft in DRAFTS.items()}


# after a rejection


class Recorder:
    """Keeps the answer that the engine's drafter was last given, to see its tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: Any = None
        self.starts: list[tuple[list[int], bool]] = []
        """Answer tokens at the start of each draft, and whether they end inside a character."""
        write = Drafter.write

        def recording(drafter: Drafter, answer: Any, **how: Any) -> Generator[Any, None, Any]:
            self.answer = answer
            self.starts.append((list(answer.tokens), answer.stream.in_character))
            return (yield from write(drafter, answer, **how))

        monkeypatch.setattr(Drafter, "write", recording)


@pytest.mark.parametrize("after_reject", ["target", "redraft"])
@pytest.mark.parametrize(("accept", "tau"), [("exact", 0.0), ("semantic", 0.002), ("semantic", 1)])
@pytest.mark.parametrize("draft", sorted(DRAFTS))
@pytest.mark.parametrize("window", [0, 7])
def test_the_continuation_is_that_of_a_fresh_cache(
    engines: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    accept: str,
    tau: float,
    after_reject: str,
    window: int,
) -> None:
    engine = engines[draft]
    recorder = Recorder(monkeypatch)
    found = answer(
        engine,
        QUESTION,
        accept=accept,
        window=window,
        after_reject=after_reject,
        tau_full=1.0,
        tau_prefix=tau,
        delta=3,
        max_tokens=48,
    )
    tokens = recorder.answer.tokens
    prompt = engine.target.prompt(ask(QUESTION))
    n = 0
    for i, r in enumerate(found.rounds):
        n += r.n_accept  # here the target's own tokens begin
        after = recorder.starts[i + 1][0] if i + 1 < len(recorder.starts) else tokens
        own = tokens[n : len(after)]
        assert own == greedy_text(engine.target.model, prompt + tokens[:n], len(own))
        n = len(after)
    if tau == 1 or accept == "exact":
        assert tokens == greedy_text(engine.target.model, prompt, 48)


def test_what_was_accepted_is_the_drafts_own_text(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["far"]
    recorder = Recorder(monkeypatch)
    found = answer(engine, QUESTION, accept="semantic", tau_prefix=0.0, tau_full=0.0, max_tokens=41)
    prompt = engine.draft.prompt(ask(QUESTION))
    assert recorder.answer.tokens == greedy_text(engine.draft.model, prompt, 41)
    assert [(r.n_draft, r.n_accept) for r in found.rounds] == [(41, 41)]
    assert [s.source for s in found.spans] == ["draft"]


def test_a_draft_in_another_vocabulary_never_continues_half_a_character(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["other vocabulary"]  # whose target writes bytes above 127 every now and then
    recorder = Recorder(monkeypatch)
    answer(
        engine,
        QUESTION,
        accept="semantic",
        after_reject="redraft",
        window=4,
        min_progress=1,
        tau_full=1.0,
        tau_prefix=1.0,
        max_tokens=60,
    )
    assert len(recorder.starts) > 20
    assert not any(inside for _, inside in recorder.starts)


def test_each_prefix_verdict_decides_as_its_threshold_says(engines: dict[str, Any]) -> None:
    engine = engines["far"]
    common = {"accept": "semantic", "delta": 3, "max_tokens": 40}
    asked = answer(engine, QUESTION, tau_prefix=1.0, **common).rounds[0]
    p = [b.p_correct for b in asked.boundaries]
    assert len(p) >= 10
    between = sorted(p)[len(p) // 2]
    passed = [x > between for x in p]
    assert True in passed
    assert False in passed
    first = answer(engine, QUESTION, tau_prefix=between, **common).rounds[0]
    n_before_failure = passed.index(False)
    expected = asked.boundaries[n_before_failure - 1].n_tokens if n_before_failure else 0
    assert first.n_accept == expected
    longest = answer(engine, QUESTION, tau_prefix=between, rule="longest", **common).rounds[0]
    last_pass = max(i for i, ok in enumerate(passed) if ok)
    assert longest.n_accept == asked.boundaries[last_pass].n_tokens


def test_boundaries_lie_on_characters(load: Callable[..., Any], tiny: Callable[..., Path]) -> None:
    engine = load(target=tiny(seed=1))
    text = "日本語。👩‍👩‍👧 🎉! Ünï. end"
    found = engine.verify(ask("絵文字?"), text, options=Options(delta=1))
    tokens = engine.target.model.tokenize(text)
    for b in found.boundaries:
        head = engine.target.model.detokenize(tokens[: b.n_tokens]).decode("utf-8")  # strictly
        assert head == text[: b.n_chars]
    assert found.boundaries[-1].n_chars == len(text)
    assert len(found.boundaries) == len(text)  # every token but those inside characters


# emoji and CJK end to end, in both kinds of vocabularies


@pytest.mark.parametrize("vocab_seed", [None, 5])
@pytest.mark.parametrize("accept", ["exact", "semantic"])
@pytest.mark.parametrize("question", ["日本語で「こんにちは」と答えて。", "👩‍👩‍👧 🎉?", "한국어 ñ"])
def test_emoji_and_cjk(
    load: Callable[..., Any],
    tiny: Callable[..., Path],
    question: str,
    accept: str,
    vocab_seed: int | None,
) -> None:
    # Models that like the bytes of U+1F389, one after the other or not.
    bias = dict.fromkeys(["ð", "Ł", "İ", "ī", "ã", "ģ", "Ĥ"], 9.0)
    engine = load(
        target=tiny(seed=1, bias=bias),
        draft=tiny(seed=2, weights_from=1, bias=bias, vocab_seed=vocab_seed),
    )
    turns = [*ask(question), {"role": "assistant", "content": "🎉日本"}, *ask(question)]
    options = {"accept": accept, "tau_prefix": 0.0001, "tau_full": 1.0, "max_tokens": 40}
    found = answer(engine, turns, after_reject="redraft", **options)
    assert found.usage.completion_tokens > 0
    assert found.tokens.n_accept > 0
    if accept == "exact":
        assert found.text == answer(engine, turns, strategy="target", max_tokens=40).text


# verdicts on any text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.text(st.sampled_from("abc xyz.\n日🎉!?-*"), min_size=1, max_size=150),
    question=st.text(min_size=0, max_size=20),
    delta=st.integers(1, 40),
    max_forks=st.integers(1, 40),
)
def test_parallel_verdicts_equal_sequential_ones(
    engines: dict[str, Any], text: str, question: str, delta: int, max_forks: int
) -> None:
    engine = engines["close"]
    options = Options(delta=delta, max_forks=max_forks)
    parallel = engine.verify(ask(question), text, options=options)
    plain = engine.verify(ask(question), text, options=options, sequential=True)
    n_tokens = [b.n_tokens for b in parallel.boundaries]
    assert n_tokens == [b.n_tokens for b in plain.boundaries]
    assert len(n_tokens) <= max_forks + 1
    assert [b.complete for b in parallel.boundaries] == [False] * (len(n_tokens) - 1) + [True]
    for one, other in zip(parallel.boundaries, plain.boundaries, strict=True):
        assert np.log(one.label_mass) == pytest.approx(np.log(other.label_mass), abs=2e-5)
        # d log(p) <= d (log-probability of one label) + d (of the other)
        assert np.log(one.p_correct) == pytest.approx(np.log(other.p_correct), abs=2e-5)
    assert parallel.n_exact == plain.n_exact


def test_verify_reports_the_likelihood_of_every_prefix(engines: dict[str, Any]) -> None:
    engine = engines["close"]
    text = "One. Two.\nThree"
    found = engine.verify(ask(QUESTION), text)
    model = engine.target.model
    tokens = model.tokenize(text)
    prompt = engine.target.prompt(ask(QUESTION))
    context = Context(model, n_ctx=512, n_threads=1, kv_type="f32", flash_attn="off")
    rows = [context.last_row(prompt)[0].astype(np.float64)]
    for token in tokens[:-1]:
        rows.append(context.last_row([token])[0].astype(np.float64))
    context.close()
    logprobs = [r[t] - np.logaddexp.reduce(r) for r, t in zip(rows, tokens, strict=True)]
    assert [b.n_tokens for b in found.boundaries][-1] == len(tokens)
    for b in found.boundaries:
        assert b.terms["mean_logprob"] == pytest.approx(np.mean(logprobs[: b.n_tokens]), abs=1e-4)


def test_verify_says_how_far_the_text_is_the_targets_own(engines: dict[str, Any]) -> None:
    engine = engines["close"]
    alone = answer(engine, QUESTION, strategy="target", max_tokens=3)
    own = engine.verify(ask(QUESTION), alone.text)
    assert own.n_exact >= 1
    assert engine.verify(ask(QUESTION), "~" + alone.text).n_exact == 0


def test_verify_refuses_nothing_and_too_much(engines: dict[str, Any]) -> None:
    engine = engines["close"]
    with pytest.raises(UsageError, match="There is no text to judge"):
        engine.verify(ask(QUESTION), "")
    with pytest.raises(
        ContextLengthError, match=r"Prompt and draft have 2.* holds 1.*; raise --ctx"
    ):
        engine.verify(ask(QUESTION), "x" * 2000)


def test_a_judgement_needs_labels_that_differ_in_their_first_token(
    load: Callable[..., Any], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    profile = tmp_path / "profile.toml"
    profile.write_text('[wording]\nlabel_correct = "Correct"\nlabel_incorrect = "Cold"\n')
    engine = load(target=tiny(seed=1), draft=tiny(seed=3), profile=profile)
    with pytest.raises(JudgeError, match="'Correct' and 'Cold' begin with the same token"):
        answer(engine, QUESTION, accept="semantic")
    assert answer(engine, QUESTION, accept="exact", max_tokens=5).usage.completion_tokens == 5


def test_fused_accepts_by_both_kinds_of_evidence(
    load: Callable[..., Any], tiny: Callable[..., Path]
) -> None:
    engine = load(target=tiny(seed=1), draft=tiny(seed=3))
    with pytest.raises(UsageError, match="fused needs a profile"):
        answer(engine, QUESTION, accept="fused")
    seen = answer(engine, QUESTION, accept="semantic", tau_prefix=1.0, delta=5, max_tokens=30)
    boundary = seen.rounds[0].boundaries[0]

    def accepted(threshold: float) -> Any:
        both = {"log_odds": Weight(0.0, 1.0, 1.0), "mean_logprob": Weight(0.0, 1.0, 1.0)}
        fusion = Fusion(both, 0.0, threshold_full=1e9, threshold_prefix=threshold)
        engine.profile = Profile(fusion=fusion, wording=JudgeWording())
        return answer(
            engine, QUESTION, accept="fused", rule="longest", delta=5, max_tokens=30
        ).rounds[0]

    judged = accepted(-1e9)
    # The draft's last three tokens are the beginning of a character.
    assert (judged.n_draft, judged.n_accept, judged.boundaries[-1].n_tokens) == (30, 27, 27)
    scores = [
        np.log(b.p_correct / (1 - b.p_correct)) + b.terms["mean_logprob"] for b in judged.boundaries
    ]
    assert judged.boundaries[0].p_correct == pytest.approx(boundary.p_correct, rel=1e-4)
    best = int(np.argmax(scores))
    second = sorted(scores)[-2]
    assert accepted((scores[best] + second) / 2).n_accept == judged.boundaries[best].n_tokens
    assert accepted(scores[best] + 0.01).n_accept == 0


def test_where_the_draft_is_sure_no_evidence_is_bought(engines: dict[str, Any]) -> None:
    engine = engines["far"]
    common = {"accept": "semantic", "delta": 3, "tau_prefix": 0.0, "max_tokens": 40}
    asked = answer(engine, QUESTION, **common)
    boundaries = asked.rounds[0].boundaries
    never = answer(engine, QUESTION, min_confidence=1.0, **common)
    assert never.tokens.suffix_decoded == asked.tokens.suffix_decoded > 0
    always = answer(engine, QUESTION, min_confidence=0.0, **common)
    assert always.tokens.suffix_decoded == 0
    assert always.text == asked.text
    sure = {b.n_tokens: b.confidence for b in always.rounds[0].boundaries}
    assert list(sure) == [b.n_tokens for b in boundaries]
    between = sorted(sure.values())[len(sure) // 2]
    some = answer(engine, QUESTION, min_confidence=between, **common)
    for b in some.rounds[0].boundaries:
        assert (b.p_correct is None) == (sure[b.n_tokens] > between)
        assert b.confidence == (sure[b.n_tokens] if b.p_correct is None else None)
    n_asked = sum(b.p_correct is not None for b in some.rounds[0].boundaries)
    n_suffix = asked.tokens.suffix_decoded // len(boundaries)
    assert 0 < n_asked < len(boundaries)
    assert some.tokens.suffix_decoded == n_asked * n_suffix


def test_another_vocabulary_leaves_no_confidence_to_go_by(engines: dict[str, Any]) -> None:
    found = answer(
        engines["other vocabulary"],
        QUESTION,
        accept="semantic",
        min_confidence=0.0,
        delta=3,
        max_tokens=40,
    )
    assert all(b.p_correct is not None for b in found.rounds[0].boundaries)
    assert found.tokens.suffix_decoded > 0
