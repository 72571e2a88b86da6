"""What the target alone would have taken, from its own plain decodes timed in this process."""

from __future__ import annotations

from collections import deque
from statistics import median


class Baseline:
    """Times of the target's plain decodes, one token each, and the speed-up against them.

    Only decodes that really took place count: no measurement of another run and no
    guess from a model's size. They follow the machine and the length of the context, because
    only the last ones are kept; one that stalled does not move their median.
    """

    LEAST = 3
    """Decodes without which nothing is said."""
    KEPT = 48
    """Decodes that are remembered, the last ones."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=self.KEPT)

    @property
    def n_missing(self) -> int:
        """Plain decodes that are still needed before there is a figure."""
        return max(0, self.LEAST - len(self._seconds))

    @property
    def token_s(self) -> float | None:
        """Seconds of a token that the target writes alone; None before enough were timed."""
        return None if self.n_missing else median(self._seconds)

    def observe(self, seconds: float) -> None:
        """The target has written one token by a plain decode."""
        self._seconds.append(seconds)

    def speedup(self, n_tokens: int, prompt_s: float, total_s: float) -> float | None:
        """How many times faster an answer was than the target alone; below 1: slower.

        Args:
            n_tokens: of the answer, one more where the target ended it.
            prompt_s: seconds in which the target read the prompt; alone it reads it too.
            total_s: seconds that the answer took.

        Returns:
            None where nothing was measured.
        """
        if self.token_s is None or n_tokens <= 0 or total_s <= 0:
            return None
        return (prompt_s + n_tokens * self.token_s) / total_s
