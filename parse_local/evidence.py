"""What one verify pass says about a draft, read row by row as llama.cpp hands them over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from parse_local.accept import speculative_step
from parse_local.calibration.features import evidence_terms
from parse_local.distribution import Distribution
from parse_local.events import TokenLogprob
from parse_local.llama import scores
from parse_local.llama.logprobs import LogprobReader
from parse_local.llama.rows import Rows
from parse_local.llama.sampler import Sampler


class Evidence:
    """Token evidence of one draft.

    Row i is the target's output before draft token i; the row behind the last
    token says how the answer goes on if all of it is kept.

    Args:
        sampler: of the target; decides what the target itself would write.
        tokens: the draft in the target's vocabulary.
        history: tokens before the draft, for the repeat penalty.
        cuts: prefix lengths at which the target's own next token is wanted.
        proposals: distributions that the tokens (and the end token) were drawn from, for
            speculative sampling; None compares with the target's own choice.
        end_token: what the draft model drew behind the last token to end its answer.
            It is a proposal like any other: dropped, answers would end too rarely.
        token_scores: also keep `logprobs`, `ranks` and `entropies`.
        n_threads: CPU threads for reading the rows.
        reader: reads what is reported of the tokens, None where nobody asked.
    """

    def __init__(
        self,
        sampler: Sampler,
        tokens: Sequence[int],
        *,
        history: Sequence[int],
        cuts: Collection[int],
        proposals: Sequence[Distribution] | None = None,
        end_token: int | None = None,
        token_scores: bool = False,
        n_threads: int = 1,
        reader: LogprobReader | None = None,
    ) -> None:
        self.n_exact = 0
        """Tokens from the start that are the target's own choice."""
        self.next_token: dict[int, int] = {}
        """The target's own next token behind the exact prefix and behind each cut."""
        self.read: list[TokenLogprob] = []
        """What is reported of the draft's tokens, from the first one on: those that may stay."""
        self.next_read: dict[int, TokenLogprob] = {}
        """The same of `next_token`."""
        n = len(tokens) if token_scores else 0
        self.logprobs: npt.NDArray[np.float32] = np.full(n, np.nan, np.float32)
        """Log-probability of each token (nats), empty where not asked for."""
        self.ranks: npt.NDArray[np.int32] = np.full(n, -1, np.int32)
        """Tokens with a strictly larger logit than each token: 0 where it is the target's first
        choice. Empty where not asked for."""
        self.entropies: npt.NDArray[np.float32] = np.full(n, np.nan, np.float32)
        """Entropy (nats) of the target's distribution before each token: high where several
        words would do. Empty where not asked for."""
        self._sampler = sampler
        self._tokens = list(tokens)
        # The sampler looks back so far, from the first token of the draft.
        self._history = [*history[-sampler.n_history :], *tokens]
        self._cuts = frozenset(cuts)
        self._proposals = proposals
        self._end_token = end_token
        self._token_scores = token_scores
        self._n_threads = n_threads
        self._reader = reader
        self._last_cut = max(cuts, default=0)
        self._exact = True

    def add(self, start: int, rows: Rows) -> None:
        """Take the rows `start`, `start` + 1, …; every row comes once and in order.

        One call into C reads everything that is wanted of them.
        """
        choices = None
        if self._sampler.argmax_only or self._token_scores:
            choices = self._read(start, rows)
        for i in range(start, start + len(rows)):
            row = rows.at(i - start)
            may_stay = i < len(self._tokens) and (self._exact or i < self._last_cut)
            if self._reader is not None and may_stay:
                self.read.append(self._reader.read(row, self._tokens[i]))
            if self._exact or i in self._cuts:
                choice = None if choices is None else choices[i - start]
                self._look(i, row, choice)
                if self._reader is not None and i in self.next_token:
                    self.next_read[i] = self._reader.read(row, self.next_token[i])

    def _read(self, start: int, rows: Rows) -> list[int] | None:
        end = start + len(rows)
        if not self._token_scores:
            choices = scores.argmax(rows, n_threads=self._n_threads)
        else:
            tokens = [*self._tokens, scores.NO_TOKEN][start:end]
            found = scores.token_scores(rows, tokens, n_threads=self._n_threads)
            choices = found.argmax
            kept = slice(start, min(end, len(self._tokens)))
            n = kept.stop - kept.start
            self.logprobs[kept] = found.logprob[:n]
            self.ranks[kept] = found.rank[:n]
            self.entropies[kept] = found.entropy[:n]
        if (choices < 0).any():
            raise scores.no_distribution()
        return choices.tolist() if self._sampler.argmax_only else None

    def _look(self, i: int, row: Rows, choice: int | None) -> None:
        if self._exact:
            kept, token = self._decide(i, row, choice)
            if kept:
                self.n_exact = i + 1
                if i not in self._cuts:
                    return
            else:
                self._exact = False
                self.next_token[i] = token
                return
        self.next_token[i] = self._choose(i, row) if choice is None else choice

    def _decide(self, i: int, row: Rows, choice: int | None) -> tuple[bool, int]:
        """Whether draft token i stays, and what to write if not; behind the last, what follows."""
        at_end = i == len(self._tokens)
        token = self._end_token if at_end else self._tokens[i]
        if token is not None and self._proposals and not self._sampler.greedy:
            target = self._sampler.distribution(row, self._before(i))
            kept, choice = speculative_step(target, self._proposals[i], token, self._sampler.rng)
        else:
            choice = self._choose(i, row) if choice is None else choice
            kept = choice == token
        return kept and not at_end, choice

    def _choose(self, i: int, row: Rows) -> int:
        return self._sampler.choose(row, self._before(i))

    def _before(self, i: int) -> list[int]:
        n = len(self._history) - len(self._tokens) + i
        return self._history[max(0, n - self._sampler.n_history) : n]

    def behind(self, n: int) -> tuple[list[int], list[TokenLogprob]]:
        """The target's own token behind the first `n`, and what is reported of it.

        Args:
            n: the exact prefix, or one of the cuts.
        """
        return [self.next_token[n]], [self.next_read[n]] if self._reader else []

    def terms(
        self,
        n: int,
        *,
        p_correct: float | None = None,
        label_mass: float | None = None,
        earlier: Sequence[float] = (),
    ) -> dict[str, float]:
        """All evidence about the first `n` tokens; arguments as `evidence_terms`."""
        return evidence_terms(
            n_tokens=n,
            n_exact=self.n_exact,
            p_correct=p_correct,
            label_mass=label_mass,
            earlier=earlier,
            logprobs=self.logprobs,
            ranks=self.ranks,
        )
