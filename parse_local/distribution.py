"""A next-token distribution, as sampling and speculative sampling pass it around."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Distribution:
    """A next-token distribution over the few tokens that survive the chain.

    Args:
        ids: token ids, shape (k,).
        probs: their probabilities, shape (k,), summing to 1.
    """

    ids: npt.NDArray[np.int32]
    probs: npt.NDArray[np.float64]

    def probability(self, token: int) -> float:
        """Probability of a token, 0 where the chain removed it."""
        found = np.flatnonzero(self.ids == token)
        return float(self.probs[found[0]]) if found.size else 0.0

    def probabilities(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Probabilities of many tokens, shape as `tokens`."""
        order = np.argsort(self.ids)
        at = order[np.searchsorted(self.ids, tokens, sorter=order).clip(max=len(order) - 1)]
        return np.where(self.ids[at] == tokens, self.probs[at], 0.0)

    def sample(self, rng: np.random.Generator) -> int:
        """Draw one token."""
        # As Generator.choice does it, which checks its arguments for longer than it draws.
        cumulated = self.probs.cumsum()
        drawn = rng.random() * cumulated[-1]
        return int(
            self.ids[cumulated.searchsorted(drawn, side="right").clip(max=len(self.ids) - 1)]
        )
