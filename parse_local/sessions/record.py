"""What is kept of a chat: sessions, messages, and who wrote which part of an answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from parse_local.errors import UsageError
from parse_local.events import FinishReason, Result, Span, Timings, TokenCounts, Usage
from parse_local.policy import Options

Role = Literal["user", "assistant"]

TITLE_LENGTH = 60
"""Most characters of a session's title."""


@dataclass(frozen=True)
class StoredMessage:
    """One question or answer.

    Args:
        role: who speaks.
        content: the text; of an answer without its reasoning.
        reasoning: what a thinking model wrote before.
        spans: an answer cut by who wrote it, in order, reasoning included.
        finish_reason: of an answer; None while it is being written, so also where the
            program was killed before its end.
        figures: of an answer, see `figures_of`.
        created: seconds since the epoch.
        in_context: whether the models still see it; False once it was dropped to make room.
        id: in the database; None where nothing is kept.
    """

    role: Role
    content: str
    reasoning: str = ""
    spans: tuple[Span, ...] = ()
    finish_reason: FinishReason | None = None
    figures: Mapping[str, Any] = field(default_factory=dict, hash=False)
    created: float = 0.0
    in_context: bool = True
    id: int | None = None


@dataclass(frozen=True)
class Session:
    """A chat without its messages.

    Args:
        id: eight hexadecimal digits.
        title: its first question, shortened.
        pair: name of the models, for people.
        models: what `load_pair` took: "pair", or "draft" and "target".
        system: the system prompt.
        options: fields of `Options` that were not the defaults.
        created, updated: seconds since the epoch.
        n_messages: questions and answers.
    """

    id: str
    title: str
    pair: str = ""
    models: Mapping[str, str] = field(default_factory=dict, hash=False)
    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    created: float = 0.0
    updated: float = 0.0
    n_messages: int = 0


def title_of(question: str) -> str:
    """A question in one line of at most `TITLE_LENGTH` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in question).split())
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


# options


def options_to_json(options: Options) -> dict[str, Any]:
    """The fields that are not the defaults and can be written down."""
    default = Options()
    found: dict[str, Any] = {}
    for f in dataclasses.fields(Options):
        value = getattr(options, f.name)
        if value == getattr(default, f.name):
            continue
        if value is None or isinstance(value, str | int | float):
            found[f.name] = value
        elif isinstance(value, tuple) and all(isinstance(part, str) for part in value):
            found[f.name] = list(value)
    return found


def options_from_json(
    stored: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> tuple[Options, str | None]:
    """Options of an earlier session under those given now.

    Args:
        stored: from `options_to_json`, perhaps of another version.
        given: fields that the user has set in this call.

    Returns:
        The options, and a note where the stored ones cannot be used.

    Raises:
        UsageError: the given ones cannot be used either.
    """
    known = {f.name for f in dataclasses.fields(Options)}
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in stored.items()
        if name in known
    }
    given = dict(given or {})
    try:
        return Options(**{**values, **given}), None
    except (UsageError, TypeError) as error:
        options = Options(**given)
        return options, f"The session's options are not used: {error}"


# answers


def figures_of(result: Result) -> dict[str, Any]:
    """What an answer cost, as it is kept."""
    return {
        "usage": dataclasses.asdict(result.usage),
        "tokens": dataclasses.asdict(result.tokens),
        "timings": {k: round(v, 4) for k, v in dataclasses.asdict(result.timings).items()},
        "n_rounds": len(result.rounds),
        "accepted_share": round(result.accepted_share, 4),
        "tokens_per_second": round(result.tokens_per_second, 2),
        "speedup": result.speedup,
    }


_Counts = TypeVar("_Counts", Usage, TokenCounts, Timings)


def _counts(kind: type[_Counts], stored: Any) -> _Counts:
    known = {f.name for f in dataclasses.fields(kind)}
    values = stored if isinstance(stored, Mapping) else {}
    return kind(**{name: value for name, value in values.items() if name in known})


def result_of(message: StoredMessage) -> Result:
    """A kept answer as a result, without its rounds."""
    return Result(
        text=message.content,
        reasoning=message.reasoning,
        finish_reason=message.finish_reason or "cancelled",
        usage=_counts(Usage, message.figures.get("usage")),
        tokens=_counts(TokenCounts, message.figures.get("tokens")),
        timings=_counts(Timings, message.figures.get("timings")),
        spans=message.spans,
        speedup=message.figures.get("speedup"),
    )


def spans_to_json(spans: tuple[Span, ...]) -> str:
    """Who wrote how many characters of what, in order."""
    return json.dumps([[s.source, s.channel, len(s.text)] for s in spans])


def spans_from_json(text: str, content: str, reasoning: str) -> tuple[Span, ...]:
    """The spans of a stored answer; those of either channel joined give its text."""
    texts = {"answer": content, "reasoning": reasoning}
    spans = []
    for source, channel, n_chars in json.loads(text):
        spans.append(Span(texts[channel][:n_chars], source, channel))
        texts[channel] = texts[channel][n_chars:]
    return tuple(spans)


def models_to_json(pair: str | None, draft: str | None, target: str | None) -> dict[str, str]:
    """What was loaded, so that a resumed session loads the same; files with their whole path."""
    found = {} if pair is None else {"pair": pair}
    for role, value in (("draft", draft), ("target", target)):
        if value is not None:
            path = Path(value)
            found[role] = str(path.absolute()) if path.exists() else str(value)
    return found
