"""What drafting has gained against n-grams alone, found by writing the same text again on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parse_local.learning import FreeRates, Rate
from parse_local.planner import Costs, plan_free

Retrace = Callable[[Callable[[int], int]], Iterable[tuple[int, int]]]
"""`Speculation.retrace` of the text in question: it is told how many of so many proposed tokens
to read, and gives (tokens read, tokens of them that held) of each step."""


class Hindsight:
    """Learns what a token gains where a draft model is in use.

    The gain against plain decoding does not say whether the draft model is worth its reading of
    a prompt: n-grams would have written a part of the same text for nothing, and between them
    the draft model has to read what they wrote. What the text would have taken
    without a draft is known once it is there: the proposals depend on nothing else.
    """

    WEIGHT = 100.0  # tokens that what was expected counts for
    KEEP, KEEP_UNUSED = 0.9, 0.98  # of the counts: for each span, and each answer without drafts

    def __init__(self) -> None:
        self._gain = Rate(0.0, self.WEIGHT, self.KEEP)
        self._rates = {False: FreeRates(), True: FreeRates()}

    def gain(self, expected: float) -> float:
        """Plain tokens' worth of time that a token saves; `expected` before anything was seen."""
        return self._gain.expected(expected)

    @property
    def knows(self) -> bool:
        """Whether what was seen outweighs what was expected."""
        return self._gain.tried >= self.WEIGHT

    def forget(self) -> None:
        """An answer was written without drafts: what is known of them fades a little."""
        self._gain.fade(self.KEEP_UNUSED)

    def compare(self, costs: Costs, retrace: Retrace, n_tokens: int, seconds: float) -> None:
        """So many tokens were written with drafts and n-grams.

        Args:
            costs: of the pair.
            retrace: of these tokens.
            n_tokens: how many they are.
            seconds: what their rounds cost, by the same costs.
        """
        plain_s = costs.target.seconds(1)
        n_again, again_s, held_all = 0, 0.0, False

        def choose(n: int) -> int:
            return plan_free(costs, *self._rates[held_all].chances, plain_s, n).n_tokens

        for n_read, n_held in retrace(choose):
            if n_read:
                self._rates[held_all].update(n_held, n_read)
            held_all = 0 < n_read == n_held
            n_again += n_held + 1
            again_s += costs.target.seconds(1 + n_read)
        if n_again and n_tokens:
            saved_s = again_s / n_again - seconds / n_tokens
            self._gain.update(n_tokens * saved_s / plain_s, n_tokens)
