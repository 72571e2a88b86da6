"""Whose turn it is, planned: the strategy "auto"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from parse_local.answer import Answer
from parse_local.controller import Controller
from parse_local.drafting import Draft, Stop
from parse_local.events import Round
from parse_local.planner import (
    MAX_WINDOW,
    WholeAnswer,
    plan_forks,
    plan_tail,
    prefixes_pay,
    reads_rows_first,
    whole_answer_pays,
)
from parse_local.policy import Policy
from parse_local.speculation import Tail
from parse_local.turns import Stretch, Windows


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
    """

    PROBE = 4  # tokens
    WAIT = 16, 256  # tokens between decisions while nothing pays: at first, and at most

    def __init__(
        self,
        answer: Answer,
        policy: Policy,
        controller: Controller,
        *,
        shared_vocabulary: bool,
        n_suffix: int = 0,
    ) -> None:
        super().__init__(policy)
        self._answer = answer
        self._controller = controller
        self._shared = shared_vocabulary
        self._tail = Tail()
        self._seen = 0  # tokens of the answer that are accounted for
        self._wait = self.WAIT[0]
        self._n_probe = 0
        self._times_plain = False
        self._n_unread = 0
        self._n_drafted = 0
        self._survival = 1.0
        self._asked_prefixes = False
        self._from_tail: int | None = None  # tokens that agree in front of the tail's place
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

    def tail(self, answer: Answer) -> list[int]:
        """The rest of a rejected draft, where its reading gains more than a new draft."""
        self._catch_up(followed=False)
        self._from_tail = None
        controller = self._controller
        if self.judged or controller.account.balance <= 0 or not self._tail.tokens:
            return []
        found = self._tail.propose(answer.sequence, min(MAX_WINDOW, answer.n_left))
        if not found:
            return []
        n_agreeing = self._tail.n_agreeing
        rate = controller.tail_rate(n_agreeing)
        price = controller.plan().seconds_per_token
        n = plan_tail(controller.costs, min(rate.value, 0.99), price, len(found))
        if n:
            self._from_tail = n_agreeing
            self._started()
        return found[:n]

    def limit(self, answer: Answer, n_unread: Callable[[], int]) -> int:
        """As many tokens as may pay, for `push` to stop within."""
        controller = self._controller
        self._n_probe, self._times_plain = 0, False
        limit = super().limit(answer, n_unread)
        if not answer.tokens or (limit <= 0 and not self.judged):
            return 0
        self._n_unread = n_unread()
        if self.judged:
            self._started()
            return limit
        self._catch_up(followed=False)
        self._times_plain = controller.plain_due()
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
        if entry_s <= controller.plain_s:
            return True
        n = controller.n_expected(len(answer.tokens), answer.n_left)
        saved = n * controller.plan().saved_per_token
        affordable = entry_s <= controller.account.balance * controller.plain_s
        return entry_s < saved if affordable else 1.5 * entry_s < saved

    def _may_probe(self, entry_s: float) -> bool:
        controller = self._controller
        costs = controller.costs
        cost = entry_s + self.PROBE * costs.draft.seconds(1) + costs.target.seconds(1 + self.PROBE)
        lost = cost / controller.plain_s - 1
        if controller.n_expected(len(self._answer.tokens), self._answer.n_left) < 2 * lost:
            return False  # what it may find out would come too late here
        return lost <= controller.account.balance

    def without_draft(self, answer: Answer) -> Stretch:
        """One token at first; later as many as should pass before the next decision."""
        if not answer.tokens:
            # Of a process's first answer a few, so that its speed-up can be measured.
            return Stretch(max(1, self._controller.baseline.n_missing))
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
        return not self._controller.plan().goes_on(self._n_drafted, self._survival)

    # after it was read

    def verified(self, answer: Answer, draft: Draft, found: Round) -> None:
        """Learn from it, and keep what was rejected for `tail`."""
        controller = self._controller
        n, n_draft = found.n_accept, len(draft.tokens)
        costs = controller.costs
        seconds = costs.target.seconds(1 + n_draft)
        if self._from_tail is not None:
            controller.tail_rate(self._from_tail).update(n, min(n_draft, n + 1))
            self._book(n, seconds)
            self._wrote(n + 1, followed=n > 0)
            return
        # The first decode reads what the draft model had not read as well.
        n_own = len(draft.logprobs)
        seconds += costs.draft.seconds(self._n_unread) + (n_own - 1) * costs.draft.seconds(1)
        # Whether the target would have ended there too is not in the round.
        logprobs = draft.logprobs[: n_own - (draft.end_token is not None)]
        if self.judged:
            self._judges = False
            controller.whole_account.book(n + 1 - seconds / controller.plain_s)
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
        else:
            self._book(n, seconds)
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

    def _book(self, n_accept: int, seconds: float) -> None:
        self._controller.account.book(n_accept + 1 - seconds / self._controller.plain_s)

    def _catch_up(self, *, followed: bool) -> None:
        n = len(self._answer.tokens) - self._seen
        if n > 0:
            self._wrote(n, followed=followed)

    def _wrote(self, n: int, *, followed: bool) -> None:
        self._seen += n
        self._controller.account.wrote(n)
        self._controller.whole_account.wrote(n)
        self._tail.advance(n, followed=followed)

    def finished(self, answer: Answer) -> None:
        """Earn what the last tokens allow."""
        self._catch_up(followed=False)
