"""The command that loads other models: /model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from parse_local.errors import ParseLocalError, UsageError
from parse_local.sessions.record import models_to_json
from parse_local.terminal.dialogue import Dialogue
from parse_local.terminal.handlers.table import Command


def _model(chat: Dialogue, argument: str) -> None:
    if not argument:
        chat.say(f"Models: {chat.engine.pair_name}. /model PAIR, or DRAFT TARGET, loads others.")
        return
    loader = chat.loader
    if loader is None:
        raise UsageError("Other models cannot be loaded here.")
    models = _named(argument)
    before = chat.models
    loader.plan(models, chat.engine)  # until here the old ones stay loaded: both may not fit
    chat.engine.close()
    try:
        chat.engine = loader.load(models)
    except (ParseLocalError, KeyboardInterrupt):
        _bring_back(chat, before)
        raise
    chat.models = dict(models)
    chat.say(f"Loaded {chat.engine.pair_name}; the conversation goes on with it.")
    chat.say_where_thinking_is_idle()


def _bring_back(chat: Dialogue, models: Mapping[str, str]) -> None:
    assert chat.loader is not None
    try:
        chat.engine = chat.loader.load(models)
    except (ParseLocalError, KeyboardInterrupt) as again:
        chat.leaving = True  # there is nothing left to talk to
        if isinstance(again, ParseLocalError):
            chat.complain(again)
        chat.note("The session is kept; `parse-local chat --resume` goes on with it.")


def _named(argument: str) -> dict[str, str]:
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError("There is an open quotation mark; close it.") from error
    if len(words) == 1:
        return models_to_json(words[0], None, None)
    if len(words) == 2:
        return models_to_json(None, *words)
    raise UsageError("Name a pair, or a draft and a target: /model PAIR.")


MODELS = (
    Command(
        "/model",
        "PAIR",
        "Load another pair, or `DRAFT TARGET`; alone: name the loaded one.",
        _model,
        completes="pair",
    ),
)
