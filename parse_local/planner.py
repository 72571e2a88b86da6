"""What is worth doing next, from what it costs and what it is likely to gain: pure functions.

Lossless text is written in rounds: the draft writes some tokens, the target reads them and
adds one of its own. Each round starts anew, so that the best way to write is the one with
the fewest seconds a token over many rounds (renewal reward). That rate is also the price of
time inside a round: another draft token pays while the tokens it is likely to add are worth
more, at that price, than its decode and its place in the verify pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from parse_local.costs import Curve

MAX_WINDOW = 62
"""Most tokens drafted before a verify pass. Far more are hardly ever all right, and from 64 rows
on llama.cpp's attention on CPUs adds up in tiles: a token gets other logits than it has alone."""
_GRID = np.linspace(0.0, 1.0, 65)  # survival, for the value function
_TOLERANCE = 1e-3  # of a plain step, in the price of a token

Chances = Sequence[tuple[float, float]]
"""(share of the draft's tokens, chance that the target agrees with such a one), shares add to 1."""


class Costs(Protocol):
    """What `costs.PairCosts` is, measured or learnt."""

    @property
    def draft(self) -> Curve:
        """The draft decodes."""

    @property
    def target(self) -> Curve:
        """The target reads, with an output row for every token."""

    @property
    def target_bare(self) -> Curve:
        """The target reads, with one output row."""


@dataclass(frozen=True)
class WindowPlan:
    """How long to draft before the target reads it.

    Args:
        seconds_per_token: of text that is written so, or by the target alone where that is faster.
        plain_s: of the target alone.
        thresholds: drafting on after i tokens pays where the chance that all of them hold is
            at least `thresholds[i]`; infinite where it never does.
        mean_window: tokens drafted a round, on average.
    """

    seconds_per_token: float
    plain_s: float
    thresholds: tuple[float, ...]
    mean_window: float

    @property
    def drafts(self) -> bool:
        """Whether drafting pays at all."""
        return self.thresholds[0] <= 1.0

    @property
    def saved_per_token(self) -> float:
        """Seconds saved a token against the target alone."""
        return self.plain_s - self.seconds_per_token

    def goes_on(self, n_drafted: int, survival: float) -> bool:
        """Whether to draft another token.

        Args:
            n_drafted: tokens drafted in this round.
            survival: the chance that the target agrees with all of them.
        """
        return n_drafted < len(self.thresholds) and survival >= self.thresholds[n_drafted]


def plan_windows(
    costs: Costs,
    chances: Chances,
    *,
    n_max: int = MAX_WINDOW,
    n_per_token: float = 1.0,
    guess: float | None = None,
) -> WindowPlan:
    """Plan the rounds that take the fewest seconds a token.

    Whether to stop after i tokens follows from the value of going on, computed backwards from
    the longest window for each chance of survival; it looks ahead over all longer windows, because
    a verify pass grows in steps. The price of a token is where the value of a round becomes 0,
    found by Newton's method (Dinkelbach's, for a ratio).

    Args:
        costs: of the pair.
        chances: of the draft's tokens, taken for independent of one another.
        n_max: most tokens of a window.
        n_per_token: target tokens of one draft token; not 1 where the vocabularies differ.
        guess: seconds a token to begin the search with, for speed.
    """
    verify = np.array([costs.target.seconds(1 + n_per_token * i) for i in range(n_max + 1)])
    steps = costs.draft.seconds(1) + np.diff(verify)
    # The first decode also reads what the target has added since, where all of a draft held.
    steps[0] += costs.draft.seconds(2) - costs.draft.seconds(1)
    mean = sum(share * chance for share, chance in chances)
    move = _transition(chances)
    plain_s = float(verify[0])
    price = plain_s if guess is None else min(guess, plain_s)
    for _ in range(50):
        going_on = _going_on(price * n_per_token * mean, n_per_token * mean, steps, move)
        at_first = going_on[0, :, -1]
        saved_s, n_gained, mean_window = at_first.tolist() if at_first[_VALUE] > 0 else (0.0,) * 3
        value = price - plain_s + saved_s
        if abs(value) <= _TOLERANCE * plain_s:
            break
        price -= value / (1 + n_gained)
    return WindowPlan(
        seconds_per_token=min(price, plain_s),
        plain_s=plain_s,
        thresholds=_thresholds(going_on[:, _VALUE]),
        mean_window=mean_window,
    )


def _transition(chances: Chances) -> np.ndarray:
    # Expectation over the next token: a row of values by survival, times this, is the same by
    # survival before it. Between grid points values are linear, as they mostly are.
    n = len(_GRID)
    move = np.zeros((n, n))
    for share, chance in chances:
        place = _GRID * min(chance, 1.0) * (n - 1)
        below = np.minimum(place.astype(int), n - 2)
        part = place - below
        move[below, np.arange(n)] += share * (1 - part)
        move[below + 1, np.arange(n)] += share * part
    return move


_VALUE, _GAINED, _DRAFTED = range(3)


def _going_on(reward: float, gain: float, steps: np.ndarray, move: np.ndarray) -> np.ndarray:
    """What is to be expected of drafting on, to where it no longer pays.

    Returns:
        (tokens drafted so far, 3, survival): the value in seconds, target tokens gained, and
        tokens drafted.
    """
    found = np.empty((len(steps), 3, len(_GRID)))
    # What the next token itself brings, to which the loop adds what follows it.
    found[:, _VALUE] = reward * _GRID - steps[:, None]
    found[:, _GAINED] = gain * _GRID
    found[:, _DRAFTED] = 1.0
    ahead, follows = np.zeros((2, 3, len(_GRID)))
    for here in found[::-1]:
        np.dot(ahead, move, out=follows)
        here += follows
        np.multiply(here, here[_VALUE] > 0, out=ahead)  # else it stops there
    return found


def _thresholds(values: np.ndarray) -> tuple[float, ...]:
    # Value grows with survival: where it becomes positive, between two points of the grid.
    at = np.argmax(values > 0, axis=1)
    rows, before = np.arange(len(values)), np.maximum(at - 1, 0)
    below, above = values[rows, before], values[rows, at]
    rise = np.where(above > below, above - below, 1.0)
    places = np.where(at > 0, _GRID[before] - (_GRID[at] - _GRID[before]) * below / rise, 0.0)
    return tuple(np.where(values[:, -1] > 0, places, math.inf).tolist())


@dataclass(frozen=True)
class FreePlan:
    """How much of a proposal that no decode has made is worth reading.

    Args:
        n_tokens: of it; 0 for none.
        value: seconds that its round saves against an average one.
    """

    n_tokens: int
    value: float


def plan_free(costs: Costs, first: float, others: float, price: float, n_max: int) -> FreePlan:
    """How many tokens of a proposal to have read before drafting again.

    A rejected tail, or what followed the same words before: no draft decode has to be paid for
    it. It is worth it where its round gains more than an average one.

    Args:
        costs: of the pair.
        first: chance that the target agrees with the first token.
        others: chance for each of the others, if it has agreed with all before.
        price: seconds a token of the best way to write, `WindowPlan.seconds_per_token`.
        n_max: tokens that there are.
    """
    best = FreePlan(0, 0.0)
    expected, survival = 1.0, first
    for k in range(1, n_max + 1):
        expected += survival
        survival *= others
        value = price * expected - costs.target.seconds(k + 1)
        if value > best.value:
            best = FreePlan(k, value)
    return best


# whole answers, and where to ask


@dataclass(frozen=True)
class WholeAnswer:
    """A whole answer drafted, read once and judged, as it is to be expected.

    Args:
        n_tokens: of the draft.
        chance: that its verdict accepts it.
        n_kept: tokens that stay if it does not.
        n_suffix: tokens of the question.
    """

    n_tokens: float
    chance: float
    n_kept: float
    n_suffix: int


def whole_answer_seconds(costs: Costs, whole: WholeAnswer, price: float) -> float:
    """Expected seconds of drafting a whole answer and, where it is rejected, writing the rest.

    Args:
        costs: of the pair.
        whole: the answer.
        price: seconds a token of the rest.
    """
    rest = max(0.0, whole.n_tokens - whole.n_kept)
    return (
        whole.n_tokens * costs.draft.seconds(1)
        + costs.target.seconds(whole.n_tokens + 1)
        + costs.target_bare.seconds(whole.n_suffix)
        + (1 - whole.chance) * rest * price
    )


def whole_answer_pays(costs: Costs, whole: WholeAnswer, price: float) -> bool:
    """Whether that is faster than writing all of it at `price` seconds a token."""
    return whole_answer_seconds(costs, whole, price) < whole.n_tokens * price


def reads_rows_first(costs: Costs, whole: WholeAnswer) -> bool:
    """Whether a draft that only a verdict judges is read with an output row for every token.

    Without rows it is read faster, and read again with them where the verdict rejects it.
    """
    n = whole.n_tokens
    again = (1 - whole.chance) * costs.target.seconds(n)
    return costs.target.seconds(n) <= costs.target_bare.seconds(n) + again


@dataclass(frozen=True)
class ForkPlan:
    """How the first boundary that fails is looked for.

    Args:
        n_forks: boundaries asked at once; 0 to ask at none.
        seconds: expected cost of all rounds.
    """

    n_forks: int
    seconds: float


def plan_forks(costs: Costs, n_boundaries: int, n_suffix: int, *, n_max: int) -> ForkPlan:
    """Ask at all boundaries at once, or at a few and again between two of them.

    A round costs what its forks' questions cost in one batch. Where more of them cost hardly
    more (GPUs), all at once is best, where each costs its own decode (CPUs), a search.

    Args:
        costs: of the pair.
        n_boundaries: that may be the first to fail.
        n_suffix: tokens of the question.
        n_max: most forks in one batch.
    """
    if n_boundaries <= 0:
        return ForkPlan(0, 0.0)
    plans = (
        ForkPlan(k, search_seconds(costs, n_boundaries, n_suffix, k))
        for k in range(1, min(n_boundaries, n_max) + 1)
    )
    return min(plans, key=lambda plan: plan.seconds)


def search_seconds(costs: Costs, n_boundaries: int, n_suffix: int, n_forks: int) -> float:
    """Expected seconds of such a search, each boundary (or none) as likely the first to fail."""
    known: dict[int, float] = {0: 0.0}

    def expected(n: int) -> float:
        if n not in known:
            asked = places(n, n_forks)
            ends = [-1, *asked, n]
            # Between two that were asked lie `gap` boundaries: gap + 1 outcomes lead there.
            gaps = [b - a - 1 for a, b in pairwise(ends)]
            rest = sum((gap + 1) * expected(gap) for gap in gaps) / (n + 1)
            known[n] = costs.target_bare.seconds(len(asked) * n_suffix) + rest
        return known[n]

    return expected(n_boundaries)


def places(n: int, n_forks: int) -> list[int]:
    """Which of `n` open boundaries to ask at, evenly spread: ascending indices."""
    k = min(n, n_forks)
    return [(i + 1) * (n + 1) // (k + 1) - 1 for i in range(k)]


def prefixes_pay(plan: ForkPlan, chance: float, n_tokens: float, price: float) -> bool:
    """Whether verdicts on prefixes are worth buying.

    Args:
        plan: what they cost.
        chance: that they add tokens to the exact prefix.
        n_tokens: how many they add then.
        price: seconds a token if they do not.
    """
    return plan.n_forks > 0 and chance * n_tokens * price > plan.seconds
