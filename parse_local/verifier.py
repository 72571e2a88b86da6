"""The verify pass: the target reads a draft once, and forks of its cache give the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from parse_local.accept import accepted_length, accepts, loose_length
from parse_local.boundaries import candidate_boundaries, spread
from parse_local.drafting import Draft
from parse_local.events import Boundary, Round
from parse_local.evidence import Evidence
from parse_local.judge import Judge, Question, verdicts
from parse_local.llama.context import Context
from parse_local.llama.sampler import Sampler
from parse_local.policy import Policy


class Verifier:
    """Judges drafts for one answer.

    Args:
        context: the target's KV cache.
        sampler: of the target.
        judge: the pair's questions, None where the mode asks none.
        policy: mode, thresholds, boundaries.
        sequential: ask every verdict in a plain pass of its own (for comparison; slow).
    """

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        judge: Judge | None,
        policy: Policy,
        *,
        sequential: bool = False,
    ) -> None:
        self._context = context
        self._sequential = sequential
        self._sampler = sampler
        self._judge = judge
        self._policy = policy

    def verify(self, sequence: list[int], draft: Draft) -> tuple[Round, Evidence]:
        """Decide how much of a draft stays.

        Decodes the draft once; then, for a complete draft, one fork with the
        question for finished answers; and only if that fails, one batch of
        forks with the question for unfinished ones.

        Args:
            sequence: prompt and answer so far; all but the last token may be in the cache already.
            draft: in the target's tokens.

        Returns:
            The round, and the evidence with the target's next token at every cut.
        """
        n_draft = len(draft.tokens)
        cuts = candidate_boundaries(draft.text, draft.offsets, delta=self._policy.delta)
        judged = self._judge is not None and self._policy.can_accept_prefixes
        if judged:
            cuts = self._context.forkable(cuts)
        wanted = range(n_draft + 1) if self._policy.accept == "loose" else [*cuts, n_draft]
        evidence = self.score(sequence, draft, wanted, fork_at=cuts if judged else ())
        boundaries: list[Boundary] = []
        if self._judge is not None and n_draft:
            if draft.complete:
                boundaries = self._ask(self._judge.full, sequence, draft, [n_draft], evidence)
            accepted = any(accepts(b, self._policy) for b in boundaries)
            if not accepted and self._policy.can_accept_prefixes:
                # What the target would have written itself needs no verdict.
                last = n_draft - draft.complete
                open_cuts = [c for c in cuts if evidence.n_exact < c <= last]
                chosen = spread(open_cuts, min(self._policy.max_forks, self._context.max_forks))
                prefixes = self._ask(self._judge.prefix, sequence, draft, chosen, evidence)
                boundaries = prefixes + boundaries
        return self._round(draft, evidence, boundaries), evidence

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
        boundaries: list[Boundary] = []
        for question, at in ((self._judge.prefix, cuts), (self._judge.full, [n_draft])):
            boundaries += self._ask(question, prompt, draft, at, evidence)
        return self._round(draft, evidence, boundaries)

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
        )
        missing = sequence[self._context.sync(sequence) :]
        # Before the row of the draft's first token: the state to come back to.
        places = [len(sequence) - 1, *(len(sequence) + c for c in fork_at)]
        for start, rows in self._context.decode(
            missing + draft.tokens, n_rows=len(draft.tokens) + 1, cuts=places
        ):
            evidence.add(start - len(missing) + 1, rows)
        return evidence

    def _ask(
        self,
        question: Question,
        sequence: list[int],
        draft: Draft,
        cuts: Sequence[int],
        evidence: Evidence,
    ) -> list[Boundary]:
        # One question at several cuts: in one batch of forks, or in plain passes.
        if not cuts:
            return []
        lengths = [len(sequence) + c for c in cuts]
        if self._sequential:
            found = self._context.judge_sequentially(
                sequence + draft.tokens, lengths, question.suffix, question.labels
            )
        else:
            found = self._context.judge(lengths, question.suffix, question.labels)
        p_correct, mass = verdicts(found)
        return [
            Boundary(
                n_tokens=cut,
                n_chars=draft.offsets[cut - 1] or len(draft.text),
                p_correct=float(p_correct[i]),
                label_mass=float(mass[i]),
                mean_logprob=evidence.mean_logprob(cut),
                complete=question is self._judge.full if self._judge else False,
            )
            for i, cut in enumerate(cuts)
        ]
