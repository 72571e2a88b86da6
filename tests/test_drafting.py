"""One window of a draft: where it ends, and how it reaches the target's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asking import ask

from parse_local.answer import Answer
from parse_local.drafting import Draft, Drafter
from parse_local.events import Drafted
from parse_local.llama.sampler import Sampler

QUESTION = "hello there"


def write(
    engine: Any, *, limit: int, max_tokens: int = 100, temperature: float = 0.0, **answer: Any
) -> tuple[Draft | None, list[Drafted], Answer]:
    """One draft of the engine's draft model for an answer as it stands."""
    prompt = engine.draft.prompt(ask(QUESTION))
    growing = Answer(prompt=engine.target.prompt(ask(QUESTION)), max_tokens=max_tokens, **answer)
    drafter = Drafter(
        engine.draft,
        engine.target.model,
        shared_vocabulary=engine.shared_vocabulary,
        sampler=Sampler(engine.draft.model, temperature=temperature, seed=1),
        prompt=prompt,
    )
    events = []
    writing = drafter.write(growing, limit=limit)
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
