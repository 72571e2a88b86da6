"""With a temperature `exact` keeps the target's distribution, whatever the draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask
from scipy.stats import binomtest, chi2_contingency, chisquare

from parse_local import Options
from parse_local import engine as engine_module
from parse_local.llama.sampler import Sampler

QUESTION = "hello there"
N_SEEDS = 1200
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "shaped": {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"temperature": 1.2, "repeat_penalty": 1.6},
}
DRAFTS: dict[str, dict[str, Any]] = {
    "close": {"seed": 2, "weights_from": 1, "noise": 0.3},
    "far": {"seed": 3},
    "other vocabulary": {"seed": 2, "weights_from": 1, "noise": 0.3, "vocab_seed": 5},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    # A few letters are likely everywhere, so that pairs are common and letters are repeated.
    more = {"scale": 1.5, "bias": dict.fromkeys("abcdef", 24.0)}
    target = tiny(seed=1, **more)
    return {
        name: load_once(target=target, draft=tiny(**draft, **more))
        for name, draft in DRAFTS.items()
    }


def expected_pairs(engine: Any, shape: dict[str, Any], n_best: int) -> dict[tuple[int, int], float]:
    """Probability of the likeliest first two tokens, by the target's own two distributions."""
    writer = engine.target
    prompt = writer.prompt(ask(QUESTION))
    sampler = Sampler(writer.model, **shape)
    writer.context.prefill(prompt)
    first = sampler.distribution(writer.context.last_row(prompt[-1:])[0].copy(), prompt)
    found: dict[tuple[int, int], float] = {}
    for i in np.argsort(-first.probs)[:n_best]:
        token, p = int(first.ids[i]), float(first.probs[i])
        if writer.model.is_eog(token):
            continue
        sequence = [*prompt, token]
        writer.context.prefill(sequence)
        second = sampler.distribution(writer.context.last_row([token])[0].copy(), sequence)
        for j in np.argsort(-second.probs)[:n_best]:
            found[token, int(second.ids[j])] = p * float(second.probs[j])
    return found


@pytest.mark.parametrize(
    ("draft", "shape", "window"),
    [
        ("close", "plain", 3),
        ("close", "shaped", 1),
        ("close", "penalised", 3),
        ("far", "plain", 3),
        ("other vocabulary", "plain", 3),
        ("other vocabulary", "shaped", 3),
        ("other vocabulary", "penalised", 1),
    ],
)
def test_the_first_two_tokens_are_distributed_as_the_targets(
    engines: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    draft: str,
    shape: str,
    window: int,
) -> None:
    engine = engines[draft]
    expected = expected_pairs(engine, SHAPES[shape], n_best=25)
    written: Counter[tuple[int, int] | None] = Counter()
    n_accept = 0
    tokens: list[list[int]] = []

    class Kept(engine_module.Answer):
        def __post_init__(self) -> None:
            super().__post_init__()
            tokens.append(self.tokens)

    monkeypatch.setattr(engine_module, "Answer", Kept)
    for seed in range(N_SEEDS):
        options = Options(
            strategy="parse",
            accept="exact",
            window=window,
            max_tokens=2,
            seed=seed,
            **SHAPES[shape],
        )
        n_accept += engine.generate(ask(QUESTION), options).tokens.n_accept
        pair = tuple(tokens[-1])
        written[pair if pair in expected else None] += 1  # type: ignore[index]
    assert 0 < n_accept < 2 * N_SEEDS
    # Pairs too rare for a chi-square go into one class together.
    common = {pair: p for pair, p in expected.items() if p * N_SEEDS >= 8}
    assert len(common) >= 4
    observed = [written[pair] for pair in common]
    wanted = [p * N_SEEDS for p in common.values()]
    observed.append(N_SEEDS - sum(observed))
    wanted.append(N_SEEDS - sum(wanted))
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_a_seed_reproduces_an_answer(engines: dict[str, Any]) -> None:
    for strategy in ("parse", "target", "draft"):
        texts = [
            answer(
                engines["close"],
                QUESTION,
                strategy=strategy,
                temperature=1.0,
                seed=s,
                max_tokens=25,
            ).text
            for s in (7, 7, 8)
        ]
        assert texts[0] == texts[1] != texts[2]


def test_without_a_seed_answers_differ(engines: dict[str, Any]) -> None:
    options = {"temperature": 1.0, "max_tokens": 25}
    texts = {answer(engines["close"], QUESTION, **options).text for _ in range(4)}
    assert len(texts) == 4


@pytest.mark.parametrize("draft", ["close", "other vocabulary"])
@pytest.mark.parametrize("window", [1, 3])
def test_answers_end_as_often_as_the_targets_own(
    load_once: Callable[..., Any], tiny: Callable[..., Path], draft: str, window: int
) -> None:
    # A drafted end of the answer is a proposal like any other token.
    more = {"scale": 1.5, "bias": {"<|im_end|>": 30.0, "a": 30.0, "b": 30.0}}
    engine = load_once(target=tiny(seed=1, **more), draft=tiny(**DRAFTS[draft], **more))
    writer = engine.target
    prompt = writer.prompt(ask(QUESTION))
    writer.context.prefill(prompt)
    shape = SHAPES["plain"]
    sampler = Sampler(writer.model, **shape)
    first = sampler.distribution(writer.context.last_row(prompt[-1:])[0].copy(), prompt)
    p_end = sum(
        float(p) for t, p in zip(first.ids, first.probs, strict=True) if writer.model.is_eog(int(t))
    )
    assert 0.3 < p_end < 0.7
    lengths = {
        strategy: Counter(
            engine.generate(
                ask(QUESTION),
                Options(
                    strategy=strategy,
                    accept="exact",
                    window=window,
                    max_tokens=3,
                    seed=seed,
                    **shape,
                ),
            ).usage.completion_tokens
            for seed in range(N_SEEDS)
        )
        for strategy in ("parse", "target")
    }
    n_end = lengths["parse"][0]
    assert binomtest(n_end, N_SEEDS, p_end).pvalue > 1e-3
    table = [[lengths[s][n] for n in range(4)] for s in ("parse", "target")]
    assert chi2_contingency(table).pvalue > 1e-3
