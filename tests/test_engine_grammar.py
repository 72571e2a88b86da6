"""An answer under a grammar: it fits, it is the target's own, and nothing aborts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import answer, ask
from scipy.stats import chisquare
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.channels import AnswerStart
from parse_local.errors import GrammarError
from parse_local.llama.context import Context
from parse_local.llama.grammar import Grammar
from parse_local.thinking import find_marks

QUESTION = "hello there"
LETTERS = 'root ::= "[" item ("," item)* "]"\nitem ::= [a-f] [a-f] [0-9]{1,3}'
FITS = re.compile(r"\[[a-f][a-f]\d{1,3}(,[a-f][a-f]\d{1,3})*\]")
BEGINS = re.compile(r"\[?([a-f]{2}\d{1,3},)*([a-f]{0,2}|[a-f]{2}\d{0,3}\]?)")
DRAFTS: dict[str, dict[str, Any]] = {
    "close": {"seed": 2, "weights_from": 1, "noise": 0.05},
    "far": {"seed": 3},
    "other vocabulary": {"seed": 2, "weights_from": 1, "vocab_seed": 5},
}
HOW: dict[str, dict[str, Any]] = {
    "parse": {"strategy": "parse", "accept": "exact", "window": 6},
    "auto": {"strategy": "auto"},
    "speculative": {"strategy": "speculative"},
    "target": {"strategy": "target"},
    "draft": {"strategy": "draft"},
    "semantic": {"strategy": "parse", "accept": "semantic", "tau_full": 0.3, "tau_prefix": 0.5},
    "fly": {"strategy": "fly"},
    "confspec": {"strategy": "confspec", "min_confidence": 0.1},
    "specreason": {"strategy": "specreason", "min_score": 3},
    "speculative-thinking": {"strategy": "speculative-thinking"},
}


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], tiny: Callable[..., Path]) -> dict[str, Any]:
    more = {"bias": {**READABLE, "<|im_end|>": 12.0}}
    return {
        name: load_once(target=tiny(seed=1, **more), draft=tiny(**draft, **more), spec="ngram")
        for name, draft in DRAFTS.items()
    }


def by_hand(engine: Any, grammar: str, n: int, penalty: float = 1.0) -> str:
    """What the target writes greedily if of every row only what fits may be chosen."""
    model = engine.target.model
    context = Context(model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    place = Grammar(model, grammar)
    prompt = engine.target.prompt(ask(QUESTION))
    written: list[int] = []
    logits = context.last_row(prompt)[0].copy()
    for _ in range(n):
        for token in {*[*prompt, *written][-64:]}:
            logits[token] = (
                logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            )
        assert place.n_allowed(written) == len(written)
        fits = place.allows(np.arange(model.n_vocab, dtype=np.int32))
        token = int(np.where(fits, logits, -np.inf).argmax())
        if model.is_eog(token):
            break
        written.append(token)
        logits = context.last_row([token])[0].copy()
    context.close()
    place.close()
    return str(model.detokenize(written).decode())


@pytest.mark.parametrize(
    ("how", "temperature"),
    [*((how, 0.0) for how in HOW), *((how, 1.5) for how in HOW if how != "fly")],  # greedy only
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_every_strategy_keeps_to_it(
    engines: dict[str, Any], how: str, draft: str, temperature: float
) -> None:
    for seed in range(3 if temperature else 1):
        options = {**HOW[how], "grammar": LETTERS, "temperature": temperature, "seed": seed}
        found = answer(engines[draft], QUESTION, max_tokens=40, **options)
        fits = FITS if found.finish_reason == "stop" else BEGINS
        assert fits.fullmatch(found.text), found.text


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("draft", DRAFTS)
def test_lossless_strategies_write_what_the_target_would(
    engines: dict[str, Any], draft: str, penalty: float
) -> None:
    expected = by_hand(engines[draft], LETTERS, 40, penalty)
    assert expected.startswith("[")
    n_accept = 0
    for how in ("target", "parse", "auto", "speculative"):
        options = {**HOW[how], "grammar": LETTERS, "repeat_penalty": penalty, "max_tokens": 40}
        found = answer(engines[draft], QUESTION, **options)
        assert found.text == expected
        n_accept += found.tokens.n_accept
    assert n_accept > 0


def test_drawn_texts_are_distributed_as_the_targets(engines: dict[str, Any]) -> None:
    # Two letters out of three each: nine texts, whose probabilities follow from two rows.
    engine, grammar = engines["close"], "root ::= [xyz] [xyz]"
    model = engine.target.model
    letters = [model.tokenize(c)[0] for c in "xyz"]
    prompt = engine.target.prompt(ask(QUESTION))
    context = Context(model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")

    def chances(tokens: list[int]) -> np.ndarray:
        context.prefill(tokens)
        logits = context.last_row(tokens[-1:])[0][letters].astype(float)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    first = chances(prompt)
    wanted = np.concatenate([first[i] * chances([*prompt, t]) for i, t in enumerate(letters)])
    context.close()
    names = [a + b for a in "xyz" for b in "xyz"]
    shape = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 8}
    counts = dict.fromkeys(names, 0)
    n_accept, n = 0, 600
    for seed in range(n):
        options = Options(**HOW["parse"], **shape, grammar=grammar, seed=seed)
        found = engine.generate(ask(QUESTION), options)
        counts[found.text] += 1
        n_accept += found.tokens.n_accept
    assert 0 < n_accept < 2 * n
    common = wanted * n >= 5
    observed = np.array(list(counts.values()))
    rest = [observed[~common].sum()], [wanted[~common].sum() * n]
    found_, expected_ = np.append(observed[common], rest[0]), np.append(wanted[common] * n, rest[1])
    keep = expected_ > 0
    assert chisquare(found_[keep], expected_[keep]).pvalue > 1e-3


def test_a_wrong_grammar_is_refused_before_anything_is_decoded(engines: dict[str, Any]) -> None:
    engine = engines["close"]
    engine.forget()
    with pytest.raises(GrammarError, match=r"line 2: there is no rule `b`"):
        engine.generate(ask(QUESTION), Options(grammar="root ::= a\na ::= b"))
    assert engine.target.context.tokens == []


def test_a_grammar_that_asks_for_what_no_token_writes(
    load: Callable[..., Any], tiny: Callable[..., Path]
) -> None:
    engine = load(target=tiny(seed=1))
    # A token of the vocabulary's own names, of which the text would show nothing.
    grammar = 'root ::= "a" <|im_start|> "b"'
    with pytest.raises(GrammarError, match="No token of the model goes on"):
        engine.generate(ask(QUESTION), Options(grammar=grammar))
    # And the engine is as good as before.
    found = answer(engine, QUESTION, strategy="target", grammar='root ::= "ab"')
    assert (found.text, found.finish_reason) == ("ab", "stop")


def test_llama_cpp_is_never_told_of_a_token_that_does_not_fit(tiny: Callable[..., Path]) -> None:
    from parse_local.llama.model import Model

    model = Model(tiny(seed=1))
    place = Grammar(model, 'root ::= "he" [0-9]? "\u00e9"')
    tokens = model.tokenize("he7é")
    end = model.end_of_turn_token
    ends = [t for t in range(model.n_vocab) if model.is_eog(t)]
    assert place.n_allowed(tokens) == len(tokens)
    ids = np.arange(model.n_vocab, dtype=np.int32)
    assert ids[place.allows(ids)].tolist() == ends
    # Half of a character, a token that does not fit, an end that comes too early, one behind it.
    assert place.n_allowed(tokens[:-1]) == len(tokens) - 1
    assert place.allows(ids).sum() == 1
    assert place.n_allowed([*tokens[:1], *model.tokenize("x")]) == 1
    assert place.n_allowed([tokens[0], end]) == 1
    assert place.n_allowed([*tokens, end, end]) == len(tokens)
    assert place.n_allowed([*tokens, tokens[0]]) == len(tokens)
    place.close()
    model.close()


def test_the_answer_begins_behind_what_is_thought() -> None:
    def start(template: str, prompt: str, written: list[str]) -> list[int | None]:
        marks = find_marks(template, lambda _: False)
        assert marks is not None
        parser = marks.parser(prompt, control_only=False)
        begins = AnswerStart(parser, lambda token: (written[token].encode(), b""))
        tokens = list(range(len(written)))
        found = [begins(tokens[:n]) for n in range(len(tokens) + 1)]
        assert begins(tokens[:2]) == found[2]  # back again, as after a rejected draft
        return found

    thought = ["Hm", "m", "</th", "ink>", "\n", "{", "}"]
    # The prompt has begun a block: free until it ends. It has not: the answer begins at once.
    assert start("<think>", "<|assistant|><think>\n", thought) == [*[None] * 4, 4, 4, 4, 4]
    assert start("<think>", "<|assistant|>", thought) == [0] * 8
