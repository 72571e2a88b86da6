"""Where a stretch of text ends: at a blank line, at a cue, after so many tokens (pure).

A segment is what stands between two blank lines: the step of SpecReason (arXiv 2504.07891)
and of ConfSpec (2602.18447), and the place where Speculative Thinking (2504.12329) looks for
its cues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def open_segment(text: str) -> str:
    """What stands behind the last blank line of a text; all of it where there is none."""
    start = 0
    for found in _BLANK_LINE.finditer(text):
        start = found.end()
    return text[start:]


def at_opening(text: str) -> bool:
    """Whether a text ends with a blank line: a segment is finished and none has begun."""
    return bool(text.strip()) and not open_segment(text).strip()


class SegmentEnd:
    """A `drafting.Stop` at the next blank line that has text before it.

    Args:
        before: the text that is there already; it may end within a segment.
    """

    def __init__(self, before: str = "") -> None:
        self._segment = open_segment(before)

    def push(self, text: str, logprob: float = math.nan) -> bool:
        """Take what a token adds; True: it completes the blank line."""
        self._segment += text
        return _BLANK_LINE.search(self._segment.lstrip()) is not None


class TokenCount:
    """A `drafting.Stop` behind `n` tokens."""

    def __init__(self, n: int) -> None:
        self._n_left = n

    def push(self, text: str, logprob: float = math.nan) -> bool:
        """Take one token; True: it is the last."""
        self._n_left -= 1
        return self._n_left <= 0


@dataclass(frozen=True)
class Cues:
    """Words that show what a stretch of reasoning is about to do.

    They are looked for at the beginning of words and in any case: "check" is found in
    "Checking". The defaults are those of the paper's published settings.

    Args:
        affirmation: the writer thinks it is done.
        reflection: it hesitates or turns back.
        verification: it is about to check what it wrote.

    Source: Speculative Thinking (arXiv 2504.12329), section 3.
    """

    affirmation: tuple[str, ...] = ("yeah", "yes", "final answer", "confident")
    reflection: tuple[str, ...] = ("wait", "alternatively", "hold on", "another")
    verification: tuple[str, ...] = ("verify", "think again", "recap", "check")

    def found(self, text: str) -> bool:
        """Whether any cue is in the text."""
        return _count(text, (*self.affirmation, *self.reflection, *self.verification)) > 0

    def verifies(self, text: str) -> bool:
        """Whether the text is about to check something."""
        return _count(text, self.verification) > 0

    def reflects(self, text: str) -> bool:
        """Whether the text doubts at least as often as it affirms."""
        n_doubts = _count(text, (*self.reflection, *self.verification))
        return n_doubts > 0 and n_doubts >= _count(text, self.affirmation)


def _count(text: str, words: Sequence[str]) -> int:
    if not words:
        return 0
    pattern = r"\b(?:" + "|".join(re.escape(w) for w in words) + ")"
    return len(re.findall(pattern, text, re.IGNORECASE))


class CueStop:
    """A `drafting.Stop` at the first cue of a segment's opening.

    Args:
        cues: the words.
    """

    def __init__(self, cues: Cues) -> None:
        self.found = False
        self._cues = cues
        self._text = ""

    def push(self, text: str, logprob: float = math.nan) -> bool:
        """Take what a token adds; True: a cue is complete."""
        self._text += text
        self.found = self.found or self._cues.found(self._text)
        return self.found
