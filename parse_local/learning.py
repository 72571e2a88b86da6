"""What a run learns about its proposals, and the account that bounds what learning may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rate:
    """The share of something that holds, counted with forgetting, because it follows the text.

    Args:
        prior: what to expect before anything was counted, 0 to 1.
        weight: how many trials the prior counts for.
        keep: of the earlier counts, at each update.
    """

    prior: float
    weight: float = 4.0
    keep: float = 0.98
    held: float = 0.0
    tried: float = 0.0

    @property
    def value(self) -> float:
        """The share expected of the next trials."""
        return self.expected(self.prior)

    def expected(self, prior: float) -> float:
        """The same, with another prior."""
        return (self.held + prior * self.weight) / (self.tried + self.weight)

    def update(self, held: float, tried: float) -> None:
        """Of `tried` trials, `held` did."""
        self.fade(self.keep)
        self.held += held
        self.tried += tried

    def fade(self, keep: float) -> None:
        """Forget all but `keep` (0 to 1) of the counts."""
        self.held *= keep
        self.tried *= keep


class FreeRates:
    """How a kind of proposal holds: its first token, and each of the others if all before did.

    Where it holds at all it often holds for long, which one rate for both would hide.
    """

    def __init__(self) -> None:
        self._first, self._others = Rate(0.6), Rate(0.8)

    @property
    def chances(self) -> tuple[float, float]:
        """Of the first token, and of each of the others; below 1."""
        return min(self._first.value, 0.99), min(self._others.value, 0.99)

    def forget(self) -> None:
        """One was not worth reading: what is known of them fades, so that one is read again."""
        self._first.update(0, 0)
        self._others.update(0, 0)

    def update(self, n_held: int, n_proposed: int) -> None:
        """The target has agreed with `n_held` of `n_proposed` > 0 tokens."""
        self._first.update(min(n_held, 1), 1)
        if n_held and n_proposed > 1:
            self._others.update(n_held - 1, min(n_proposed - 1, n_held))


@dataclass
class Account:
    """Bounds what attempts may lose against plain decoding, in tokens' worth of it.

    What an attempt saves goes in, what it loses comes out, and everything written adds a little:
    however bad the attempts, they cost `start` and that share at most.

    Args:
        start: balance at first.
        most: balance at most, so that good times do not pay for long bad ones.
        allowance: share of plain time that may be lost.
    """

    start: float
    most: float
    allowance: float = 0.02

    def __post_init__(self) -> None:
        self.balance = self.start

    @property
    def surplus(self) -> float:
        """What it holds above what it began with; below 0 where it holds less."""
        return self.balance - self.start

    def wrote(self, n_tokens: int) -> None:
        """So many tokens have been written: their allowance is earned."""
        self.book(n_tokens * self.allowance)

    def book(self, gain: float) -> None:
        """An attempt saved (or, below 0, lost) the time of so many plain tokens."""
        self.balance = min(self.most, self.balance + gain)
