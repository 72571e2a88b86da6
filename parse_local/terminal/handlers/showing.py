"""Commands that show something: /show /stats /verify."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from parse_local.errors import UsageError
from parse_local.events import Result, Round
from parse_local.policy import resolve
from parse_local.terminal.dialogue import Dialogue
from parse_local.terminal.handlers.settings import print_settings
from parse_local.terminal.handlers.table import Command, suggestion
from parse_local.terminal.interrupt import interruptible, silent_keyboard
from parse_local.terminal.stats import percent, print_stats
from parse_local.terminal.verdicts import print_verdicts


def _last(chat: Dialogue) -> Result:
    if chat.last is None:
        raise UsageError("There is no answer yet.")
    return chat.last


def _colors(chat: Dialogue) -> None:
    from parse_local.terminal.colors import print_colors

    print_colors(_last(chat), chat.console)


def _context(chat: Dialogue) -> None:
    n, n_ctx = chat.n_used, chat.engine.n_ctx
    conversation = chat.conversation
    n_seen, n_turns = len(conversation.seen), len(conversation.turns)
    left = f", {n_turns - n_seen} no longer seen" if n_seen < n_turns else ""
    turns = f"{n_seen} of {n_turns} turns" if left else f"{n_turns} turn{'s' * (n_turns != 1)}"
    chat.say(f"context: {n:,} of {n_ctx:,} tokens ({percent(n / n_ctx)}) · {turns}{left}")


def show_thinking(chat: Dialogue) -> None:
    """Show what the model thought before the last answer."""
    if chat.last is None or not chat.last.reasoning:
        chat.say("Nothing was thought before the last answer.")
        return
    chat.note(chat.last.reasoning.strip("\n"))


_SHOWS = {
    "settings": print_settings,
    "colors": _colors,
    "context": _context,
    "thinking": show_thinking,
}


def _show(chat: Dialogue, argument: str) -> None:
    what = argument.lower() or "settings"
    what = "colors" if what == "colours" else what
    if what not in _SHOWS:
        hint = suggestion(what, list(_SHOWS), f"Choose from: {', '.join(_SHOWS)}.")
        raise UsageError(f"There is nothing called {argument} to show. {hint}")
    _SHOWS[what](chat)


def _stats(chat: Dialogue, argument: str) -> None:
    print_stats(_last(chat), chat.console)


def _verify(chat: Dialogue, argument: str) -> None:
    answer = _last(chat)
    if not answer.text or not chat.conversation.turns:
        raise UsageError("There is no answer to judge.")
    judged = _judged_while_written(answer)
    if judged is None:
        judged = _judge(chat, answer)
    policy = resolve(chat.options, chat.engine.profile)
    print_verdicts(
        answer.text,
        judged,
        console=chat.console,
        tau_full=policy.tau_full,
        tau_prefix=policy.tau_prefix,
        fusion=chat.engine.profile.fusion,
    )


def _judged_while_written(answer: Result) -> Round | None:
    """The one round of an answer that was drafted, judged and kept whole."""
    if len(answer.rounds) != 1:
        return None
    (round,) = answer.rounds
    asked = any(b.p_correct is not None for b in round.boundaries)
    return round if asked and round.whole else None


def _judge(chat: Dialogue, answer: Result) -> Round:
    """Verdicts on an answer of which the rounds say too little; Ctrl-C stops it."""
    turn = chat.conversation.turns[-1]
    messages = chat.conversation.asking(turn.question.content, replacing=turn)
    # Whatever makes drafts acceptable here: verdicts are what was asked for.
    options = replace(chat.options, strategy="parse", accept="semantic", question=None)
    engine = chat.engine
    work = (engine.verify(messages, answer.text, options=options) for _ in range(1))
    waiting = chat.console.status("Judging…") if chat.console.is_terminal else nullcontext()
    with silent_keyboard(), waiting:
        (found,) = interruptible(engine, work)
    return found


SHOWING = (
    Command(
        "/show",
        "[WHAT]",
        "Show all settings, or: colors (who wrote what), context, thinking.",
        _show,
        tuple(_SHOWS),
    ),
    Command("/stats", "", "Show what the last answer cost.", _stats),
    Command("/verify", "", "Show the target's verdicts on the last answer.", _verify),
)
