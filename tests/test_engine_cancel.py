"""Stopping an answer: soon, keeping what is final, and leaving both caches usable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import answer, ask, check_contract

from parse_local import Options
from parse_local.errors import Cancelled
from parse_local.events import Drafted, Event, RolledBack, Text, Verified
from parse_local.llama.context import Context

QUESTION = "hello there"
MODES: dict[str, dict[str, Any]] = {
    "exact": {"strategy": "parse", "accept": "exact"},
    "whole answer": {
        "strategy": "parse",
        "accept": "semantic",
        "tau_full": 1.0,
        "tau_prefix": 1.0,
        "delta": 4,
    },
    "redraft": {
        "strategy": "parse",
        "accept": "semantic",
        "tau_full": 1.0,
        "tau_prefix": 0.001,
        "window": 12,
        "delta": 4,
        "after_reject": "redraft",
    },
    "auto": {"strategy": "auto"},
    "target": {"strategy": "target"},
    "draft": {"strategy": "draft"},
}


@pytest.fixture
def fresh(load: Callable[..., Any], tiny: Callable[..., Path]) -> Callable[[], Any]:
    return lambda: load(target=tiny(seed=1), draft=tiny(seed=3))


class CancelAtDecode:
    """Cancels from another thread just before the n-th llama_decode, and counts those that ran.

    The decode itself begins with the flag set, as when it comes in the middle of it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Any, n: int) -> None:
        self.n_run = 0
        run = Context._run

        def counted(context: Context, *decode: Any) -> None:
            if self.n_run == n:
                thread = threading.Thread(target=engine.cancel)
                thread.start()
                thread.join()
            run(context, *decode)
            self.n_run += 1

        monkeypatch.setattr(Context, "_run", counted)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_cancel_before_any_decode_step(
    fresh: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    options = {"max_tokens": 24, **MODES[mode]}
    engine = fresh()
    with monkeypatch.context() as patch:
        steps = CancelAtDecode(patch, engine, n=-1)
        whole = answer(fresh(), QUESTION, **options)
        n_steps = steps.n_run
    assert n_steps > 10
    for n in range(n_steps):
        with monkeypatch.context() as patch:
            steps = CancelAtDecode(patch, engine, n)
            found = answer(engine, QUESTION, **options)
        if found.finish_reason != "cancelled":
            # The caches of the round before made this answer shorter than n steps.
            assert steps.n_run <= n
            assert found.text == whole.text
            continue
        assert steps.n_run == n  # nothing was decoded after it
        assert whole.text.startswith(found.text.rstrip("\ufffd"))
        assert found.usage.completion_tokens < 24
    assert answer(engine, QUESTION, **options).text == whole.text
    for messages in (ask("another question"), [*ask(QUESTION), *ask("x")]):
        assert answer(engine, messages, **options).text == answer(fresh(), messages, **options).text


@pytest.mark.parametrize("phase", [Drafted, Verified, RolledBack, Text])
@pytest.mark.parametrize("mode", ["exact", "whole answer", "redraft"])
def test_a_cancel_in_every_phase_comes_before_the_next_step(
    fresh: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, mode: str, phase: type[Any]
) -> None:
    engine = fresh()
    steps = CancelAtDecode(monkeypatch, engine, n=-1)
    events: list[Event] = []
    n_at_cancel = -1
    for event in engine.stream(ask(QUESTION), Options(max_tokens=60, **MODES[mode])):
        events.append(event)
        if n_at_cancel < 0 and isinstance(event, phase) and len(events) > 3:
            engine.cancel()
            n_at_cancel = steps.n_run
    found = check_contract(events, max_tokens=60)
    assert found.finish_reason == "cancelled"
    assert steps.n_run == n_at_cancel
    # What a decode before it had yielded may still come, but no more than that.
    behind = events[[isinstance(e, phase) and i > 2 for i, e in enumerate(events)].index(True) :]
    assert sum(isinstance(e, Drafted) for e in behind) <= 1 + (phase is not Drafted)


def test_a_cancel_in_the_middle_of_a_long_decode(load: Callable[..., Any], tiny: Any) -> None:
    # A prompt of 6,000 tokens in a model that takes seconds for it on one core.
    engine = load(target=tiny(seed=1, n_layer=16, n_embd=256), n_ctx=8192)
    result: list[Any] = []
    messages = ask("x" * 6000)
    worker = threading.Thread(
        target=lambda: result.append(
            engine.generate(messages, Options(strategy="target", max_tokens=5))
        )
    )
    worker.start()
    time.sleep(0.1)
    cancelled = time.perf_counter()
    engine.cancel()
    worker.join()
    assert time.perf_counter() - cancelled < 1.0
    assert result[0].finish_reason == "cancelled"
    assert result[0].text == ""
    assert engine.target.context.n_decoded < 6000


def test_a_keyboard_interrupt_in_the_consumer(fresh: Callable[[], Any]) -> None:
    engine = fresh()
    for mode in ("exact", "redraft", "whole answer"):
        options = Options(max_tokens=40, **MODES[mode])
        for n in (1, 5, 20):
            stream = engine.stream(ask(QUESTION), options)
            try:
                for i, _ in enumerate(stream):
                    if i == n:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                stream.close()
            found = answer(engine, QUESTION, max_tokens=40, **MODES[mode])
            assert found.text == answer(fresh(), QUESTION, max_tokens=40, **MODES[mode]).text


@pytest.mark.parametrize("behind", [True, False])
def test_a_keyboard_interrupt_beside_any_decode_step(
    fresh: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    # Python may raise it between llama_decode and the cache's own bookkeeping.
    options = {"max_tokens": 16, **MODES["redraft"]}
    whole = answer(fresh(), QUESTION, **options)
    engine = fresh()
    run = Context._run
    for n in range(0, 60, 3):
        n_run = 0

        def interrupted(context: Context, *decode: Any, n: int = n) -> None:
            nonlocal n_run
            n_run += 1
            if n_run == n + 1 and not behind:
                raise KeyboardInterrupt
            run(context, *decode)
            if n_run == n + 1:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Context, "_run", interrupted)
            stream = engine.stream(ask(QUESTION), Options(**options))
            try:
                for _ in stream:
                    pass
            except KeyboardInterrupt:
                pass
            else:
                break
        assert answer(engine, QUESTION, **options).text == whole.text
    assert n > 6


def test_a_cancelled_verification_raises(
    fresh: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fresh()
    text = "One. Two. Three."
    expected = engine.verify(ask(QUESTION), text)
    for n in range(3):
        with monkeypatch.context() as patch:
            CancelAtDecode(patch, engine, n)
            engine.target.context.clear()
            with pytest.raises(Cancelled):
                engine.verify(ask(QUESTION), text)
    again = engine.verify(ask(QUESTION), text)
    assert [b.n_tokens for b in again.boundaries] == [b.n_tokens for b in expected.boundaries]
    for one, other in zip(again.boundaries, expected.boundaries, strict=True):
        assert one.p_correct == pytest.approx(other.p_correct, rel=1e-4)


def test_a_cancel_when_nothing_runs_is_forgotten(fresh: Callable[[], Any]) -> None:
    engine = fresh()
    engine.cancel()
    assert answer(engine, QUESTION, max_tokens=5, **MODES["exact"]).finish_reason == "length"
