"""Answers of several conversations in turn: the same as if each had an engine of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import answer, ask
from tiny_gguf import READABLE, write_tiny_gguf
from tiny_heads import eagle3

from parse_local import LoadOptions, memory
from parse_local.llama._bindings import lib
from parse_local.llama.context import Context, n_common
from parse_local.llama.conversations import CopyShelf, SequenceShelf
from parse_local.llama.model import Model
from parse_local.room import add_cached, room_for

Messages = list[dict[str, str]]
TARGET: dict[str, Any] = {"seed": 1, "bias": READABLE}
DRAFT: dict[str, Any] = {"seed": 2, "weights_from": 1, "bias": READABLE}
EXACT = {"strategy": "parse", "accept": "exact"}
WHOLE = {"strategy": "parse", "accept": "semantic", "tau_full": 1.0, "delta": 8}
QUESTIONS = (
    "0. What is the capital of the country that lies north of the Alps?",
    "1. Please write a function that turns a list of numbers around.",
    "2. How many apples are left when two of seven have been eaten?",
)
"""Far from each other from the first character on; longer than what is not worth a place."""


@pytest.fixture
def fresh(load: Callable[..., Any], tiny: Callable[..., Path]) -> Callable[..., Any]:
    def loaded(**arguments: Any) -> Any:
        files = {"target": tiny(**TARGET), "draft": tiny(**DRAFT)}
        return load(**{**files, "flash_attn": "on", **arguments})

    return loaded


def turn(engine: Any, messages: Messages, **options: Any) -> Any:
    """Answer, and make the answer and a further question part of the conversation."""
    result = answer(engine, messages, **{"max_tokens": 40, **options})
    messages += [{"role": "assistant", "content": result.text}, *ask("go on")]
    return result


def size(result: Any) -> int:
    return int(result.usage.prompt_tokens + result.usage.completion_tokens)


# the same answers


@pytest.mark.parametrize(
    "options",
    [EXACT, WHOLE, {"strategy": "target"}, {"strategy": "speculative"}, {"strategy": "draft"}],
    ids=["exact", "whole", "target", "speculative", "draft"],
)
def test_conversations_in_turn_are_as_each_alone(
    fresh: Callable[..., Any], options: dict[str, Any]
) -> None:
    engine = fresh(n_cached=2, spec="ngram")
    alone = [fresh(spec="ngram") for _ in QUESTIONS]
    together = [ask(question) for question in QUESTIONS]
    apart = [ask(question) for question in QUESTIONS]
    for which in (0, 1, 2, 0, 2, 1):
        found = turn(engine, together[which], **options)
        expected = turn(alone[which], apart[which], **options)
        assert found.text == expected.text
        assert found.usage == expected.usage
        if len(together[which]) > 3:  # all of them begin with the same few tokens
            assert found.tokens == expected.tokens
            reused = (found.tokens.reused, found.tokens.reused_draft)
            assert max(reused) >= len(engine.target.prompt(ask(QUESTIONS[which]))) - 1


@pytest.mark.parametrize("architecture", ["gemma3", "mamba", "lfm2"])
def test_other_memories_answer_the_same(
    load: Callable[..., Any], tiny: Callable[..., Path], architecture: str
) -> None:
    files = {
        "target": tiny(seed=3, architecture=architecture, n_layer=2, bias=READABLE),
        "draft": tiny(seed=4, weights_from=3, architecture=architecture, n_layer=2, bias=READABLE),
    }
    engine, plain = load(**files, n_cached=2), load(**files)
    conversations = [ask(question) for question in QUESTIONS]
    for which in (0, 1, 2, 0, 2, 1):
        messages = [*conversations[which]]
        found = turn(engine, conversations[which], **WHOLE)
        plain.forget()
        assert found.text == turn(plain, messages, **WHOLE).text
        prompt = engine.target.prompt(messages[:-2])
        if len(messages) > 3:  # the question and the answer before it, but perhaps its end
            n_first = len(engine.target.prompt(messages[:1]))
            assert found.tokens.reused >= n_first - 1
            assert found.tokens.reused_draft >= n_first - 1
            assert found.tokens.reused < len(prompt)


def test_without_places_nothing_is_kept(fresh: Callable[..., Any]) -> None:
    engine = fresh()
    first = turn(engine, ask(QUESTIONS[0]), **EXACT)
    turn(engine, ask(QUESTIONS[1]), **EXACT)
    again = turn(engine, ask(QUESTIONS[0]), **EXACT)
    prompts = [engine.target.prompt(ask(q)) for q in QUESTIONS[:2]]
    assert first.tokens.reused == 0
    assert again.tokens.reused == again.tokens.reused_draft == n_common(*prompts)
    assert lib.llama_n_seq_max(engine.draft.context.handle) == 1


# what is reused


def test_the_least_recent_conversation_goes_first(fresh: Callable[..., Any]) -> None:
    engine = fresh(n_cached=1)
    conversations = [ask(question) for question in QUESTIONS]
    for which in (0, 1, 2):
        turn(engine, conversations[which], **EXACT)
    prompts = [engine.target.prompt(ask(q)) for q in QUESTIONS]
    found = turn(engine, conversations[1], **EXACT)
    assert found.tokens.reused > len(prompts[1])
    found = turn(engine, conversations[0], **EXACT)  # went when the third was cached
    assert found.tokens.reused == max(n_common(prompts[0], p) for p in prompts[1:])


def test_forgetting_empties_all(fresh: Callable[..., Any]) -> None:
    engine = fresh(n_cached=2)
    conversations = [ask(question) for question in QUESTIONS]
    for messages in conversations:
        turn(engine, messages, **EXACT)
    engine.forget()
    found = turn(engine, conversations[0], **EXACT)
    assert (found.tokens.reused, found.tokens.reused_draft) == (0, 0)


def test_an_answer_made_again_and_its_first_version(fresh: Callable[..., Any]) -> None:
    engine = fresh(n_cached=2)
    drawn = {**EXACT, "temperature": 1.0, "max_tokens": 60}
    messages = ask(QUESTIONS[0])
    one, other = [*messages], [*messages]
    turn(engine, one, **drawn, seed=1)
    held = list(engine.target.context.tokens)
    found = turn(engine, other, **drawn, seed=2)
    n_prompt = found.usage.prompt_tokens
    assert found.tokens.reused == found.tokens.reused_draft == n_prompt - 1
    found = turn(engine, one, **EXACT)  # the first answer after all
    assert n_prompt + 32 < found.tokens.reused == n_common(held, engine.target.prompt(one[:-2]))
    found = turn(engine, other, **EXACT)
    assert found.tokens.reused > n_prompt + 32
    # An undone turn: the conversation goes back, and then on in another way.
    back = [*one[:2], *ask("something else")]
    found = turn(engine, back, **EXACT)
    shared = n_common(*(engine.target.prompt(m) for m in (one[:-2], back[:-2])))
    assert found.tokens.reused == shared


def test_an_answer_may_fill_the_context(fresh: Callable[..., Any]) -> None:
    engine = fresh(n_ctx=256, n_cached=3, max_forks=4)
    conversations = [ask(question) for question in QUESTIONS]
    for messages in conversations:
        turn(engine, messages, max_tokens=120, **EXACT)
    long = ask("x" * 150)
    found = answer(engine, long, **EXACT)
    assert size(found) == 256
    plain = answer(fresh(n_ctx=256, max_forks=4), long, **EXACT)
    assert found.text == plain.text


def test_verdicts_on_a_text_come_from_its_own_conversation(fresh: Callable[..., Any]) -> None:
    engine, text = fresh(n_cached=2), "One. Two. Three."
    expected = fresh().verify(ask(QUESTIONS[0]), text)
    for question in QUESTIONS:
        turn(engine, ask(question), **EXACT)
    engine.target.context.start_count()
    found = engine.verify(ask(QUESTIONS[0]), text)
    n_prompt = len(engine.target.prompt(ask(QUESTIONS[0])))
    assert engine.target.context.n_decoded == 1 + len(text)  # the prompt's last token, the text
    assert len(engine.target.context.tokens) == n_prompt + len(text)
    for one, other in zip(found.boundaries, expected.boundaries, strict=True):
        assert one.p_correct == pytest.approx(other.p_correct, rel=1e-4)


def test_heads_follow_the_running_conversation(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    biased: dict[str, Any] = {"bias": {"a": 60.0}}
    target = write_tiny_gguf(tmp_path / "target.gguf", seed=1, n_layer=4, **biased)
    head = write_tiny_gguf(
        tmp_path / "head.gguf", seed=5, architecture="eagle3", write_layers=eagle3, **biased
    )
    files = {"target": target, "target_only": True, "spec": "eagle3", "spec_model": head}
    files["flash_attn"] = "on"
    engine, plain = (
        load(**files, n_cached=2),
        load(target=target, target_only=True, flash_attn="on"),
    )
    options = {"strategy": "speculative", "max_tokens": 40}
    conversations = [ask(question) for question in QUESTIONS]
    proposed = []
    for which in (0, 1, 1, 0, 0, 2):
        expected = answer(plain, [*conversations[which]], strategy="target", max_tokens=40)
        found = turn(engine, conversations[which], **options)
        assert found.text == expected.text
        proposed.append(found.tokens.spec_proposed > 0)
    # It has not seen the one that came out of the cache, until a prompt begins anew.
    assert proposed == [True, True, True, False, False, True]


# stopping


class StoppedError(Exception):
    """Stands in for an interrupt."""


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_a_cancel_at_any_step_leaves_every_conversation_whole(
    load: Callable[..., Any],
    tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
) -> None:
    files = {
        "target": tiny(seed=3, architecture=architecture, n_layer=2, bias=READABLE),
        "draft": tiny(seed=4, weights_from=3, architecture=architecture, n_layer=2, bias=READABLE),
    }
    engine, plain = (load(**files, flash_attn="on", **more) for more in ({"n_cached": 2}, {}))
    options = {**WHOLE, "max_tokens": 20}
    run = Context._run
    n_cancelled = 0
    for n in (0, 2, 5, 9, 20):
        question = QUESTIONS[n % 3] + "!" * n
        n_run = 0

        def cancelled(context: Context, *decode: Any, n: int = n) -> None:
            nonlocal n_run
            if n_run == n:
                engine.cancel()
            n_run += 1
            run(context, *decode)

        with monkeypatch.context() as patch:
            patch.setattr(Context, "_run", cancelled)
            found = answer(engine, question, **options)
        n_cancelled += found.finish_reason == "cancelled"
        for again in (question, QUESTIONS[(n + 1) % 3]):
            assert answer(engine, again, **options).text == answer(plain, again, **options).text
    assert n_cancelled >= 4


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_an_interrupt_while_conversations_change_places(
    load: Callable[..., Any],
    tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    behind: bool,
) -> None:
    files = {
        "target": tiny(seed=3, architecture=architecture, n_layer=2, bias=READABLE),
        "draft": tiny(seed=4, weights_from=3, architecture=architecture, n_layer=2, bias=READABLE),
    }
    engine, plain = (
        load(**files, n_ctx=256, flash_attn="on", **more) for more in ({"n_cached": 2}, {})
    )
    options = {**EXACT, "max_tokens": 20}
    shelf = SequenceShelf if architecture == "llama" else CopyShelf
    n_stopped = 0
    for name in ("put", "fetch", "drop"):
        original = getattr(shelf, name)

        def stopped(*arguments: Any, original: Any = original) -> Any:
            if behind:
                original(*arguments)
            raise StoppedError

        for which in (0, 1, 2, 0):
            question = QUESTIONS[which] + "," * 40
            with monkeypatch.context() as patch:
                patch.setattr(shelf, name, stopped)
                try:
                    answer(engine, question, **options)
                except StoppedError:
                    n_stopped += 1
            assert answer(engine, question, **options).text == (
                answer(plain, question, **options).text
            )
        long = ask("y" * 200)  # no cell is lost
        assert size(answer(engine, long, **EXACT)) == 256
    assert n_stopped > 3


# memory


def test_places_are_part_of_the_memory_that_is_planned(
    load: Callable[..., Any], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"target": tiny(**TARGET), "draft": tiny(**DRAFT)}
    small = {"n_ctx": 1024, "max_forks": 4, "flash_attn": "on"}
    plain, ample = load(**files, **small), load(**files, **small, n_cached=3)
    for role in ("target", "draft"):
        one, other = (getattr(e, role).context for e in (plain, ample))
        assert one.n_cells == other.n_cells
        cells = [lib.llama_n_ctx(c.handle) for c in (one, other)]
        assert cells[1] - cells[0] == 3 * 1024
        assert lib.llama_n_seq_max(other.handle) - lib.llama_n_seq_max(one.handle) == 4
    assert ample.notes == plain.notes


@pytest.mark.parametrize(
    ("spare", "n_cells", "n_copies"),
    [
        (10_000_000, 3 * 1024, 3),
        # Half of it for conversations of 1,024 tokens in F32: 256 bytes a token in the target,
        # twice 512 in the draft, whose two layers are copied at two places. 1,280 bytes x 1,024
        # x 3 are wanted, and half of that is there.
        (1280 * 1024 * 3, 3 * 512, 1),
        (0, 0, 0),
        (-5_000_000, 0, 0),
    ],
)
def test_places_take_half_of_what_is_left(
    tiny: Callable[..., Path], spare: int, n_cells: int, n_copies: int
) -> None:
    options = LoadOptions(n_ctx=1024, n_cached=3, kv_type="f32")
    models = {
        "target": Model(tiny(**TARGET), headers_only=True),
        "draft": Model(tiny(seed=3, architecture="gemma3", n_layer=2), headers_only=True),
    }
    rooms = {role: room_for(model, options, 0) for role, model in models.items()}
    found, note = add_cached(rooms, options, spare)
    target, draft = found["target"], found["draft"]
    assert (target.n_cached, target.n_cached_cells) == (3, n_cells)
    assert (draft.n_cached, draft.n_cached_cells) == (n_copies, 0)
    assert target.need.kv_cache - rooms["target"].need.kv_cache == 256 * n_cells
    assert draft.need.kv_cache == rooms["draft"].need.kv_cache
    assert draft.need.copies == 1024 * 1024 * n_copies
    assert (note == "") == (n_copies == 3)
    assert note == "" or f"room for {n_cells:,} tokens instead of 3,072" in note
    for model in models.values():
        model.close()


def test_a_machine_short_of_memory_keeps_fewer(
    load: Callable[..., Any], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"target": tiny(**TARGET), "n_ctx": 1024, "max_forks": 4, "flash_attn": "on"}
    needed = 0

    def total(needs: dict[str, Any], available: int) -> None:
        nonlocal needed
        needed = sum(need.total for need in needs.values())

    monkeypatch.setattr(memory, "check", total)
    load(**files)
    left = needed + 2 * 256 * 1000  # of which half is for conversations: 768 tokens and some
    available = type("Memory", (), {"available": left})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: available)
    engine = load(**files, n_cached=3)
    assert any("room for 768 tokens instead of 3,072" in note for note in engine.notes)
    context = engine.target.context
    assert lib.llama_n_ctx(context.handle) == context.n_cells + 768
    first = turn(engine, ask(QUESTIONS[0]), strategy="target")
    turn(engine, ask(QUESTIONS[1]), strategy="target")
    again = turn(engine, ask(QUESTIONS[0]), strategy="target")
    assert again.text == first.text
    assert again.tokens.reused == again.usage.prompt_tokens - 1
