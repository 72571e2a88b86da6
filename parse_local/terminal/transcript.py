"""What was said earlier, printed again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from parse_local.sessions.record import StoredMessage
from parse_local.terminal.cells import visible


def print_messages(
    messages: Sequence[StoredMessage], console: Console, *, reasoning: bool = False
) -> None:
    """Print questions behind `> `, answers as they are, what the models no longer see dim.

    Args:
        messages: in order.
        console: where to.
        reasoning: print also what a thinking model wrote before its answers.
    """
    wrap = not console.is_terminal  # words wrap on a terminal; in a file a line stays one
    for message in messages:
        style = "" if message.in_context else "dim"
        if message.role == "user":
            text = Text("\n".join(f"> {line}" for line in visible(message.content).split("\n")))
            console.print(text, style=f"{style} bold", soft_wrap=wrap)
            continue
        if reasoning and message.reasoning:
            thought = Text(visible(message.reasoning.strip("\n")), style="dim italic")
            console.print(Padding(thought, (0, 0, 0, 2)) if not wrap else thought, soft_wrap=wrap)
        console.print(Text(visible(message.content)), style=style, soft_wrap=wrap)
        if message.finish_reason is None:
            console.print("(interrupted)", style="dim", markup=False)
        console.print()
