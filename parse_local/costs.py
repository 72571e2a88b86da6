"""What a decode costs on this machine, as a function of its size: measured, guessed or learnt.

Pure: `parse-local tune` measures the curves, a running engine observes its own decodes,
and whoever plans asks `seconds(n)`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Tokens in one llama_decode that `tune` measures."""


class Curve(Protocol):
    """Seconds of one llama_decode with `n` tokens."""

    def seconds(self, n: float) -> float:
        """0 for n <= 0; never falls as `n` grows."""


@dataclass(frozen=True)
class CostCurve:
    """A cost curve through measured points, linear between them.

    Args:
        points: (tokens in one llama_decode, seconds), ascending in both.

    Raises:
        ValueError: there is no point, or they are not ascending and positive.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        before = (0, 0.0)
        for n, seconds in self.points:
            if not (n > before[0] and seconds >= before[1] and 0 < seconds < math.inf):
                raise ValueError(f"not a cost curve: {self.points}")
            before = (n, seconds)
        if not self.points:
            raise ValueError("a cost curve needs at least one point")

    @classmethod
    def through(cls, measured: Mapping[int, float]) -> CostCurve:
        """The non-decreasing curve nearest to noisy measurements.

        A larger decode never costs less, so neighbours that say otherwise share their
        mean (isotonic regression by pooling adjacent violators).

        Args:
            measured: seconds by number of tokens.
        """
        pools: list[tuple[float, int]] = []  # mean, number of points
        for n in sorted(measured):
            mean, count = measured[n], 1
            while pools and pools[-1][0] > mean:
                other, others = pools.pop()
                mean = (mean * count + other * others) / (count + others)
                count += others
            pools.append((mean, count))
        levels = [mean for mean, count in pools for _ in range(count)]
        return cls(tuple(zip(sorted(measured), levels, strict=True)))

    @classmethod
    def guess(cls, n_bytes: int) -> CostCurve:
        """What a model of this size may cost, before anything was measured.

        One token reads all weights once, at 20 GB/s; every further one costs half of that,
        as on a CPU. Right in the ratio of two models, hardly in seconds.

        Args:
            n_bytes: size of the weights.
        """
        one = max(n_bytes, 1) / 20e9
        return cls(((1, one), (SIZES[-1], one * (1 + (SIZES[-1] - 1) / 2))))

    def seconds(self, n: float) -> float:
        """Seconds of one llama_decode with `n` tokens.

        0 for n <= 0. Fewer tokens than the first point has cost as much as it; beyond the
        last the curve goes on with its last slope (a curve of one point: in proportion).
        """
        if n <= 0:
            return 0.0
        points = self.points
        i = bisect_left(points, (n, 0.0))
        if i == 0:
            return points[0][1]
        if len(points) == 1:
            return points[0][1] * n / points[0][0]
        (n0, s0), (n1, s1) = points[i - 1 : i + 1] if i < len(points) else points[-2:]
        return s0 + (s1 - s0) * (n - n0) / (n1 - n0)

    def per_token(self, n: int) -> float:
        """Seconds a token in one llama_decode with `n` > 0 tokens."""
        return self.seconds(n) / n

    def to_json(self) -> list[list[float]]:
        """The points as plain lists."""
        return [[n, seconds] for n, seconds in self.points]

    @classmethod
    def from_json(cls, value: Any) -> CostCurve:
        """Undo `to_json`.

        Raises:
            ValueError, TypeError: this is not a curve.
        """
        return cls(tuple((int(n), float(seconds)) for n, seconds in value))


@dataclass(frozen=True)
class PairCosts:
    """What the decodes of a pair cost.

    Args:
        draft: the draft decodes, one output row for the last token.
        target: the target verifies, one output row for every token.
        target_bare: the target decodes, one output row for the last token (suffixes of forks).
    """

    draft: CostCurve
    target: CostCurve
    target_bare: CostCurve

    @classmethod
    def guess(cls, draft_bytes: int, target_bytes: int) -> PairCosts:
        """Costs of models of these sizes, before anything was measured (`CostCurve.guess`)."""
        target = CostCurve.guess(target_bytes)
        return cls(CostCurve.guess(draft_bytes), target, target)

    @classmethod
    def middle(cls, measured: Sequence[PairCosts]) -> PairCosts:
        """Several measurements as one: of each size the median.

        Args:
            measured: at least one; of two the median is the mean. Where one lacks a size that
                another has, it counts with what its curve says.
        """

        def of(curves: Sequence[CostCurve]) -> CostCurve:
            sizes = {n for curve in curves for n, _ in curve.points}
            return CostCurve.through({n: median(c.seconds(n) for c in curves) for n in sizes})

        return cls(
            of([m.draft for m in measured]),
            of([m.target for m in measured]),
            of([m.target_bare for m in measured]),
        )

    def bound(self, sizes: Iterable[int] = SIZES) -> float:
        """The most that a draft can gain over the target alone, if all of it is accepted.

        Target decode / (draft decode + target verify), each for one token, at the size of the
        verify pass that is best for it.
        """
        verify = min(self.target.per_token(n) for n in sizes)
        return self.target.seconds(1) / (self.draft.seconds(1) + verify)

    def to_json(self) -> dict[str, list[list[float]]]:
        """The three curves as plain lists."""
        return {
            "draft": self.draft.to_json(),
            "target": self.target.to_json(),
            "target_bare": self.target_bare.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> PairCosts:
        """Undo `to_json`.

        Raises:
            ValueError, TypeError, KeyError: these are not costs.
        """
        names = ("draft", "target", "target_bare")
        return cls(*(CostCurve.from_json(value[name]) for name in names))


class LearnedCurve:
    """A cost curve that follows what a run observes.

    The start gives the shape. At each size that was observed the curve is the start times the
    median of what the last observations were of it, so that a stalled one changes
    nothing; the sizes between follow from those, and beyond them the nearest one's factor holds.

    Args:
        start: where to begin; None for the guess of a 1 GB model, whose seconds
            mean nothing until the first observation sets their scale. `known` tells.
        trust: how many observations the start is worth at each size: 0 for a guess,
            3 (the default with a start) where it was measured.
    """

    LAST = 15
    """Observations kept for each size; older ones are forgotten."""

    _SIZES = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)

    def __init__(self, start: CostCurve | None = None, *, trust: int | None = None) -> None:
        self._start = start or CostCurve.guess(1_000_000_000)
        self._trust = (0 if start is None else 3) if trust is None else trust
        self._ratios: dict[int, deque[float]] = {}
        self._curve: CostCurve | None = self._start

    @property
    def known(self) -> bool:
        """Whether its seconds come from measurements, the start's or its own."""
        return self._trust > 0 or bool(self._ratios)

    @property
    def curve(self) -> CostCurve:
        """The curve as it is now."""
        if self._curve is None:
            self._curve = self._learned()
        return self._curve

    def seconds(self, n: float) -> float:
        """Seconds of one llama_decode with `n` tokens, as `CostCurve.seconds`."""
        return self.curve.seconds(n)

    def observe(self, n_tokens: int, seconds: float) -> None:
        """One llama_decode with `n_tokens` tokens took this long; nonsense is ignored."""
        if n_tokens <= 0 or not 0 < seconds < math.inf:
            return
        size = self.nearest(n_tokens)
        ratios = self._ratios.setdefault(size, deque([1.0] * self._trust, maxlen=self.LAST))
        ratios.append(seconds / self._start.seconds(n_tokens))
        self._curve = None

    def forget(self, n_tokens: int) -> None:
        """Drop what was known of this size, the start's trust too."""
        self._ratios[self.nearest(n_tokens)] = deque(maxlen=self.LAST)

    def n_known(self, n_tokens: int) -> int:
        """Observations that speak for this size now; the start's trust counts."""
        return len(self._ratios.get(self.nearest(n_tokens), range(self._trust)))

    def nearest(self, n_tokens: int) -> int:
        """The size that an observation of `n_tokens` tokens counts for."""
        nearest: int = min(self._SIZES, key=lambda size: max(size / n_tokens, n_tokens / size))
        return nearest

    def _learned(self) -> CostCurve:
        start = self._start.seconds
        medians = {n: start(n) * median(ratios) for n, ratios in self._ratios.items() if ratios}
        known = CostCurve.through(medians)
        (first, first_s), (last, last_s) = known.points[0], known.points[-1]
        points = dict(known.points)
        for n in self._SIZES:
            if n < first:
                points[n] = start(n) * first_s / start(first)
            elif n > last:
                points[n] = start(n) * last_s / start(last)
            elif n not in points:
                points[n] = self._between(known, n)
        return CostCurve.through(points)  # rounding must not make it fall

    def _between(self, known: CostCurve, n: int) -> float:
        # Between two known sizes the start's bends stay, shrunk to fit.
        i = bisect_left(known.points, (n, 0.0))
        (n0, s0), (n1, s1) = known.points[i - 1 : i + 1]
        at0, at, at1 = (self._start.seconds(size) for size in (n0, n, n1))
        if at1 <= at0:
            return known.seconds(n)
        return s0 + (s1 - s0) * (at - at0) / (at1 - at0)
