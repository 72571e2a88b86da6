"""Asking an engine, with a check of every event on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parse_local import Options, Result
from parse_local.events import Accepted, Drafted, Event, Finished, RolledBack, Text, Verified
from parse_local.llama.context import Context


def ask(text: str) -> list[dict[str, str]]:
    """A conversation of one question."""
    return [{"role": "user", "content": text}]


def answer(engine: Any, question: str | list[dict[str, str]], **options: Any) -> Result:
    """The result of one answer whose events kept the contract of `parse_local.events`.

    By fixed settings (strategy "parse") unless another strategy is named: what is planned
    depends on the machine's speed.
    """
    options = {"strategy": "parse", **options}
    messages = ask(question) if isinstance(question, str) else question
    events = list(engine.stream(messages, Options(**options)))
    return check_contract(events, max_tokens=options.get("max_tokens", Options().max_tokens))


def greedy_text(model: Any, tokens: list[int], n: int) -> list[int]:
    """What the model writes behind `tokens` in a cache of its own, one token at a time."""
    context = Context(model, n_ctx=1024, n_threads=1, kv_type="f32", flash_attn="off")
    written: list[int] = []
    row = context.last_row(tokens)
    for _ in range(n):
        token = int(row[0].argmax())
        if model.is_eog(token):
            break
        written.append(token)
        row = context.last_row([token])
    context.close()
    return written


def check_contract(events: Sequence[Event], *, max_tokens: int) -> Result:
    """Assert what `parse_local.events` promises; returns the result."""
    *before, finished = events
    assert isinstance(finished, Finished)
    result = finished.result
    texts = [e for e in before if isinstance(e, Text)]
    for channel, text in (("answer", result.text), ("reasoning", result.reasoning)):
        assert "".join(t.text for t in texts if t.channel == channel) == text
        assert "".join(s.text for s in result.spans if s.channel == channel) == text
    for one, next_one in zip(result.spans, result.spans[1:], strict=False):
        assert (one.source, one.channel) != (next_one.source, next_one.channel)
    assert result.usage.completion_tokens <= max_tokens
    assert result.tokens.n_accept <= result.usage.completion_tokens
    verified = [e for e in before if isinstance(e, Verified)]
    assert tuple(v.round for v in verified) == result.rounds

    # Drafted (many) -> Verified -> Accepted and/or RolledBack -> Text
    follow = {
        None: (Drafted, Verified, Text),
        Drafted: (Drafted, Verified),
        Verified: (Accepted, RolledBack, Drafted, Verified, Text),
        Accepted: (RolledBack, Drafted, Verified, Text),
        RolledBack: (Drafted, Verified, Text),
        Text: (Drafted, Verified, Text),
    }
    last: type[Any] | None = None
    n_drafted = 0
    for event in before:
        kind = type(event)
        assert issubclass(kind, follow[last]) or result.finish_reason == "cancelled", (last, kind)
        if isinstance(event, Drafted):
            n_drafted = n_drafted + 1 if last is Drafted else 1
            assert event.n_draft == n_drafted
        last = kind
    for i, event in enumerate(before):
        if isinstance(event, Verified):
            _check_round(event, before[i + 1 : i + 3])
    return result


def _check_round(verified: Verified, behind: Sequence[Event]) -> None:
    r = verified.round
    kept = [e for e in behind[:1] if isinstance(e, Accepted)]
    dropped = [e for e in behind[len(kept) : len(kept) + 1] if isinstance(e, RolledBack)]
    assert [e.n_accept for e in kept] == ([r.n_accept] if r.n_accept else [])
    assert [e.n_tokens for e in dropped] == (
        [r.n_draft - r.n_accept] if r.n_accept < r.n_draft else []
    )
    text = "".join(e.text for e in [*kept, *dropped])
    # All of it accepted, only an unfinished character may be missing.
    assert text == verified.text or (not dropped and text + "\ufffd" == verified.text)
    n_before = 0
    for boundary in r.boundaries:
        assert n_before < boundary.n_tokens <= r.n_draft
        n_before = boundary.n_tokens
        evidence = [boundary.p_correct, boundary.score, boundary.confidence]
        if not any(e is not None for e in evidence):  # the tokens' scores alone may decide
            assert boundary.terms
            continue
        assert sum(e is not None for e in evidence) == 1
        assert 0 <= (boundary.p_correct or boundary.confidence or 0) <= 1
        assert 0 <= (boundary.score or 0) <= 9
        assert boundary.confidence is not None or 0 < boundary.label_mass <= 1 + 1e-6
