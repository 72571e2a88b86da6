"""What is compared: strategies of the engine by their names, each with options of its own."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from parse_local.bench.record import Answered
from parse_local.chat_template import Message
from parse_local.engine import Engine
from parse_local.errors import UsageError
from parse_local.events import Accepted, Finished, Result, Text, Verified
from parse_local.policy import Options, Strategy

BASE = "target"
"""What everything is compared with; always among the strategies."""
_FIXED = ("strategy", "stop", "max_tokens")  # the same for all, or said otherwise


class System(Protocol):
    """Whoever answers: a strategy of the engine, or another program."""

    @property
    def name(self) -> str:
        """As it stands in the tables."""

    @property
    def pid(self) -> int | None:
        """The process whose memory counts; None where it is on another machine."""

    def answer(self, messages: Sequence[Message], max_tokens: int) -> Answered:
        """Answer the last message, greedily and from an empty cache."""

    def cancel(self) -> None:
        """Stop the running answer soon; from any thread or signal handler."""


@dataclass(frozen=True)
class Item:
    """One of the strategies that were asked for.

    Args:
        name: as it was written, which is how it stands in the tables.
        options: for its answers; `max_tokens` is set for each problem.
    """

    name: str
    options: Options


def parse_strategies(text: str) -> list[Item]:
    """Read "target,auto:accept=exact,parse:accept=semantic,window=64".

    A part with "=" and no ":" goes on with the options of the item before it. `target` comes
    first where it is not among them.

    Raises:
        UsageError: an unknown strategy or option, or an item that is there twice.
    """
    written: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        if written and "=" in part and ":" not in part:
            written[-1] += f",{part}"
        elif part:
            written.append(part)
    if BASE not in written:
        written.insert(0, BASE)
    twice = next((w for i, w in enumerate(written) if w in written[:i]), None)
    if twice is not None:
        raise UsageError(f"--strategies names {twice!r} twice; leave one out.")
    return [_item(w) for w in written]


def _item(written: str) -> Item:
    name, _, settings = written.partition(":")
    if name not in get_args(Strategy):
        listed = ", ".join(get_args(Strategy))
        raise UsageError(f"There is no strategy {name!r}; --strategies takes: {listed}.")
    values: dict[str, Any] = {}
    for setting in settings.split(",") if settings else ():
        key, equals, value = setting.partition("=")
        field = key.strip().replace("-", "_")
        kind = _kinds().get(field)
        if kind is None or not equals:
            listed = ", ".join(_kinds())
            raise UsageError(f"{written!r} has no option {key.strip()!r}; there are: {listed}.")
        values[field] = _value(kind, value.strip(), f"{key.strip()} in {written!r}")
    try:
        return Item(written, Options(strategy=name, **values))  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(f"{written!r} does not work: {error}") from error


def _kinds() -> dict[str, type]:
    # Options' fields that can be set here, by the type of what is written behind "=".
    found = {}
    hints = get_type_hints(Options)
    for field in dataclasses.fields(Options):
        hint = hints[field.name]
        if get_origin(hint) is types.UnionType or type(None) in get_args(hint):
            hint = next(a for a in get_args(hint) if a is not type(None))
        if get_origin(hint) is Literal:
            hint = str
        if field.name not in _FIXED and hint in (int, float, bool, str):
            found[field.name] = hint
    return found


def _value(kind: type, text: str, what: str) -> Any:
    if kind is bool:
        if text not in ("true", "false"):
            raise UsageError(f"{what} must be true or false, not {text!r}.")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{what} must be a number, not {text!r}.") from None


class EngineSystem:
    """One strategy of a loaded pair.

    Args:
        engine: shared by all strategies; its caches are emptied before each answer.
        item: which strategy, and how.
        pid: of this process.
    """

    def __init__(self, engine: Engine, item: Item, pid: int) -> None:
        self.name = item.name
        self.pid: int | None = pid
        self._engine = engine
        self._options = item.options

    def answer(self, messages: Sequence[Message], max_tokens: int) -> Answered:
        """As `System.answer`; raises as `Engine.stream`."""
        self._engine.forget()
        options = dataclasses.replace(self._options, max_tokens=max_tokens)
        rounds: list[dict[str, Any]] = []
        n_chars = 0
        result = Result()
        for event in self._engine.stream(messages, options):
            if isinstance(event, Text):
                n_chars += len(event.text)
            elif isinstance(event, Verified):
                about = {"start": n_chars, "draft": event.text, "n_kept_chars": 0}
                rounds.append({**about, **dataclasses.asdict(event.round)})
            elif isinstance(event, Accepted):
                rounds[-1]["n_kept_chars"] = len(event.text)
            elif isinstance(event, Finished):
                result = event.result
        return Answered(result, tuple(rounds))

    def cancel(self) -> None:
        """As `System.cancel`."""
        self._engine.cancel()
