"""Long pastes, folded to one line in the prompt and whole in the message."""

from __future__ import annotations

import re

LONG = 20
"""Lines above which a paste is folded."""


class Pastes:
    """Remembers what was folded, for as long as the chat runs."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """What the prompt shows of a paste: itself, or a mark in its place if it is long."""
        n_lines = text.count("\n") + 1
        if n_lines <= LONG:
            return text
        mark = f"[paste {len(self._texts) + 1}: {n_lines:,} lines]"
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """The text with every mark replaced by what it stands for."""
        if not self._texts:
            return text
        # One pass: a paste may itself hold what looks like a mark.
        marks = "|".join(map(re.escape, self._texts))
        return re.sub(marks, lambda found: self._texts[found[0]], text)
