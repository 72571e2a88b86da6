"""One window of a draft: where it ends, and how it reaches the target's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from asking import ask, greedy_text

from parse_local.answer import Answer
from parse_local.drafting import Draft, Drafter, Stop
from parse_local.events import Drafted
from parse_local.llama.context import Context
from parse_local.llama.sampler import Sampler

QUESTION = "hello there"


def write(
    engine: Any,
    *,
    limit: int,
    max_tokens: int = 100,
    temperature: float = 0.0,
    logprobs: bool = False,
    stop: Stop | None = None,
    **answer: Any,
) -> tuple[Draft | None, list[Drafted], Answer]:
    """One draft of the engine's draft model for an answer as it stands."""
    prompt = engine.draft.prompt(ask(QUESTION))
    growing = Answer(prompt=engine.target.prompt(ask(QUESTION)), max_tokens=max_tokens, **answer)
    drafter = Drafter(
        engine.draft,
        engine.target,
        shared_vocabulary=engine.shared_vocabulary,
        sampler=Sampler(engine.draft.model, temperature=temperature, seed=1),
        prompt=prompt,
        logprobs=logprobs,
    )
    events = []
    writing = drafter.write(growing, limit=limit, stop=stop)
    while True:
        try:
            events.append(next(writing))
        except StopIteration as end:
            return end.value, events, growing


@pytest.fixture(params=[None, 5], ids=["shared vocabulary", "other vocabulary"])
def pair(request: pytest.FixtureRequest, load: Callable[..., Any], tiny: Any) -> Any:
    return load(target=tiny(seed=1), draft=tiny(seed=2, vocab_seed=request.param))


def test_text_and_heads_of_a_draft() -> None:
    # An emoji cut by tokens, then a byte that is no UTF-8, then the beginning of another emoji.
    draft = Draft([1, 2, 3, 4, 5], [b"a\xf0\x9f", b"\x8e", b"\x89b", b"\xff", b"c\xf0"], False)
    assert draft.text == "a🎉b\ufffdc\ufffd"
    assert [draft.head(n) for n in range(6)] == ["", "a", "a", "a🎉b", "a🎉b\ufffd", "a🎉b\ufffdc"]


def test_a_draft_ends_at_its_limit(pair: Any) -> None:
    draft, events, growing = write(pair, limit=12)
    assert draft is not None
    assert not draft.complete
    assert growing.n_drafted == len(events) == 12
    assert [e.n_draft for e in events] == list(range(1, 13))
    if pair.shared_vocabulary:
        assert len(draft.tokens) == 12
        # What was shown is the draft but for a character that is unfinished.
        assert draft.text.rstrip("\ufffd").startswith("".join(e.text for e in events)[:-1])
    assert draft.pieces == [pair.target.model.piece(t) for t in draft.tokens]


def test_there_is_no_draft_without_room(pair: Any) -> None:
    assert write(pair, limit=0)[0] is None
    assert write(pair, limit=-3)[0] is None


def test_the_end_of_an_answer_completes_a_draft(load: Any, tiny: Any) -> None:
    pair = load(target=tiny(seed=1), draft=tiny(seed=2, bias={"<|im_end|>": 16.0}))
    draft, events, growing = write(pair, limit=100)
    assert draft is not None
    assert draft.complete
    assert 0 < len(draft.tokens) == len(events) < 100
    assert growing.n_drafted == len(events) + 1  # the end was drafted too
    assert not any(pair.target.model.is_eog(t) for t in draft.tokens)


def test_a_stop_string_completes_a_draft(pair: Any) -> None:
    text = "".join(e.text for e in write(pair, limit=30)[1])
    stop = next(c for c in text[5:] if c.isascii() and c.isprintable())
    draft, events, _ = write(pair, limit=30, stops=(stop,))
    assert draft is not None
    assert draft.complete
    assert draft.text.endswith(stop)
    assert len(events) < 30


def test_what_does_not_fit_any_more_is_cut_and_no_longer_complete(load: Any, tiny: Any) -> None:
    # A draft in another vocabulary may come out longer in the target's tokens.
    pair = load(target=tiny(seed=1), draft=tiny(seed=2, vocab_seed=5, bias={"<|im_end|>": 16.0}))
    whole = write(pair, limit=100)[0]
    assert whole is not None
    assert whole.complete
    n = len(whole.tokens)
    assert n > 3
    for max_tokens, complete in ((n, True), (n - 1, False), (2, False)):
        draft = write(pair, limit=100, max_tokens=max_tokens)[0]
        assert draft is not None
        assert draft.tokens == whole.tokens[:max_tokens]
        assert draft.complete == complete


def test_proposals_are_kept_only_where_they_mean_the_same(pair: Any) -> None:
    greedy = write(pair, limit=5)[0]
    drawn = write(pair, limit=5, temperature=1.0)[0]
    assert greedy is not None
    assert drawn is not None
    assert greedy.proposals is None
    assert (drawn.proposals is not None) == pair.shared_vocabulary
    for token, proposal in zip(drawn.tokens, drawn.proposals or (), strict=False):
        assert proposal.probability(token) > 0


class AtToken:
    """Stops at the n-th token, and keeps what it was told."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen: list[tuple[str, float]] = []

    def push(self, text: str, logprob: float = float("nan")) -> bool:
        self.seen.append((text, logprob))
        return len(self.seen) == self.n


def test_a_stop_ends_a_draft(pair: Any) -> None:
    whole = write(pair, limit=9)[0]
    stop = AtToken(5)
    draft, events, _ = write(pair, limit=9, stop=stop)
    assert draft is not None
    assert whole is not None
    assert [e.text for e in events] == [text for text, _ in stop.seen]
    assert len(events) == 5
    assert (draft.stopped, draft.complete, whole.stopped) == (True, False, False)
    if pair.shared_vocabulary:
        assert draft.tokens == whole.tokens[:5]
    assert all(np.isnan(logprob) for _, logprob in stop.seen)  # nobody asked for them
    assert (draft.logprobs, draft.aligned) == ([], False)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_log_probabilities_of_a_draft_under_its_own_model(pair: Any, temperature: float) -> None:
    stop = AtToken(99)
    draft = write(pair, limit=8, temperature=temperature, logprobs=True, stop=stop)[0]
    assert draft is not None
    assert draft.logprobs == [logprob for _, logprob in stop.seen]
    assert draft.aligned == pair.shared_vocabulary
    prompt = pair.draft.prompt(ask(QUESTION))
    if temperature == 0:
        tokens = greedy_text(pair.draft.model, prompt, 8)
    elif pair.shared_vocabulary:
        tokens = draft.tokens
    else:
        return  # which tokens were drawn is not handed over
    context = Context(pair.draft.model, n_ctx=512, n_threads=1, kv_type="f32", flash_attn="off")
    row = context.last_row(prompt)
    for token, logprob in zip(tokens, draft.logprobs, strict=True):
        logits = row[0].astype(np.float64)
        assert logprob == pytest.approx(logits[token] - np.logaddexp.reduce(logits), abs=1e-4)
        row = context.last_row([token])
    context.close()


def test_the_end_of_a_draft_has_a_log_probability_too(load: Any, tiny: Any) -> None:
    pair = load(target=tiny(seed=1), draft=tiny(seed=2, bias={"<|im_end|>": 16.0}))
    draft = write(pair, limit=100, logprobs=True)[0]
    assert draft is not None
    assert draft.complete
    assert len(draft.logprobs) == len(draft.tokens) + 1
