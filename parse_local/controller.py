"""What an engine has learnt from its answers so far, and what it plans from that.

The state outlives an answer: acceptance, costs and the account of losses go from turn to
turn of a chat, and are forgotten slowly, because they follow the text.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from statistics import median

from parse_local.baseline import Baseline
from parse_local.costs import CostCurve, Curve, LearnedCurve, PairCosts
from parse_local.hindsight import Hindsight
from parse_local.learning import Account, FreeRates, Rate
from parse_local.planner import Costs, WindowPlan, plan_windows


class Confidence:
    """How often the target agrees with a drafted token, by the draft's own probability of it.

    Each bucket of probabilities has a rate of its own. What it starts from is the
    probability itself, scaled by how all buckets together have done, so that a draft which is
    sure of itself and wrong is found out after a few tokens and not once in every bucket.
    """

    EDGES = (0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99, 0.997, 0.9995)
    PRIOR = (0.36, 0.55, 0.68, 0.81, 0.89, 0.94, 0.96, 0.975, 0.985, 0.99)
    SHARES = (0.04, 0.06, 0.07, 0.07, 0.06, 0.06, 0.08, 0.1, 0.14, 0.32)
    KEEP = 0.94  # of the counts, for each draft
    WEIGHT, POOLED_WEIGHT, SHARES_WEIGHT = 4.0, 3.0, 20.0

    def __init__(self) -> None:
        self._rates = [Rate(0.0, self.WEIGHT, self.KEEP) for _ in self.PRIOR]
        self._held = self._expected = 0.0
        self._drafted = [share * self.SHARES_WEIGHT for share in self.SHARES]

    def chance(self, logprob: float) -> float:
        """Chance (0 to 1) that the target agrees with a token of this log-probability (nats)."""
        return self._value(self._bucket(logprob))

    def chances(self) -> list[tuple[float, float]]:
        """Share and chance of each bucket, as `planner.plan_windows` takes them."""
        total = sum(self._drafted)
        return [(n / total, self._value(b)) for b, n in enumerate(self._drafted)]

    def update(self, logprobs: Sequence[float], n_agreed: int) -> None:
        """The target has read a draft.

        Args:
            logprobs: of all its tokens (nats).
            n_agreed: tokens from the start that it agreed with. What follows the
                next one says nothing: the target read it behind a token that is not its own.
        """
        buckets = [self._bucket(logprob) for logprob in logprobs]
        self._drafted = [self.KEEP * n for n in self._drafted]
        for b in buckets:
            self._drafted[b] += 1
        tried = buckets[: n_agreed + 1]
        for b in set(tried):
            self._rates[b].update(buckets[:n_agreed].count(b), tried.count(b))
        self._held = self.KEEP * self._held + n_agreed
        self._expected = self.KEEP * self._expected + sum(self.PRIOR[b] for b in tried)

    def _bucket(self, logprob: float) -> int:
        return bisect_right(self.EDGES, math.exp(logprob))

    def _value(self, bucket: int) -> float:
        scale = (self._held + self.POOLED_WEIGHT) / (self._expected + self.POOLED_WEIGHT)
        rate = self._rates[bucket]
        return rate.expected(min(1.0, self.PRIOR[bucket] * scale))


class DriftingCurve:
    """A learnt curve on a machine whose speed changes.

    What slows one size down mostly slows them all, so the curve has a common factor, its speed:
    what decodes of one token take now (the median of the last `KEPT`), against what they
    took when the curve began. It is read off them and not added up from deviations:
    stalls are all on one side, and their sum would make every size that is not in use look
    dearer and dearer. What other sizes take is kept relative to it, so a size that is no
    longer used does not stay as dear as it once was.

    Where a known size takes `CHANGED` times as long, or as short, `RUN` times running, the
    machine is another one than before (other programs have come or gone): what was known of
    that size goes, and half of the change is taken to hold for the others. A size
    seen less than `FEW` times may have been seen in a bad moment: it is taken to cost
    no more a token than smaller ones, so that it is tried again.

    Args:
        start: the curve to begin with.
        measured: it was measured, and only the machine's speed may have changed.
    """

    FEW = 3
    KEPT = 9
    RUN, CHANGED = 3, 1.5

    def __init__(self, start: CostCurve, *, measured: bool) -> None:
        self._shape = LearnedCurve(start, trust=None if measured else 0)
        self._measured = measured
        self._speed = 1.0
        self._one: float | None = None  # a single token's seconds in the shape, from its first on
        self._singles: deque[float] = deque(maxlen=self.KEPT)
        self._seen: dict[int, int] = {}
        # Of each known size: (deviation, seconds) of the last ones, all to one side.
        self._runs: dict[int, list[tuple[float, float]]] = {}

    def seconds(self, n: float) -> float:
        """Seconds of one llama_decode with `n` tokens."""
        found = self._shape.seconds(n)
        if not self._measured and self._seen.get(_size(n), 0) < self.FEW:
            for size, count in self._seen.items():
                m = 2 ** (size / 2)
                if count >= self.FEW and m < n:
                    found = min(found, self._shape.seconds(m) * n / m)
        return found * self._speed

    def observe(self, n_tokens: int, seconds: float) -> None:
        """One llama_decode with `n_tokens` tokens took this long."""
        if self._seen or self._measured:
            self._note_change(n_tokens, seconds / self.seconds(n_tokens), seconds)
        size = _size(n_tokens)
        self._seen[size] = self._seen.get(size, 0) + 1
        if n_tokens == 1:
            if self._one is None:
                self._one = self._shape.seconds(1)
            self._shape.observe(1, self._one)
            self._singles.append(seconds)
            self._speed = median(self._singles) / self._one
        else:
            self._shape.observe(n_tokens, seconds / self._speed)

    def _note_change(self, n_tokens: int, ratio: float, seconds: float) -> None:
        run = self._runs.setdefault(self._shape.nearest(n_tokens), [])
        changed = max(ratio, 1 / ratio) >= self.CHANGED
        if not changed or (run and (run[0][0] > 1) != (ratio > 1)):
            run.clear()
        if changed:
            run.append((ratio, seconds))
        # The run itself has been observed too, but for the last.
        if len(run) < self.RUN or self._shape.n_known(n_tokens) < 2 * self.RUN - 1:
            return
        earlier = [s for _, s in run[:-1]]
        if n_tokens == 1:
            self._singles.clear()
            self._singles.extend(earlier)
        else:
            half = median(deviation for deviation, _ in run) ** 0.5
            self._speed *= half
            # Two of them: the next three that are measured outvote the guess.
            guessed = [half * s for s in list(self._singles)[-2:]]
            self._singles.clear()
            self._singles.extend(guessed)
            self._shape.forget(n_tokens)
            for s in earlier:
                self._shape.observe(n_tokens, s / self._speed)
        run.clear()


def _size(n: float) -> int:
    return round(2 * math.log2(max(n, 1)))


class LearnedCosts:
    """Costs of a pair that follow what the run measures.

    Args:
        draft, target, target_bare: as in `costs.PairCosts`.
        measured: they were measured on this machine.
    """

    def __init__(
        self, draft: CostCurve, target: CostCurve, target_bare: CostCurve, *, measured: bool
    ) -> None:
        self.draft = DriftingCurve(draft, measured=measured)
        self.target = DriftingCurve(target, measured=measured)
        self.target_bare = DriftingCurve(target_bare, measured=measured)


SLOPE, PARALLEL_SLOPE = 0.3, 0.15
"""Of one token's decode, what every further token in a batch costs until it was measured: on a
CPU, and on a GPU or a matrix unit. In between on AVX-512, and less than many a CPU takes, because
a size that looks too dear is never tried and so never measured."""


def guess_costs(draft_bytes: int, target_bytes: int, *, slope: float = SLOPE) -> LearnedCosts:
    """Costs of models of these sizes before anything was measured."""

    def curve(n_bytes: int) -> CostCurve:
        one = CostCurve.guess(n_bytes).seconds(1)
        return CostCurve(((1, one), (512, one * (1 + 511 * slope))))

    target = curve(target_bytes)
    return LearnedCosts(curve(draft_bytes), target, target, measured=False)


class Controller:
    """Learns and plans for one pair.

    Args:
        costs: measured ones (`parse-local tune`), from which the run's own timings go on;
            or what `guess_costs` gives.
        learns_costs: False keeps them as they are.
    """

    ALLOWANCE = 0.02  # of plain time may be lost
    START, MOST = 16.0, 48.0  # the account, in plain tokens: at first, and at most
    MARGIN = 1.03  # a plan has to promise this much more than plain decoding
    BEST = 0.97  # chance that the target agrees with a token of a draft model that suits it well
    REPLAN_EVERY = 4  # updates, once there were a few
    REPLAN_READ = 16  # target decodes
    PLAIN, OF = 3, 48  # target decodes that have to be of one token, to know what that takes

    def __init__(self, costs: PairCosts | LearnedCosts, *, learns_costs: bool = True) -> None:
        self.costs: Costs
        if isinstance(costs, PairCosts) and learns_costs:
            curves = (costs.draft, costs.target, costs.target_bare)
            self.costs = LearnedCosts(*curves, measured=True)
        else:
            self.costs = costs
        self.account = Account(self.START, self.MOST, self.ALLOWANCE)
        self.whole_account = Account(8 * self.START, 16 * self.START, self.ALLOWANCE)
        self.lookup_account = Account(self.START, self.MOST, self.ALLOWANCE)
        """Of n-grams between drafts: what they gain must not pay for drafts that lose."""
        self.entry_account = Account(2 * self.START, 8 * self.START, self.ALLOWANCE)
        """Whether drafting has earned what the draft model's reading of prompts costs."""
        self.hindsight = Hindsight()
        self.confidence = Confidence()
        self.looked_up = Rate(0.1, weight=50.0)
        """Share of the tokens that came without a draft or a plain step: n-grams, heads."""
        self.n_tokens = Rate(200.0, weight=2.0, keep=0.9)
        """Tokens of an answer: the mean, as a rate of tokens to answers."""
        self.whole = Rate(0.5, weight=4.0)
        """Whole drafts that their verdict accepts."""
        self.exact = Rate(0.4, weight=400.0)
        """Share of a rejected whole draft that stays."""
        self.prefix = Rate(0.3, weight=3.0)
        """Rejected whole drafts of which prefix verdicts keep more than the exact prefix."""
        self.prefix_share = Rate(0.2, weight=400.0)
        """Share of the open rest that they keep then."""
        self.per_draft_token = Rate(1.0, weight=50.0)
        """Target tokens of a draft token: not 1 where the vocabularies differ."""
        self.baseline = Baseline()
        """What the target takes alone, for the figure of the speed-up; no plan depends on it."""
        self._tails: dict[int, FreeRates] = {}
        self._lookups: dict[bool, FreeRates] = {}
        self._plain_at: deque[int] = deque([0] * self.PLAIN, maxlen=self.PLAIN)
        self._n_read = 0
        self._plan: WindowPlan | None = None
        self._at_best: WindowPlan | None = None
        self._n_updates = 0
        self._planned_at = self._planned_read = 0

    @property
    def plain_s(self) -> float:
        """Seconds of a token that the target writes alone."""
        return self.costs.target.seconds(1)

    def plain_due(self) -> bool:
        """Whether the target should write a token alone now, to time it; asks for one at a time.

        While drafts are read, plain tokens are not written. If the machine was slow when the last
        ones were, every draft would look good from then on. Three of 48 decodes
        (mostly the first tokens of answers) cost about a percent.
        """
        if self._n_read - self._plain_at[0] <= self.OF:
            return False
        self._plain_at.append(self._n_read)  # also where heads propose at every step
        return True

    def wrote(self, n_tokens: int) -> None:
        """So many tokens of an answer have been written: every account earns by them."""
        for account in (
            self.account,
            self.whole_account,
            self.lookup_account,
            self.entry_account,
        ):
            account.wrote(n_tokens)

    def tail_rates(self, n_agreeing: int) -> FreeRates:
        """How rejected tails hold, by how many tokens in front of them agree."""
        return self._tails.setdefault(min(n_agreeing, 3), FreeRates())

    def lookup_rates(self, *, following: bool) -> FreeRates:
        """How n-grams hold: where the one before has held to its end, and where not."""
        return self._lookups.setdefault(following, FreeRates())

    def plan(self) -> WindowPlan:
        """The plan for windows, brought up to date now and then: it takes a millisecond or two."""
        every = min(self.REPLAN_EVERY, 1 + self._planned_at // 4)
        learnt = self._n_updates >= self._planned_at + every
        # The machine's speed changes also where nothing is drafted.
        old = self._n_read >= self._planned_read + self.REPLAN_READ
        if self._plan is None or learnt or old:
            self._planned_at, self._planned_read = self._n_updates, self._n_read
            self._at_best = None
            self._plan = plan_windows(
                self.costs,
                self.confidence.chances(),
                n_per_token=self.per_draft_token.value,
                guess=self._plan.seconds_per_token if self._plan else None,
            )
        return self._plan

    @property
    def drafts(self) -> bool:
        """Whether the plan promises enough to draft by it."""
        plan = self.plan()
        return plan.drafts and plan.plain_s > self.MARGIN * plan.seconds_per_token

    def saved_at_best(self) -> float:
        """Seconds a token that drafts would save if the draft model suited the target well.

        As up to date as `plan`.
        """
        self.plan()
        if self._at_best is None:
            chances, n_per_token = [(1.0, self.BEST)], self.per_draft_token.value
            self._at_best = plan_windows(self.costs, chances, n_per_token=n_per_token)
        return self._at_best.saved_per_token

    def updated(self) -> None:
        """Something was learnt that plans depend on."""
        self._n_updates += 1

    def n_expected(self, n_written: int, n_left: int) -> float:
        """Tokens that an answer of `n_written` tokens is still likely to get, at most `n_left`."""
        mean = self.n_tokens.value
        return min(n_left, max(mean - n_written, mean / 4))

    def drafted(self, n_tokens: int, seconds: float) -> None:
        """The draft model decoded so many tokens."""
        _observe(self.costs.draft, n_tokens, seconds)

    def read(self, bare: bool, n_tokens: int, seconds: float) -> None:
        """The target decoded so many tokens; `bare` with an output row for hardly any."""
        _observe(self.costs.target_bare if bare else self.costs.target, n_tokens, seconds)
        if not bare:
            self._n_read += 1
            if n_tokens == 1 and self._plain_at[-1] < self._n_read - 1:
                self._plain_at.append(self._n_read)


def _observe(curve: Curve, n_tokens: int, seconds: float) -> None:
    if isinstance(curve, DriftingCurve) and n_tokens > 0 and seconds > 0:
        curve.observe(n_tokens, seconds)
