"""Commands that change how answers are made: /set /strategy /accept /think."""

from __future__ import annotations

import dataclasses
import shlex
import types
import typing
from dataclasses import replace
from typing import Any, Literal, Union, get_args, get_origin

from parse_local.errors import UsageError
from parse_local.policy import AcceptMode, Options, Strategy, resolve
from parse_local.terminal.context_limit import CONTEXT_FULL, ContextFull
from parse_local.terminal.dialogue import Dialogue
from parse_local.terminal.handlers.table import Command, suggestion

AUTO = "auto"
"""The value of a setting that is left to strategy, mode and profile."""

_OF_THE_CHAT = {"markdown": ("on", "off"), "context_full": CONTEXT_FULL}
"""Settings that are no part of `Options`: their values, the default first."""

_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")

_NOT_SET = frozenset({"cues", "logprobs", "grammar"})
"""Fields of `Options` that make no sense at the terminal: word lists, and what programs ask for."""

_TYPES = typing.get_type_hints(Options)

NAMES = tuple(f.name for f in dataclasses.fields(Options) if f.name not in _NOT_SET)
"""Every setting, by the name of its field in `Options`."""


def choices_of(name: str) -> tuple[str, ...]:
    """The values of a setting that has a list of them, else nothing."""
    kinds, optional = _kinds(name)
    if kinds == (bool,):
        return ("on", "off")
    found = tuple(str(value) for kind in kinds if get_origin(kind) is Literal
                  for value in get_args(kind))  # fmt: skip
    return (*found, AUTO) if found and optional else found


def _kinds(name: str) -> tuple[tuple[Any, ...], bool]:
    hint = _TYPES[name]
    if get_origin(hint) not in (Union, types.UnionType):
        return (hint,), False
    parts = _flat(hint)
    return tuple(p for p in parts if p is not type(None)), type(None) in parts


def _flat(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for inner in get_args(hint) for part in _flat(inner))
    return (hint,)


def completions() -> tuple[str, ...]:
    """What may follow `/set `: every name, and every name with each of its values."""
    choices = {**{name: choices_of(name) for name in NAMES}, **_OF_THE_CHAT}
    return (*choices, *(f"{name} {value}" for name in choices for value in choices[name]))


def parse_value(name: str, text: str) -> Any:
    """The value of a setting as it is typed.

    Raises:
        UsageError: it is none.
    """
    kinds, optional = _kinds(name)
    default = next(f.default for f in dataclasses.fields(Options) if f.name == name)
    if text.lower() == "default":
        return default
    if optional and text.lower() in (AUTO, "none"):
        return None
    choices = choices_of(name)
    kind = kinds[0]
    if kind is bool:
        if text.lower() in (*_ON, *_OFF):
            return text.lower() in _ON
    elif choices:
        if text.lower() in choices:
            return text.lower()
    elif get_origin(kind) is tuple:
        return _texts(name, text)
    elif kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            raise UsageError(f"{name} is {number}, not {text}.") from None
    else:
        return text
    hint = suggestion(text.lower(), choices, f"Choose from: {', '.join(choices)}.")
    raise UsageError(f"There is no {name} {text}. {hint}")


def _texts(name: str, text: str) -> tuple[str, ...]:
    if text.lower() == "none":
        return ()
    words = shlex.shlex(text, posix=True)
    words.whitespace_split, words.commenters, words.escape = True, "", ""
    try:
        parts = list(words)
    except ValueError as error:
        raise UsageError(f"{name} has an open quotation mark; close it.") from error
    # What a shell would need $'…' for.
    return tuple(part.replace("\\n", "\n").replace("\\t", "\t") for part in parts)


def shown(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        parts = (part.replace("\n", "\\n").replace("\t", "\\t") for part in value)
        return shlex.join(parts) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def change(chat: Dialogue, **values: Any) -> None:
    """Answer so from the next message on.

    Raises:
        UsageError: the values are out of range, or the pair does not have what they need.
    """
    options = replace(chat.options, **values)
    resolve(options, chat.engine.profile)
    chat.options = options


def _set(chat: Dialogue, argument: str) -> None:
    name, _, text = argument.partition(" ")
    if name == "parameter":  # as Ollama has it
        name, _, text = text.strip().partition(" ")
    name = name.lower().replace("-", "_")
    if not name:
        chat.say(f"Settings: {', '.join((*NAMES, *_OF_THE_CHAT))}. /show has their values.")
        return
    if name in _OF_THE_CHAT:
        _set_of_the_chat(chat, name, text.strip().lower())
        return
    names = ("tau_full", "tau_prefix") if name == "tau" else (name,)  # as --tau does
    if name == "system":
        raise UsageError("The system prompt has a command of its own: /system TEXT.")
    if not set(names) <= set(NAMES):
        hint = suggestion(name, (*NAMES, *_OF_THE_CHAT), "/show lists the settings.")
        raise UsageError(f"There is no setting {name}. {hint}")
    text = text.strip()
    if not text:
        choices = choices_of(names[0])
        of = f" (one of {', '.join(choices)})" if choices else ""
        chat.say(f"{name}: {shown(getattr(chat.options, names[0]))}{of}")
        return
    value = parse_value(names[0], text)
    change(chat, **dict.fromkeys(names, value))
    chat.say(f"{name}: {shown(value)}")
    if name == "thinking":
        chat.say_where_thinking_is_idle()


def _set_of_the_chat(chat: Dialogue, name: str, text: str) -> None:
    choices = _OF_THE_CHAT[name]
    value = choices[0] if text == "default" else text
    if name == "markdown" and value in (*_ON, *_OFF):
        chat.markdown = value in _ON
    elif name == "context_full" and value in choices:
        chat.context_full = typing.cast(ContextFull, value)
    elif value:
        raise UsageError(f"There is no {name} {text}. Choose from: {', '.join(choices)}.")
    of = "" if value else f" (one of {', '.join(choices)})"
    chat.say(f"{name}: {shown(getattr(chat, name))}{of}")


def _one_of(name: str) -> typing.Callable[[Dialogue, str], None]:
    return lambda chat, argument: _set(chat, f"{name} {argument}")


def _think(chat: Dialogue, argument: str) -> None:
    _set(chat, f"thinking {argument}")


def print_settings(chat: Dialogue) -> None:
    """Every setting with its value; what is not the default is marked, and what `auto` means."""
    default, policy = Options(), resolve(chat.options, chat.engine.profile)
    width = max(len(name) for name in NAMES)
    for name in NAMES:
        value, usual = getattr(chat.options, name), getattr(default, name)
        changed = "" if value == usual else f"  (default: {shown(usual)})"
        if value is None and getattr(policy, name, None) is not None:
            changed = f"  (here: {shown(getattr(policy, name))}){changed}"
        chat.say(f"{name:<{width}}  {shown(value)}{changed}")
    for name, choices in _OF_THE_CHAT.items():
        text = shown(getattr(chat, name))
        changed = "" if text == choices[0] else f"  (default: {choices[0]})"
        chat.say(f"{name:<{width}}  {text}{changed}")


SETTINGS = (
    Command(
        "/set",
        "NAME VALUE",
        "Change a setting; `default` brings its default back; alone: list them.",
        _set,
        completes="setting",
    ),
    Command(
        "/strategy",
        "NAME",
        f"Who writes: {', '.join(get_args(Strategy))}.",
        _one_of("strategy"),
        get_args(Strategy),
    ),
    Command(
        "/accept",
        "MODE",
        "What makes a draft acceptable: exact, loose, semantic, fused or auto.",
        _one_of("accept"),
        (*get_args(AcceptMode), AUTO),
    ),
    Command("/think", "on|off", "Let a model that can think do so.", _think, ("on", "off")),
)
