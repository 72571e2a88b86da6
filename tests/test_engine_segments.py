"""SpecReason, ConfSpec and Speculative Thinking: the loop's other ways of cutting up a draft."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask, check_contract, greedy_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.events import Accepted, RolledBack, Text, Verified
from parse_local.judge import make_judge
from parse_local.llama.context import Context
from parse_local.segments import Cues

QUESTION = "hello there"
LINES = {
    **READABLE,
    "Ċ": 34.0,
    "<|im_end|>": -40.0,
    "<|endoftext|>": -40.0,
}  # ever new lines, and no end
ENDING = {**LINES, "<|im_end|>": 18.0}
DRAFTS: dict[str, dict[str, Any]] = {
    "the target itself": {"seed": 12, "bias": LINES},
    "close": {"seed": 2, "weights_from": 12, "bias": LINES},
    "far": {"seed": 8, "bias": LINES},
    "ends": {"seed": 8, "bias": ENDING},
    "one line": {"seed": 3},
    "other vocabulary": {"seed": 2, "weights_from": 12, "vocab_seed": 5, "bias": LINES},
}
SHARED = sorted(set(DRAFTS) - {"other vocabulary"})
NEVER: dict[str, dict[str, Any]] = {
    "specreason": {"min_score": 10.0},
    "confspec": {"min_confidence": 1.0, "tau_full": 1.0, "tau_prefix": 1.0},
}
SOME_CUES = Cues(affirmation=("O", "1"), reflection=("o", "R"), verification=("0",))


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    target = tiny(seed=12, bias=LINES)
    return {name: load_once(target=target, draft=tiny(**draft)) for name, draft in DRAFTS.items()}


def run(engine: Any, strategy: str, **options: Any) -> tuple[Any, list[Any]]:
    """The result and the events of one answer that kept the contract of events."""
    options = {"max_tokens": 60, **options}
    events = list(engine.stream(ask(QUESTION), Options(strategy=strategy, **options)))
    return check_contract(events, max_tokens=options["max_tokens"]), events


def drafted(events: list[Any]) -> list[tuple[str, bool]]:
    """The text of every draft, and whether it was kept."""
    return [(e.text, e.round.n_accept > 0) for e in events if isinstance(e, Verified)]


def segments(text: str) -> list[str]:
    """A text cut behind its blank lines, which belong to what precedes them."""
    parts = re.split(r"(?<=\S)(\s*?\n[^\S\n]*\n)", text)
    return [
        body + gap for body, gap in zip(parts[::2], [*parts[1::2], ""], strict=False) if body + gap
    ]


def test_the_cutting_of_this_test() -> None:
    assert segments("One\n\nTwo\nb\n \n\nThree") == ["One\n\n", "Two\nb\n \n", "\nThree"]


# everything is accepted, or nothing


@pytest.mark.parametrize("draft", SHARED)
def test_where_every_mark_passes_the_answer_is_the_drafts(
    engines: dict[str, Any], draft: str
) -> None:
    engine = engines[draft]
    alone = answer(engine, QUESTION, strategy="draft", max_tokens=60)
    found, events = run(engine, "specreason", min_score=0.0)
    assert found.text == alone.text
    assert found.finish_reason == alone.finish_reason
    assert drafted(events) == [(text, True) for text in segments(alone.text)]
    assert all(len(r.boundaries) == 1 and r.n_accept == r.n_draft for r in found.rounds)
    assert found.accepted_share == 1.0


@pytest.mark.parametrize("draft", SHARED)
def test_a_draft_that_is_always_sure_is_never_read(engines: dict[str, Any], draft: str) -> None:
    engine = engines[draft]
    alone = answer(engine, QUESTION, strategy="draft", max_tokens=60)
    for strategy, options in (
        ("confspec", {"min_confidence": 0.0}),
        ("speculative-thinking", {"cues": Cues((), (), ()), "window": 512}),
    ):
        found, events = run(engine, strategy, **options)
        assert (found.text, found.finish_reason) == (alone.text, alone.finish_reason)
        assert drafted(events) == [(text, True) for text in segments(alone.text)]
        assert found.tokens.target_decoded == found.tokens.suffix_decoded == 0
        assert {s.source for s in found.spans} == {"draft"}


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    draft=st.sampled_from(sorted(DRAFTS)),
    strategy=st.sampled_from(sorted(NEVER)),
    window=st.sampled_from([None, 5, 16]),
    draft_budget=st.sampled_from([0.0, 0.5, 2.0]),
    max_tokens=st.integers(1, 40),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    stop=st.sampled_from([(), (), ("1_",), ("\n\n",), ("O", "@")]),
)
def test_where_nothing_passes_the_answer_is_the_targets(
    engines: dict[str, Any], draft: str, strategy: str, window: int | None, **options: Any
) -> None:
    engine = engines[draft]
    common = {k: options[k] for k in ("max_tokens", "repeat_penalty", "stop")}
    alone = answer(engine, QUESTION, strategy="target", **common)
    found, _ = run(engine, strategy, window=window, **options, **NEVER[strategy])
    assert (found.text, found.finish_reason) == (alone.text, alone.finish_reason)
    assert found.usage == alone.usage
    assert {s.source for s in found.spans} <= {"target"}


# marks and verdicts


def plain_logprobs(model: Any, tokens: list[int]) -> np.ndarray:
    """Log-probabilities behind `tokens`, from a cache of their own."""
    context = Context(model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    row = context.last_row(tokens)[0].astype(np.float64)
    context.close()
    return row - np.logaddexp.reduce(row)


@pytest.mark.parametrize("question", ["score", "correct"])
def test_each_verdict_is_that_of_a_plain_pass(engines: dict[str, Any], question: str) -> None:
    engine = engines["far"]
    always = {"min_score": 0.0, "tau_full": 0.0, "tau_prefix": 0.0}
    found, _ = run(engine, "specreason", question=question, score_by="mean", **always)
    assert len(found.rounds) >= 3
    judge = make_judge(
        engine.target.model,
        engine.target.template,
        ask(QUESTION),
        engine.profile.wording,
        score=True,
    )
    asked = judge.score if question == "score" else judge.prefix
    assert asked is not None
    tokens = greedy_text(engine.draft.model, engine.draft.prompt(ask(QUESTION)), 60)
    n = 0
    for r in found.rounds:
        n += r.n_draft
        (boundary,) = r.boundaries
        assert (boundary.n_tokens, boundary.complete) == (r.n_draft, False)
        prompt, model = engine.target.prompt(ask(QUESTION)), engine.target.model
        labels = plain_logprobs(model, [*prompt, *tokens[:n], *asked.suffix])[list(asked.labels)]
        p = np.exp(labels)
        assert boundary.label_mass == pytest.approx(p.sum(), rel=1e-3)
        if question == "score":
            assert boundary.p_correct is None
            assert boundary.score == pytest.approx((p * np.arange(10)).sum() / p.sum(), rel=1e-3)
        else:
            assert boundary.score is None
            assert boundary.p_correct == pytest.approx(p[0] / p.sum(), rel=1e-3)
    # One question a segment, and every segment is read once: nothing between is decoded again.
    assert found.tokens.suffix_decoded == len(found.rounds) * len(asked.suffix)
    n_reused = found.tokens.reused
    assert found.tokens.target_decoded == found.usage.prompt_tokens - n_reused + 60


def test_the_likeliest_digit_is_the_mark(engines: dict[str, Any]) -> None:
    engine = engines["far"]
    digits = [r.boundaries[0].score for r in run(engine, "specreason", min_score=0.0)[0].rounds]
    assert all(digit in range(10) for digit in digits)
    mark = digits[0]
    # The threshold itself passes.
    assert run(engine, "specreason", min_score=mark)[0].rounds[0].n_accept > 0
    assert run(engine, "specreason", min_score=mark + 0.5)[0].rounds[0].n_accept == 0


@pytest.mark.parametrize("spec", ["none", "ngram"])
def test_a_rejected_segment_is_written_by_the_target(
    load: Callable[..., Any], tiny: Callable[..., Path], spec: str
) -> None:
    engine = load(target=tiny(seed=12, bias=LINES), draft=tiny(**DRAFTS["far"]), spec=spec)
    marks = [
        r.boundaries[0].score
        for r in run(engine, "specreason", min_score=0.0, score_by="mean")[0].rounds
    ]
    between = sorted(marks)[len(marks) // 2]
    found, events = run(engine, "specreason", min_score=between, score_by="mean", max_tokens=80)
    kept = [r.n_accept > 0 for r in found.rounds]
    assert True in kept
    assert False in kept
    assert [r.boundaries[0].score >= between for r in found.rounds] == kept
    # What the events say, piece by piece: an accepted segment is the draft's own text, and a
    # rejected one is what the target writes there alone, to its blank line.
    tokens: list[int] = []
    model = engine.target.model
    prompt = engine.target.prompt(ask(QUESTION))
    for verified in (e for e in events if isinstance(e, Verified)):
        writer = engine.draft if verified.round.n_accept else engine.target
        own = greedy_text(writer.model, writer.prompt(ask(QUESTION)) + tokens, 80 - len(tokens))
        pieces = [model.piece(t) for t in own]
        n = next(
            (
                n
                for n in range(1, len(own) + 1)
                if re.search(r"\S\s*\n[^\S\n]*\n$", b"".join(pieces[:n]).decode("utf-8", "ignore"))
            ),
            len(own),
        )
        tokens += own[:n]
    assert found.text == model.detokenize(tokens).decode("utf-8", "replace")
    assert prompt  # the same for both models, whose vocabularies are the same


def test_a_segment_of_which_the_draft_is_sure_is_not_judged(engines: dict[str, Any]) -> None:
    engine = engines["far"]
    tokens = greedy_text(engine.draft.model, engine.draft.prompt(ask(QUESTION)), 60)
    seen, _ = run(engine, "confspec", min_confidence=0.0)
    sure = [r.confidence for r in seen.rounds]
    # The geometric mean of the tokens' probabilities, from plain passes.
    context = Context(engine.draft.model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    row, logprobs = context.last_row(engine.draft.prompt(ask(QUESTION))), []
    for token in tokens:
        logits = row[0].astype(np.float64)
        logprobs.append(float(logits[token] - np.logaddexp.reduce(logits)))
        row = context.last_row([token])
    context.close()
    n = 0
    for r, confidence in zip(seen.rounds, sure, strict=True):
        part = logprobs[n : n + r.n_draft]
        assert confidence == pytest.approx(math.exp(sum(part) / len(part)), rel=1e-3)
        n += r.n_draft
    least = sorted(sure)[len(sure) // 2]
    found, _ = run(engine, "confspec", min_confidence=least, tau_prefix=0.0, tau_full=0.0)
    assert [r.confidence is None for r in found.rounds] == [s <= least for s in sure]
    assert [len(r.boundaries) for r in found.rounds] == [int(s <= least) for s in sure]
    assert found.text == seen.text
    by_min, _ = run(engine, "confspec", min_confidence=0.0, confidence_by="min")
    first = by_min.rounds[0]
    assert first.confidence == pytest.approx(math.exp(min(logprobs[: first.n_draft])), rel=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_the_draft_may_judge_its_own_segments(
    load: Callable[..., Any], tiny: Callable[..., Path], architecture: str
) -> None:
    kind = {"architecture": architecture, "bias": LINES}
    engine = load(target=tiny(seed=12, **kind), draft=tiny(seed=8, **kind))
    draft = engine.draft
    alone = answer(engine, QUESTION, strategy="draft", max_tokens=40)
    by = {"confidence_by": "verdict", "max_tokens": 40, "window": 15}
    found, _ = run(engine, "confspec", min_confidence=0.0, **by)
    assert found.text == alone.text  # its questions are rolled back
    assert found.tokens.target_decoded == 0
    judge = make_judge(draft.model, draft.template, ask(QUESTION), engine.profile.wording)
    suffix, labels = judge.prefix.suffix, list(judge.prefix.labels)
    prompt = draft.prompt(ask(QUESTION))
    tokens = greedy_text(draft.model, prompt, 40)
    n = 0
    for r in found.rounds:
        n += r.n_draft
        correct, incorrect = np.exp(
            plain_logprobs(draft.model, [*prompt, *tokens[:n], *suffix])[labels]
        )
        assert r.confidence == pytest.approx(correct / (correct + incorrect), rel=1e-3)
    sure = [r.confidence for r in found.rounds]
    assert len(sure) >= 3
    between = sorted(sure)[len(sure) // 2]
    some, _ = run(engine, "confspec", min_confidence=between, tau_prefix=0.0, **by)
    assert [r.confidence is None for r in some.rounds] == [s <= between for s in sure]


# takeovers


def literal_takeovers(engine: Any, cues: Cues, window: int, takeover: int, limit: int) -> list[int]:
    """Speculative Thinking token by token, for a shared vocabulary and few doubts."""
    model = engine.target.model
    words = [w.lower() for w in (*cues.affirmation, *cues.reflection, *cues.verification)]
    tokens: list[int] = []

    def text(written: list[int]) -> str:
        return codecs.getincrementaldecoder("utf-8")("replace").decode(model.detokenize(written))

    def next_token(writer: Any) -> int:
        return greedy_text(writer.model, writer.prompt(ask(QUESTION)) + tokens, 1)[0]

    def take_over(n: int) -> str:
        start = len(tokens)
        while len(tokens) < min(start + n, limit):
            tokens.append(next_token(engine.target))
        return text(tokens[start:]).lower()

    while len(tokens) < limit:
        before = text(tokens)
        opening = bool(re.search(r"\S\s*\n\s*?\n\s*$", before))
        begun = re.split(r"\n[^\S\n]*\n", before)[-1]  # of the segment
        start = len(tokens)
        while len(tokens) < min(start + window, limit):
            tokens.append(next_token(engine.draft))
            new = text(tokens)[len(before) :].lower()
            if opening and any(re.search(r"\b" + re.escape(w), new) for w in words):
                del tokens[start:]
                written = take_over(takeover)
                if any(re.search(r"\b" + re.escape(w.lower()), written) for w in cues.verification):
                    take_over(125)
                break
            if re.search(r"\S\s*\n[^\S\n]*\n$", begun + new):
                break
    return tokens


@pytest.mark.parametrize("draft", ["far", "close"])
@pytest.mark.parametrize("takeover", [1, 6])
def test_takeovers_are_where_the_paper_has_them(
    engines: dict[str, Any], draft: str, takeover: int
) -> None:
    engine = engines[draft]
    how = {"window": 12, "takeover": takeover}
    expected = literal_takeovers(engine, SOME_CUES, 12, takeover, 90)
    found, events = run(engine, "speculative-thinking", cues=SOME_CUES, max_tokens=90, **how)
    assert found.text == engine.target.model.detokenize(expected).decode("utf-8", "replace")
    assert any(isinstance(e, RolledBack) for e in events)
    assert not any(r.read for r in found.rounds)
    assert {s.source for s in found.spans} == {"draft", "target"}
    assert found.tokens.suffix_decoded == 0


def test_a_takeover_has_its_length_however_the_target_writes(
    load: Callable[..., Any], tiny: Callable[..., Path], engines: dict[str, Any]
) -> None:
    how = {"cues": SOME_CUES, "max_tokens": 90, "window": 12, "takeover": 6}
    plain, _ = run(engines["far"], "speculative-thinking", **how)
    target = tiny(seed=12, bias=LINES)
    engine = load(target=target, draft=tiny(**DRAFTS["far"]), spec="draft", spec_model=target)
    found, _ = run(engine, "speculative-thinking", **how)
    assert found.tokens.spec_accepted > 0  # several tokens a step, some beyond the takeover's end
    assert (found.text, found.spans) == (plain.text, plain.spans)


# what every strategy keeps to


@pytest.mark.parametrize("strategy", ["specreason", "confspec", "speculative-thinking"])
@pytest.mark.parametrize("draft", sorted(DRAFTS))
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_answer_ends_within_its_tokens(
    engines: dict[str, Any], strategy: str, draft: str, temperature: float
) -> None:
    found, events = run(
        engines[draft],
        strategy,
        max_tokens=47,
        window=8,
        temperature=temperature,
        seed=1,
        cues=SOME_CUES,
        min_score=5.0,
    )
    if draft not in ("ends", "one line"):  # which may write an end
        assert found.finish_reason == "length"
        assert found.usage.completion_tokens == 47
    assert all(r.n_draft <= 8 or draft == "other vocabulary" for r in found.rounds)
    accepted = sum(e.n_accept for e in events if isinstance(e, Accepted))
    assert accepted == sum(r.n_accept for r in found.rounds) == found.tokens.n_accept


@pytest.mark.parametrize("strategy", ["specreason", "confspec", "speculative-thinking"])
def test_a_stop_string_ends_the_answer(engines: dict[str, Any], strategy: str) -> None:
    how = {"cues": SOME_CUES, "min_score": 0.0, "tau_full": 0.0, "tau_prefix": 0.0}
    whole, _ = run(engines["far"], strategy, **how)
    stop = whole.text[20:23]
    found, _ = run(engines["far"], strategy, stop=(stop,), **how)
    assert found.finish_reason == "stop"
    assert found.text == whole.text[: whole.text.index(stop)]


@pytest.mark.parametrize("strategy", ["specreason", "confspec", "speculative-thinking"])
def test_a_cancelled_answer_keeps_what_was_final(engines: dict[str, Any], strategy: str) -> None:
    engine = engines["far"]
    whole, _ = run(engine, strategy, cues=SOME_CUES)
    events = []
    for event in engine.stream(
        ask(QUESTION), Options(strategy=strategy, cues=SOME_CUES, max_tokens=60)
    ):
        events.append(event)
        if sum(isinstance(e, Text) for e in events) == 2:
            engine.cancel()
    found = check_contract(events, max_tokens=60)
    assert found.finish_reason == "cancelled"
    assert 0 < len(found.text) < len(whole.text)
    assert whole.text.startswith(found.text.rstrip("\ufffd"))


@pytest.mark.parametrize("strategy", sorted(NEVER))
def test_a_memory_that_cannot_be_cut(
    load: Callable[..., Any], tiny: Callable[..., Path], strategy: str
) -> None:
    target = tiny(seed=2, architecture="mamba", bias=LINES)
    engine = load(target=target, draft=tiny(seed=5, architecture="mamba", bias=LINES))
    alone = answer(engine, QUESTION, strategy="target", max_tokens=40)
    found, _ = run(engine, strategy, max_tokens=40, window=9, **NEVER[strategy])
    assert found.text == alone.text
    assert len(found.rounds) > 1
    mixed, _ = run(engine, "speculative-thinking", max_tokens=40, cues=SOME_CUES)
    assert mixed.usage.completion_tokens == 40
