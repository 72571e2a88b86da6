"""Commands that change what is said: /clear /undo /regen /edit /system /read."""

from __future__ import annotations

from pathlib import Path

import click

from parse_local.errors import UsageError
from parse_local.sessions.record import result_of, title_of
from parse_local.terminal.conversation import Conversation, Turn
from parse_local.terminal.dialogue import Attachment, Dialogue
from parse_local.terminal.handlers.table import Command
from parse_local.terminal.stats import count
from parse_local.text_input import read_file


def _clear(chat: Dialogue, argument: str) -> None:
    kept = chat.recorder.session is not None
    chat.conversation.clear()
    chat.recorder.leave()
    chat.attachments.clear()
    chat.last = None
    chat.say(
        "The conversation is forgotten; its session is kept, and a new one begins."
        if kept
        else "The conversation is forgotten."
    )


def _undo(chat: Dialogue, argument: str) -> None:
    taken = chat.conversation.take_back()
    if not taken:
        chat.say("There is nothing to take back.")
        return
    chat.recorder.remove(taken)
    turns = chat.conversation.turns
    chat.last = result_of(turns[-1].answer) if turns else None
    chat.say(f"Taken back: {title_of(taken[0].content)}")


def _last(chat: Dialogue) -> tuple[str, Turn | None]:
    """The last question, and the turn that asking it again replaces."""
    if chat.conversation.unanswered is not None:
        return chat.conversation.unanswered.content, None
    if not chat.conversation.turns:
        raise UsageError("There is no question yet.")
    turn = chat.conversation.turns[-1]
    return turn.question.content, turn


def _regen(chat: Dialogue, argument: str) -> None:
    question, turn = _last(chat)
    if turn is not None and not chat.options.temperature:
        chat.note("At temperature 0 answers repeat themselves; /set temperature 0.8 varies them.")
    _ask_again(chat, question, turn)


def _edit(chat: Dialogue, argument: str) -> None:
    question, turn = _last(chat)
    try:
        edited = click.edit(question, extension=".md")
    except click.ClickException as error:
        raise UsageError(
            f"The editor failed ({error.format_message()}); set VISUAL or EDITOR to another."
        ) from error
    edited = (edited or "").strip()
    if not edited or edited == question.strip():
        chat.say("Nothing has changed; nothing is asked.")
        return
    for line in edited.split("\n"):
        chat.note(f"> {line}")
    _ask_again(chat, edited, turn)


def _ask_again(chat: Dialogue, question: str, turn: Turn | None) -> None:
    if turn is None:  # the unanswered question gives way to the one asked now
        chat.recorder.remove(chat.conversation.take_back())
    chat.ask(question, replacing=turn, attach=False)


def _system(chat: Dialogue, argument: str) -> None:
    conversation: Conversation = chat.conversation
    if argument == "-":
        conversation.system = None
        chat.say("The system prompt is removed.")
    elif argument:
        conversation.system = argument
        chat.say("The system prompt is set; it holds from the next message on.")
    elif conversation.system:
        chat.say(f"System prompt: {conversation.system}")
    else:
        chat.say("There is no system prompt.")


def _read(chat: Dialogue, argument: str) -> None:
    if argument == "-":
        chat.attachments.clear()
        chat.say("No file goes with the next message.")
        return
    if not argument:
        names = ", ".join(a.name for a in chat.attachments)
        goes = f"With the next message: {names} (/read - leaves them out)."
        chat.say(goes if names else "Name a file: /read FILE puts it into the next message.")
        return
    path = Path(argument.strip("'\"")).expanduser()
    text = read_file(path)
    if "\0" in text:
        raise UsageError(f"{path} is a binary file; only text can be read.")
    if not text.strip():
        raise UsageError(f"{path} is empty.")
    chat.attachments.append(Attachment(path.name, text))
    alone = Conversation(chat.conversation.system)
    n = chat.engine.n_prompt(alone.asking(chat.with_attachments("")), chat.options)
    if n >= chat.engine.n_ctx:
        chat.attachments.pop()
        raise UsageError(
            f"{path} does not fit: with it a message has {n:,} tokens, and the context holds "
            f"{chat.engine.n_ctx:,}; use a shorter file, or start with a larger --ctx."
        )
    lines = count(len(text.splitlines()), "line")
    chat.say(f"{path.name} ({lines}) goes with the next message, {n:,} tokens in all so far.")


TALKING = (
    Command("/clear", "", "Forget the conversation; the system prompt stays.", _clear),
    Command("/undo", "", "Take the last question and its answer back.", _undo),
    Command("/regen", "", "Answer the last question anew.", _regen),
    Command("/edit", "", "Change the last question in $VISUAL or $EDITOR, and ask it.", _edit),
    Command("/system", "TEXT", "Set the system prompt; alone: show it; `-`: remove it.", _system),
    Command(
        "/read",
        "FILE",
        "Put a text file into the next message; `-`: leave all out.",
        _read,
        completes="file",
    ),
)
