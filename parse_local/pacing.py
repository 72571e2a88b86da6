"""Whose turn it is, planned: the strategy "auto"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from parse_local.answer import Answer
from parse_local.controller import Controller
from parse_local.drafting import Draft, Stop
from parse_local.events import Round
from parse_local.learning import FreeRates
from parse_local.planner import (
    MAX_WINDOW,
    FreePlan,
    WholeAnswer,
    plan_forks,
    plan_free,
    prefixes_pay,
    reads_rows_first,
    whole_answer_pays,
)
from parse_local.policy import Policy
from parse_local.speculation import Speculation, Tail
from parse_local.turns import Stretch, Windows


@dataclass
class _Span:
    """Tokens of the answer, from `start` on, that were all written in rounds."""

    start: int
    n_tokens: int = 0
    seconds: float = 0.0
    drafts: bool = False

    LONG: ClassVar[int] = 48  # enough to learn from

    def add(self, n_tokens: int, seconds: float, *, drafts: bool = False) -> None:
        self.n_tokens += n_tokens
        self.seconds += seconds
        self.drafts |= drafts


READ = 16
"""Tokens that a draft model reads at once where it catches up, roughly."""


class Planned(Windows):
    """Drafts while that pays, as far as it pays.

    The target writes the first token: it costs little, is on the screen at once, and
    says what a plain token takes. Where no draft pays, the account is left to grow until a short
    probe is affordable.

    Args:
        answer: the answer.
        policy: the acceptance mode, and limits.
        controller: what is known.
        shared_vocabulary: draft and target have the same tokens.
        n_suffix: tokens of the question for finished answers, 0 where no verdict is asked.
        speculation: whose n-grams propose tokens without a decode; without a proposer where
            speculation is off.
        drafted: tokens of the draft that is being written.
    """

    PROBE = 4  # tokens
    INVEST = 1.5  # what the draft model's reading has to promise: estimates acted upon are too high
    WAIT = 16, 256  # tokens between decisions while nothing pays: at first, and at most

    def __init__(
        self,
        answer: Answer,
        policy: Policy,
        controller: Controller,
        *,
        shared_vocabulary: bool,
        n_suffix: int = 0,
        speculation: Speculation,
        drafted: Callable[[], list[int]] = list,
    ) -> None:
        super().__init__(policy)
        self._answer = answer
        self._controller = controller
        self._shared = shared_vocabulary
        self._speculation, self._drafted = speculation, drafted
        self._tail = Tail()
        self._seen = 0  # tokens of the answer that are accounted for
        self._wait = self.WAIT[0]
        self._n_probe = 0
        self._times_plain = False
        self._n_unread = 0
        self._n_drafted = 0
        self._survival = 1.0
        self._asked_prefixes = False
        self._free: FreeRates | None = None  # of what is being read, where it was not drafted
        self._is_tail = False
        self._lookup_held = False  # the last one, to its end
        self._looked_back = False
        self._span = _Span(0)  # the rounds since the target last wrote alone
        self._judges = policy.accepts_boundaries and self._whole_pays(n_suffix)

    @property
    def judged(self) -> bool:
        """Whether the next draft is a whole answer that gets a verdict; never reasoning."""
        return self._judges and not self._answer.parser.thinks

    def _whole_pays(self, n_suffix: int) -> bool:
        controller, answer = self._controller, self._answer
        n = controller.n_expected(0, answer.n_left)
        whole = WholeAnswer(n, controller.whole.value, controller.exact.value * n, n_suffix)
        price = controller.plan().seconds_per_token
        return controller.whole_account.balance > 0 and whole_answer_pays(
            controller.costs, whole, price
        )

    def reads_rows(self, n_draft: int, n_suffix: int) -> bool:
        """Whether a finished draft is read with all output rows (`EvidencePlanner`)."""
        controller = self._controller
        whole = WholeAnswer(n_draft, controller.whole.value, 0, n_suffix)
        return reads_rows_first(controller.costs, whole)

    def n_forks(self, n_open: int, n_suffix: int, n_tokens: int) -> int:
        """How many prefixes of a rejected draft to ask about at once; 0 where it does not pay.

        Args:
            n_open: boundaries that may be asked.
            n_suffix: tokens of the question.
            n_tokens: tokens behind the exact prefix, which verdicts may save.
        """
        controller = self._controller
        plan = plan_forks(controller.costs, n_open, n_suffix, n_max=self._policy.max_forks)
        self._asked_prefixes = prefixes_pay(
            plan,
            controller.prefix.value,
            controller.prefix_share.value * n_tokens,
            controller.plan().seconds_per_token,
        )
        return plan.n_forks if self._asked_prefixes else 0

    # before a draft

    def proposal(self, answer: Answer) -> list[int]:
        """The rest of a rejected draft, or n-grams, where reading them gains more than a draft."""
        self._catch_up(followed=False)
        if self._span.n_tokens >= _Span.LONG:
            self._look_back()
        self._free, self._times_plain = None, False
        controller = self._controller
        if self.judged or not answer.tokens:
            return []
        self._times_plain = controller.plain_due()
        if self._times_plain:
            return []
        n_max = min(MAX_WINDOW, answer.n_left)
        price = controller.plan().seconds_per_token
        best, chosen = 0.0, []
        reads_tail = self._tail.tokens and controller.account.balance > 0
        tail = self._tail.propose(answer.sequence, n_max) if reads_tail else []
        rates = controller.tail_rates(self._tail.n_agreeing)
        plan = plan_free(controller.costs, *rates.chances, price, len(tail))
        if plan.n_tokens:
            best, chosen = plan.value, tail[: plan.n_tokens]
            self._free, self._is_tail = rates, True
        found = self._ngrams(answer.sequence, n_max)
        rates, plan = self._plan_ngrams(len(found))
        if plan.value > best:
            chosen = found[: plan.n_tokens]
            self._free, self._is_tail = rates, False
        elif found and not plan.n_tokens:
            rates.forget()
        if chosen:
            self._started()
        return chosen

    def limit(self, answer: Answer, n_unread: Callable[[], int]) -> int:
        """As many tokens as may pay, for `push` to stop within."""
        controller = self._controller
        self._n_probe = 0
        limit = super().limit(answer, n_unread)
        if not answer.tokens or (limit <= 0 and not self.judged):
            return 0
        self._n_unread = n_unread()
        if self.judged:
            self._started()
            return limit
        self._catch_up(followed=False)
        if self._times_plain:
            return 0
        limit = min(MAX_WINDOW, limit)
        entry_s = controller.costs.draft.seconds(self._n_unread - 1)
        if not self._may_draft(entry_s):
            if not self._may_probe(entry_s):
                return 0
            self._n_probe = limit = min(self.PROBE, limit)
        self._started()
        return limit

    def _may_draft(self, entry_s: float) -> bool:
        # Reading what the draft model has not read comes first; it has to pay as well.
        controller, answer = self._controller, self._answer
        if not controller.drafts or controller.account.balance <= 0:
            return False
        gain = controller.hindsight.gain(self._gain(controller.plan().saved_per_token))
        if not self._is_investment(entry_s):
            return gain > 0
        if controller.entry_account.balance <= 0:
            return False
        n_expected = controller.n_expected(len(answer.tokens), answer.n_left)
        if self.INVEST * entry_s < gain * n_expected * controller.plain_s:
            return True
        # Where it was hardly tried, the allowance goes into finding out, on the plan's promise.
        return (
            not controller.hindsight.knows
            and entry_s < controller.entry_account.surplus * controller.plain_s
            and entry_s < controller.plan().saved_per_token * n_expected
        )

    def _gain(self, saved_per_token: float) -> float:
        # Of a token of the answer, in plain tokens. Nothing is saved on what n-grams give without
        # a draft; the draft model reads it too.
        controller = self._controller
        share = controller.looked_up.value
        reads_s = controller.costs.draft.seconds(READ) / READ
        return ((1 - share) * saved_per_token - share * reads_s) / controller.plain_s

    def _is_investment(self, entry_s: float) -> bool:
        """Whether what the draft model has to read first is decided upon and charged by itself.

        Otherwise it is part of the round.
        """
        return entry_s > self._controller.plain_s

    def _may_probe(self, entry_s: float) -> bool:
        controller = self._controller
        if controller.drafts:
            return False  # what a probe finds out is known, and does not pay here
        costs = controller.costs
        cost = entry_s + self.PROBE * costs.draft.seconds(1) + costs.target.seconds(1 + self.PROBE)
        lost = cost / controller.plain_s - 1
        if lost > controller.account.balance:
            return False
        # The best that it may find out has to make up for it before the answer ends.
        n_expected = controller.n_expected(len(self._answer.tokens), self._answer.n_left)
        return lost <= n_expected * self._gain(controller.saved_at_best())

    def without_draft(self, answer: Answer) -> Stretch:
        """One token at first, or to time it; else as many as should pass until the next choice."""
        if not answer.tokens:
            # Of a process's first answer a few, so that its speed-up can be measured.
            return Stretch(max(1, self._controller.baseline.n_missing))
        if self._times_plain:
            return Stretch(1)
        n, self._wait = self._wait, min(2 * self._wait, self.WAIT[1])
        return Stretch(n)

    def _started(self) -> None:
        self._n_drafted = 0
        self._survival = 1.0

    # while it is written

    def draft_stop(self, answer: Answer) -> Stop:
        """The plan itself ends it."""
        return self

    def push(self, text: str, logprob: float = math.nan) -> bool:
        """A token was drafted; True where another one does not pay (`drafting.Stop`)."""
        self._n_drafted += 1
        if self.judged or self._n_probe:
            return False
        self._survival *= self._controller.confidence.chance(logprob)
        if not self._controller.plan().goes_on(self._n_drafted, self._survival):
            return True
        if not self._shared:
            return False
        # What n-grams propose behind it comes sooner, if the target agrees with all of it.
        n_max = min(MAX_WINDOW, self._answer.n_left - self._n_drafted)
        found = self._ngrams(self._answer.sequence + self._drafted(), n_max)
        return self._plan_ngrams(len(found))[1].n_tokens > 0

    def _ngrams(self, sequence: list[int], n_max: int) -> list[int]:
        # What they propose behind it, while they may be read at all.
        may_read = self._controller.lookup_account.balance > 0
        return self._speculation.lookup(sequence, n_max) if may_read and n_max > 0 else []

    def _plan_ngrams(self, n: int) -> tuple[FreeRates, FreePlan]:
        controller = self._controller
        rates = controller.lookup_rates(following=self._lookup_held)
        price = controller.plan().seconds_per_token
        return rates, plan_free(controller.costs, *rates.chances, price, n)

    # after it was read

    def verified(self, answer: Answer, draft: Draft, found: Round) -> None:
        """Learn from it, and keep what was rejected for `tail`."""
        controller = self._controller
        n, n_draft = found.n_accept, len(draft.tokens)
        costs = controller.costs
        seconds = costs.target.seconds(1 + n_draft)
        if self._free is not None:
            self._free.update(n, n_draft)
            self._lookup_held = not self._is_tail and n == n_draft
            self._span.add(n + 1, seconds)
            if self._is_tail:
                self._book(n, seconds)
            else:
                controller.looked_up.update(n, n + 1)
                controller.lookup_account.book(n + 1 - seconds / controller.plain_s)
            self._wrote(n + 1, followed=self._is_tail and n > 0)
            return
        self._lookup_held = False
        controller.looked_up.update(0, n + 1)
        n_own = len(draft.logprobs)
        seconds += n_own * costs.draft.seconds(1)
        # The first decode reads what the draft model had not read as well.
        entry_s = costs.draft.seconds(self._n_unread) - costs.draft.seconds(1)
        # Whether the target would have ended there too is not in the round.
        logprobs = draft.logprobs[: n_own - (draft.end_token is not None)]
        if self.judged:
            self._judges = False
            controller.whole_account.book(n + 1 - (seconds + entry_s) / controller.plain_s)
            if draft.complete:
                controller.whole.update(found.whole, 1)
            if not found.whole and found.read:
                controller.exact.update(found.n_exact, n_draft)
            if self._asked_prefixes:
                n_more = found.n_accept - found.n_exact
                controller.prefix.update(n_more > 0, 1)
                if n_more:
                    controller.prefix_share.update(n_more, n_draft - found.n_exact)
            n = found.n_exact
            self._look_back()
            self._span.start += found.n_accept + 1
        else:
            self._book(n, seconds, entry_s)
            invested = not self._span.drafts and self._is_investment(entry_s)
            again_s = 0.0 if invested else entry_s
            self._span.add(n + 1, seconds + again_s, drafts=True)
        if found.read:
            controller.confidence.update(logprobs, draft.n_own_within(n))
        if not self._shared and logprobs:
            controller.per_draft_token.update(n_draft, len(logprobs))
        controller.updated()
        if n == n_draft:
            self._wait = self.WAIT[0]
        self._tail = Tail()
        self._wrote(found.n_accept + 1, followed=False)
        self._tail = Tail(draft.tokens[found.n_accept :])

    def target_writes(self, answer: Answer, draft: Draft, found: Round) -> Iterator[Stretch]:
        """Nothing; the rest after a rejection, if the options say so."""
        rejected = found.n_accept < len(draft.tokens)
        yield Stretch(None if rejected and self._policy.after_reject == "target" else 0)

    def _book(self, n_accept: int, seconds: float, entry_s: float = 0.0) -> None:
        # Charged to the account of every round, an investment would end the drafting that is to
        # earn it.
        controller = self._controller
        plain_s = controller.plain_s
        if not self._is_investment(entry_s):
            seconds, entry_s = seconds + entry_s, 0.0
        gain = n_accept + 1 - seconds / plain_s
        controller.account.book(gain)
        controller.entry_account.book(gain - entry_s / plain_s)

    def _catch_up(self, *, followed: bool) -> None:
        n = len(self._answer.tokens) - self._seen
        if n > 0:
            self._look_back()
            self._wrote(n, followed=followed)
            self._span.start = self._seen

    def _wrote(self, n: int, *, followed: bool) -> None:
        self._seen += n
        self._controller.wrote(n)
        self._tail.advance(n, followed=followed)

    def _look_back(self) -> None:
        # What n-grams would have taken for the same tokens. What heads or a draft model behind
        # `--spec` would have proposed is not known without decoding.
        span, answer, speculation = self._span, self._answer, self._speculation
        end = min(span.start + span.n_tokens, len(answer.tokens))
        if span.drafts and end > span.start and speculation.retraceable:
            first = len(answer.prompt) + span.start
            sequence = answer.prompt + answer.tokens[:end]
            controller, steps = self._controller, partial(speculation.retrace, sequence, first)
            controller.hindsight.compare(controller.costs, steps, end - span.start, span.seconds)
            self._looked_back = True
        self._span = _Span(end)

    def finished(self, answer: Answer) -> None:
        """Earn what the last tokens allow, and learn from them."""
        self._catch_up(followed=False)
        self._look_back()
        if not self._looked_back:
            self._controller.hindsight.forget()
