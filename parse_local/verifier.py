"""The verify pass: the target reads a draft once, and forks of its cache give the verdicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parse_local.accept import accepted_length, accepts, loose_length, sure_stretches
from parse_local.boundaries import candidate_boundaries, spread
from parse_local.calibration.features import N_EARLIER
from parse_local.drafting import Draft
from parse_local.events import Boundary, Round
from parse_local.evidence import Evidence
from parse_local.judge import Judge, Question, marks, verdicts
from parse_local.llama.context import Context
from parse_local.llama.logprobs import LogprobReader
from parse_local.llama.sampler import Sampler
from parse_local.planner import places
from parse_local.policy import Policy


class EvidencePlanner(Protocol):
    """Decides which evidence is worth its cost; see `pacing.Planned`."""

    def reads_rows(self, n_draft: int, n_suffix: int) -> bool:
        """Whether a finished draft that a verdict decides on is read with all output rows.

        Args:
            n_draft: its tokens.
            n_suffix: tokens of the question.
        """

    def n_forks(self, n_open: int, n_suffix: int, n_tokens: int) -> int:
        """How many of `n_open` boundaries to ask at once, 0 for none.

        Args:
            n_open: boundaries that may be asked.
            n_suffix: tokens of the question.
            n_tokens: tokens behind the exact prefix.
        """


class Verifier:
    """Judges drafts for one answer.

    Args:
        context: the target's KV cache.
        sampler: of the target.
        judge: the pair's questions, None where the mode asks none.
        policy: mode, thresholds, boundaries.
        sequential: ask every verdict in a plain pass of its own (for comparison; slow).
        planner: says which rows to read and which verdicts on prefixes to buy; None reads
            all and asks for all at once.
        clock: told of each verify pass and each batch of questions: whether hardly any of
            its output rows are read, number of tokens, seconds.
        reader: reads what is reported of the tokens' log-probabilities.
    """

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        judge: Judge | None,
        policy: Policy,
        *,
        sequential: bool = False,
        planner: EvidencePlanner | None = None,
        clock: Callable[[bool, int, float], None] | None = None,
        reader: LogprobReader | None = None,
    ) -> None:
        self._context = context
        self._sequential = sequential
        self._sampler = sampler
        self._judge = judge
        self._policy = policy
        self._planner = planner
        self._clock = clock
        self._reader = reader

    def verify(self, sequence: list[int], draft: Draft) -> tuple[Round, Evidence | None]:
        """Decide how much of a draft stays.

        Decodes the draft once; then, for a complete draft, one fork with the
        question for finished answers; and only if that fails, one batch of
        forks with the question for unfinished ones. A segment gets one verdict at its end,
        and none of its rows is read.

        Args:
            sequence: prompt and answer so far; all but the last token may be in the cache already.
            draft: in the target's tokens.

        Returns:
            The round, and the evidence with the target's next token at every cut; None for
            a segment, and for a whole answer that was accepted unread.
        """
        if self._policy.turns == "segments":
            return self._verify_segment(sequence, draft), None
        if self._skips_rows(draft):
            found = self._verify_segment(sequence, draft)
            if found.whole:
                return found, None
        n_draft = len(draft.tokens)
        policy = self._policy
        forks = policy.can_accept_prefixes or (policy.asks_earlier and draft.complete)
        judged = self._judge is not None and forks
        cuts: list[int] = []
        wanted: Sequence[int] = []  # "exact" can end only where the exact prefix does
        if policy.accepts_boundaries:
            cuts = candidate_boundaries(draft.text, draft.offsets, delta=policy.delta)
            cuts = self._context.forkable(cuts) if judged else cuts
            wanted = [*cuts, n_draft]
        elif policy.accept == "loose":
            wanted = range(n_draft + 1)
        evidence = self.score(sequence, draft, wanted, fork_at=cuts if judged else ())
        boundaries: list[Boundary] = []
        if policy.accepts_boundaries and n_draft:
            boundaries = self._boundaries(sequence, draft, cuts, evidence)
        return self._round(draft, evidence, boundaries), evidence

    def _skips_rows(self, draft: Draft) -> bool:
        # Only where the verdict alone decides; if it rejects, the draft is read again.
        if self._planner is None or self._judge is None or not (draft.complete and draft.tokens):
            return False
        n_suffix = len(self._judge.full.suffix)
        alone = self._policy.accept == "semantic"
        return alone and not self._planner.reads_rows(len(draft.tokens), n_suffix)

    def _boundaries(
        self, sequence: list[int], draft: Draft, cuts: Sequence[int], evidence: Evidence
    ) -> list[Boundary]:
        # Only what the policy looks at, and prefixes only once the whole has failed.
        policy = self._policy
        n_draft = len(draft.tokens)
        prefixes: list[Boundary] = []
        whole: list[Boundary] = []
        if draft.complete:
            if policy.asks_earlier:
                before = spread([c for c in cuts if c < n_draft], N_EARLIER)
                prefixes = self._ask(sequence, draft, before, evidence)
            whole = self._ask(sequence, draft, [n_draft], evidence, complete=True, after=prefixes)
            if any(accepts(b, policy) for b in whole):
                return prefixes + whole
        if policy.can_accept_prefixes:
            # What the target would have written itself needs no verdict.
            last = n_draft - draft.complete
            asked = {b.n_tokens for b in prefixes}
            open_cuts = [c for c in cuts if evidence.n_exact < c <= last and c not in asked]
            sure = self._sure_stretches(draft, open_cuts, evidence.n_exact)
            doubtful = [c for c in open_cuts if c not in sure]
            chosen = spread(doubtful, min(policy.max_forks, self._context.max_forks))
            prefixes = prefixes + self._search(sequence, draft, chosen, evidence)
            prefixes += [_boundary(draft, c, confidence=sure[c]) for c in sure]
            prefixes.sort(key=lambda b: b.n_tokens)
        return prefixes + whole

    def _sure_stretches(self, draft: Draft, cuts: list[int], start: int) -> dict[int, float]:
        least, by = self._policy.min_confidence, self._policy.confidence_by
        if least is None or by == "verdict" or not draft.aligned:
            return {}
        return sure_stretches(cuts, draft.logprobs, start=start, least=least, by=by)

    def _verify_segment(self, sequence: list[int], draft: Draft) -> Round:
        assert self._judge is not None
        n_draft = len(draft.tokens)
        n = n_draft if draft.complete else n_draft - _n_unfinished(draft)
        accepted = False
        boundaries: list[Boundary] = []
        if n:
            wanted = sequence + draft.tokens
            places = [len(sequence) - 1, len(sequence) + n]
            missing = wanted[self._context.sync(wanted) :]
            started = time.perf_counter()
            for _ in self._context.decode(missing, n_rows=0, cuts=places):
                pass
            self._tell(True, len(missing), started)
            boundaries.append(self._ask_segment(self._judge, sequence, draft, n))
            accepted = accepts(boundaries[0], self._policy)
        return Round(
            n_draft=n_draft,
            n_exact=0,
            n_accept=n if accepted else 0,
            boundaries=tuple(boundaries),
            whole=accepted and draft.complete,
            read=False,
        )

    def _ask_segment(self, judge: Judge, sequence: list[int], draft: Draft, n: int) -> Boundary:
        score = judge.mark(draft.channel)
        question = score or judge.about(draft.channel, complete=draft.complete)
        found = self._label_logprobs(question, sequence, draft, [n])
        if score is not None:
            (mark,), (mass,) = marks(found, by=self._policy.score_by)
            verdict = {"score": float(mark), "label_mass": float(mass)}
        else:
            (p_correct,), (mass,) = verdicts(found)
            verdict = {"p_correct": float(p_correct), "label_mass": float(mass)}
        return _boundary(draft, n, complete=draft.complete, **verdict)

    def _search(
        self, sequence: list[int], draft: Draft, cuts: list[int], evidence: Evidence
    ) -> list[Boundary]:
        # All at once; or, with a planner, a few and again between the last of them that passes
        # and the first that fails. A search presumes that what follows an error fails too,
        # which is what the rule says.
        if self._planner is None or self._judge is None or not cuts:
            return self._ask(sequence, draft, cuts, evidence)
        n_tokens = len(draft.tokens) - evidence.n_exact
        n_suffix = len(self._judge.about(draft.channel).suffix)
        n_forks = self._planner.n_forks(len(cuts), n_suffix, n_tokens)
        if self._policy.rule == "longest" and n_forks:
            n_forks = len(cuts)
        found: list[Boundary] = []
        low, high = 0, len(cuts)
        while n_forks and low < high:
            at = [low + i for i in places(high - low, n_forks)]
            asked = self._ask(sequence, draft, [cuts[i] for i in at], evidence)
            found += asked
            for i, boundary in zip(at, asked, strict=True):
                if not accepts(boundary, self._policy):
                    high = i
                    break
                low = i + 1
        return found

    def judge_all(self, prompt: list[int], draft: Draft) -> Round:
        """Ask at every boundary of an answer, whatever the other evidence says.

        Args:
            prompt: the conversation in the target's tokens.
            draft: the answer.
        """
        assert self._judge is not None
        n_draft = len(draft.tokens)
        cuts = candidate_boundaries(draft.text, draft.offsets, delta=self._policy.delta)
        cuts = spread([c for c in cuts if c < n_draft], self._policy.max_forks)
        cuts = self._context.forkable(cuts)
        evidence = self.score(prompt, draft, [*cuts, n_draft], fork_at=cuts, token_scores=True)
        prefixes = self._ask(prompt, draft, cuts, evidence)
        whole = self._ask(prompt, draft, [n_draft], evidence, complete=True, after=prefixes)
        return self._round(draft, evidence, prefixes + whole)

    def _round(self, draft: Draft, evidence: Evidence, boundaries: list[Boundary]) -> Round:
        return Round(
            n_draft=len(draft.tokens),
            n_exact=evidence.n_exact,
            n_accept=accepted_length(self._token_length(evidence), boundaries, self._policy),
            boundaries=tuple(boundaries),
            whole=any(b.complete and accepts(b, self._policy) for b in boundaries),
            n_exact_chars=len(draft.head(evidence.n_exact)),
        )

    def _token_length(self, evidence: Evidence) -> int:
        # What the tokens' own scores let pass, whatever the verdicts say.
        if self._policy.accept != "loose":
            return evidence.n_exact
        return loose_length(
            evidence.n_exact,
            evidence.ranks,
            evidence.entropies,
            min_entropy=self._policy.loose_entropy,
            window=self._policy.loose_window,
        )

    def score(
        self,
        sequence: list[int],
        draft: Draft,
        cuts: Sequence[int],
        *,
        fork_at: Sequence[int] = (),
        token_scores: bool = False,
    ) -> Evidence:
        """Decode what is missing of `sequence`, then the draft, reading one row a draft token.

        Args:
            sequence: prompt and answer so far.
            draft: in the target's tokens.
            cuts: where the evidence is wanted, in tokens of the draft.
            fork_at: those of them where verdicts may be asked for.
            token_scores: keep the tokens' scores (see `Evidence`) whatever the mode.
        """
        evidence = Evidence(
            self._sampler,
            draft.tokens,
            history=sequence,
            cuts=cuts,
            proposals=draft.proposals,
            end_token=draft.end_token,
            token_scores=token_scores or self._policy.needs_logprobs,
            n_threads=self._context.n_threads,
            reader=self._reader,
        )
        missing = sequence[self._context.sync(sequence) :]
        # Before the row of the draft's first token: the state to come back to.
        lengths = [len(sequence) - 1, *(len(sequence) + c for c in fork_at)]
        started = time.perf_counter()
        for start, rows in self._context.decode(
            missing + draft.tokens, n_rows=len(draft.tokens) + 1, cuts=lengths
        ):
            evidence.add(start - len(missing) + 1, rows)
        self._tell(False, len(missing) + len(draft.tokens), started)
        return evidence

    def _ask(
        self,
        sequence: list[int],
        draft: Draft,
        cuts: Sequence[int],
        evidence: Evidence,
        *,
        complete: bool = False,
        after: Sequence[Boundary] = (),
    ) -> list[Boundary]:
        # One question at several cuts: in one batch of forks, or in plain passes. A pair whose
        # profile gives verdicts no weight is asked nothing, and the token evidence stands alone.
        p_correct: list[float | None] = [None] * len(cuts)
        mass: list[float | None] = [None] * len(cuts)
        if self._judge is not None and cuts:
            question = self._judge.about(draft.channel, complete=complete)
            found = self._label_logprobs(question, sequence, draft, cuts)
            p_correct, mass = (values.tolist() for values in verdicts(found))
        earlier = [b.p_correct for b in after if b.p_correct is not None]
        boundaries = []
        for cut, p, m in zip(cuts, p_correct, mass, strict=True):
            boundaries.append(
                _boundary(
                    draft,
                    cut,
                    p_correct=p,
                    label_mass=m,
                    complete=complete,
                    terms=evidence.terms(cut, p_correct=p, label_mass=m, earlier=earlier),
                )
            )
            if p is not None:
                earlier = [*earlier, p]
        return boundaries

    def _label_logprobs(
        self, question: Question, sequence: list[int], draft: Draft, cuts: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        lengths = [len(sequence) + c for c in cuts]
        if self._sequential:
            return self._context.judge_sequentially(
                sequence + draft.tokens, lengths, question.suffix, question.labels
            )
        started = time.perf_counter()
        found = self._context.judge(lengths, question.suffix, question.labels)
        self._tell(True, len(cuts) * len(question.suffix), started)
        return found

    def _tell(self, bare: bool, n_tokens: int, started: float) -> None:
        if self._clock is not None:
            self._clock(bare, n_tokens, time.perf_counter() - started)


def _boundary(draft: Draft, cut: int, **evidence: Any) -> Boundary:
    n_chars = draft.offsets[cut - 1] or len(draft.text)
    return Boundary(n_tokens=cut, n_chars=n_chars, **evidence)


def _n_unfinished(draft: Draft) -> int:
    # Tokens at the end that no boundary can follow: they end inside a character.
    n = 0
    while n < len(draft.tokens) and draft.offsets[-1 - n] is None:
        n += 1
    return n
