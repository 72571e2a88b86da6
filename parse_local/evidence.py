"""What one verify pass says about a draft, read row by row as llama.cpp hands them over."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from parse_local.accept import speculative_step
from parse_local.distribution import Distribution
from parse_local.llama import scores
from parse_local.llama.sampler import Sampler
from parse_local.llama.scores import Rows


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
        logprobs: also keep the tokens' log-probabilities.
        n_threads: CPU threads for the log-probabilities.
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
        logprobs: bool = False,
        n_threads: int = 1,
    ) -> None:
        self.n_exact = 0
        """Tokens from the start that are the target's own choice."""
        self.next_token: dict[int, int] = {}
        """The target's own next token behind the exact prefix and behind each cut."""
        self.logprobs: npt.NDArray[np.float32] = np.empty(0, np.float32)
        """Log-probability of each token (nats), empty where not asked for."""
        self._sampler = sampler
        self._tokens = list(tokens)
        self._history = list(history)
        self._cuts = frozenset(cuts)
        self._proposals = proposals
        self._end_token = end_token
        self._want_logprobs = logprobs
        self._n_threads = n_threads
        self._exact = True

    def add(self, start: int, rows: Rows) -> None:
        """Take the rows `start`, `start` + 1, …; every row comes once and in order."""
        if self._sampler.argmax_only:
            choices = scores.argmax(rows)
        for i in range(start, start + len(rows)):
            if not self._exact and i not in self._cuts:
                continue
            choice = int(choices[i - start]) if self._sampler.argmax_only else -1
            self._look(i, rows[i - start], choice)
        if self._want_logprobs:
            picked = self._tokens[start : start + len(rows)]
            if picked:
                found = scores.token_logprobs(
                    rows[: len(picked)], picked, n_threads=self._n_threads
                )
                self.logprobs = np.concatenate([self.logprobs, found])

    def _look(self, i: int, row: npt.NDArray[np.float32], choice: int) -> None:
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
        self.next_token[i] = choice if choice >= 0 else self._choose(i, row)

    def _decide(self, i: int, row: npt.NDArray[np.float32], choice: int) -> tuple[bool, int]:
        """Whether draft token i stays, and what to write if not; behind the last, what follows."""
        at_end = i == len(self._tokens)
        token = self._end_token if at_end else self._tokens[i]
        if choice < 0 and token is not None and self._proposals and not self._sampler.greedy:
            target = self._sampler.distribution(row, self._history + self._tokens[:i])
            kept, choice = speculative_step(target, self._proposals[i], token, self._sampler.rng)
        else:
            choice = choice if choice >= 0 else self._choose(i, row)
            kept = choice == token
        return kept and not at_end, choice

    def _choose(self, i: int, row: npt.NDArray[np.float32]) -> int:
        return self._sampler.choose(row, self._history + self._tokens[:i])

    def mean_logprob(self, n: int) -> float | None:
        """Mean log-probability (nats) of the first `n` tokens, None where not kept."""
        return float(self.logprobs[:n].mean()) if n and self.logprobs.size else None
