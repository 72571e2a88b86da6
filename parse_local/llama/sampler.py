"""What a model's next token may be: llama.cpp's sampler chain over one output row."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parse_local.distribution import Distribution
from parse_local.errors import GrammarError
from parse_local.llama import library, scores
from parse_local.llama._bindings import lib
from parse_local.llama.grammar import TOKEN_DATA, Grammar, token_array
from parse_local.llama.model import Model
from parse_local.llama.rows import Logits, Rows

if TYPE_CHECKING:
    from parse_local.llama.context import Context

PENALTY_LAST_N = 64  # llama.cpp's default window of the repeat penalty

_NO_DISTRIBUTION = -3  # ggml_patches/src/parse-local.h


class Sampler:
    """Shapes output rows as llama.cpp does and draws from what is left.

    The chain is penalties → top-k → top-p → min-p → temperature, llama.cpp's
    own order. The draw itself is numpy's, because speculative sampling needs
    the probabilities and not only a token.

    With libparse_local the chain sees only the tokens that its top-k can keep,
    picked out of the row in place; what reaches Python are the few that are left.

    A grammar comes first: what it does not allow has no probability, and the chain works on the
    rest. It is asked about likely tokens until enough are allowed for the result to be the same
    as if it had been asked about all.

    Args:
        model: whose rows are sampled.
        temperature: 0 is greedy; the other samplers are then off, the penalty is not.
        top_k, top_p, min_p, repeat_penalty: as in llama.cpp; 0, 1, 0, 1 switch them off.
        seed: of the draw; None draws one.
        grammar: GBNF that the text has to follow, None for free text.
        marks: as those of `Grammar`.
        n_prompt: tokens of `history` that come before the text.
        begins: how many tokens of the text come before what the grammar is about, None while
            that has not begun; all of the text without it.

    Raises:
        GrammarError: the grammar is wrong.
    """

    def __init__(
        self,
        model: Model,
        *,
        temperature: float = 0.0,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        seed: int | None = None,
        grammar: str | None = None,
        marks: Collection[int] = (),
        n_prompt: int = 0,
        begins: Callable[[Sequence[int]], int | None] | None = None,
    ) -> None:
        self._chain: Any = None
        self._grammar: Grammar | None = None
        if grammar is not None:
            self._grammar = Grammar(model, grammar, marks)
        self._n_prompt = n_prompt
        self._begins = begins
        self._n_vocab = model.n_vocab
        self.rng = np.random.default_rng(seed)
        self.greedy = temperature <= 0
        self._penalty = repeat_penalty != 1.0
        self.argmax_only = self.greedy and not self._penalty and grammar is None
        """The token is the row's arg-max and nothing else has to be looked at."""
        self.n_history = PENALTY_LAST_N if grammar is None else sys.maxsize
        """Tokens before a row that matter, counted from the last."""
        self._top_p, self._min_p = top_p, min_p
        self._n_keep = 1 if self.greedy else min(max(top_k, 0), model.n_vocab)  # 0: no top-k
        if self.greedy and not self._penalty:
            return
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        stages = []
        if self._penalty:
            stages.append(
                lib.llama_sampler_init_penalties(
                    model.n_vocab, PENALTY_LAST_N, repeat_penalty, 0.0, 0.0
                )
            )
        if not self.greedy:
            stages += [
                lib.llama_sampler_init_top_k(min(top_k, model.n_vocab)),
                lib.llama_sampler_init_top_p(top_p, 1),
                lib.llama_sampler_init_min_p(min_p, 1),
                lib.llama_sampler_init_temp(temperature),
            ]
        for stage in stages:
            lib.llama_sampler_chain_add(self._chain, stage)
        few = 2 * (self._n_keep + PENALTY_LAST_N)
        n = min(few, model.n_vocab) if self._n_keep and library.shim() else model.n_vocab
        self._candidates = np.zeros(n, TOKEN_DATA)
        self._ids = np.arange(n, dtype=np.int32)
        self._probs = np.empty(n, np.float64)
        arrays = (self._candidates, self._ids, self._probs)
        self._addresses = [array.ctypes.data for array in arrays]  # asking numpy takes a while

    def distribution(self, row: Rows | Logits, history: Sequence[int]) -> Distribution:
        """What the chain leaves of one row.

        Args:
            row: one output row, or logits of shape (n_vocab,).
            history: tokens before this position, the last `n_history` of them or more.

        Raises:
            DecodeError: the row holds no distribution (see `scores.TokenScores`).
            GrammarError: no token of the model goes on as the grammar demands.
        """
        row = row if isinstance(row, Rows) else Rows.of(row)
        assert row.n_rows == 1
        written = self._written(history) if self._grammar is not None else None
        if self.greedy and not self._penalty and written is None:
            best = scores.argmax(row, n_threads=1)
            if best[0] < 0:
                raise scores.no_distribution()
            return Distribution(best, np.ones(1))
        shim = library.shim()
        recent = history[-PENALTY_LAST_N:] if self._penalty else None
        if self._grammar is not None and written is not None:
            ids, probs = self._constrained(self._grammar, row, written, recent)
        elif shim is None:
            ids, probs = self._apply(row, self._ids, recent)
        else:
            ids, probs = self._apply_in_c(shim, row, recent)
        if self.greedy:
            best = ids[probs == probs.max()].min(keepdims=True)  # the lowest of several
            return Distribution(best, np.ones(1))
        return Distribution(ids, probs)

    def _apply_in_c(
        self, shim: ctypes.CDLL, row: Rows, recent: Sequence[int] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        accepted = None if recent is None else np.asarray(recent, np.int32)
        candidates, ids, probs = self._addresses
        n = shim.parse_local_sample_row(
            library.llama_functions(), row.address, row.n_vocab, self._chain, self._n_keep,
            None if accepted is None else accepted.ctypes.data,
            0 if accepted is None else len(accepted),
            candidates, len(self._candidates), ids, probs,
        )  # fmt: skip
        if n == _NO_DISTRIBUTION:
            raise scores.no_distribution()
        assert n > 0, f"libparse_local refused its arguments (code {n})"
        return self._ids[:n].copy(), self._probs[:n].copy()

    def _apply(
        self, row: Rows, ids: npt.NDArray[np.int32], recent: Sequence[int] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        # What the chain leaves of some tokens of the row.
        if not np.isfinite(row.array.max()):
            raise scores.no_distribution()
        candidates = np.zeros(len(ids), TOKEN_DATA)
        candidates["id"] = ids
        candidates["logit"] = row.array[0][ids]
        left: npt.NDArray[Any] = candidates
        if self._chain is not None:
            if recent is not None:
                lib.llama_sampler_reset(self._chain)
                for token in recent:
                    lib.llama_sampler_accept(self._chain, token)
            array = token_array(candidates)
            lib.llama_sampler_apply(self._chain, ctypes.byref(array))
            address = ctypes.cast(array.data, ctypes.c_void_p).value or 0
            n_bytes = int(array.size) * TOKEN_DATA.itemsize
            left = np.frombuffer(ctypes.string_at(address, n_bytes), TOKEN_DATA)
        logits = left["logit"].astype(np.float64)
        weights = np.exp(logits - logits.max())
        return left["id"].copy(), weights / weights.sum()

    def _constrained(
        self, grammar: Grammar, row: Rows, written: Sequence[int], recent: Sequence[int] | None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        if not np.isfinite(row.array.max()):
            raise scores.no_distribution()
        if grammar.n_allowed(written) == len(written):
            for ids in self._likely(row, recent):
                allowed = ids[grammar.allows(ids) & (row.array[0][ids] > -np.inf)]
                # What a penalty lowers makes room for others.
                enough = self._n_keep + len(recent or ())
                if len(ids) == self._n_vocab or (self._n_keep and len(allowed) >= enough):
                    break
                if len(allowed) and not self.greedy and not recent:
                    logits = row.array[0]
                    if self._others_go(logits[allowed], logits[ids].min()):
                        break
            if len(allowed):
                return self._apply(row, np.sort(allowed), recent)
        raise GrammarError(
            "No token of the model goes on as the grammar demands; allow more there, or end it."
        )

    def _written(self, history: Sequence[int]) -> Sequence[int] | None:
        # What the grammar is about, None while that has not begun.
        text = history[self._n_prompt :]
        start = self._begins(text) if self._begins is not None else 0
        return None if start is None else text[start:]

    def _others_go(self, logits: Logits, most: float) -> bool:
        # Whether top-p and min-p leave the same of these tokens whatever others there are, none
        # of which has a logit above `most`, and leave none of those.
        order = np.sort(logits.astype(np.float64))[::-1]
        weights, other = np.exp(order - order[0]), np.exp(most - order[0])
        if other >= self._min_p:
            return False
        n_others = (self._n_keep or self._n_vocab) - len(logits)
        reached, total = weights.cumsum(), weights.sum()
        least = np.searchsorted(reached, self._top_p * total)
        greatest = np.searchsorted(reached, self._top_p * (total + n_others * other))
        n_left = int((weights >= self._min_p).sum())
        return bool(min(least + 1, n_left) == min(greatest + 1, n_left))

    def _likely(self, row: Rows, recent: Sequence[int] | None) -> Iterator[npt.NDArray[np.int32]]:
        # The likeliest token, some of the likeliest, all: each time with those that a penalty
        # may raise.
        n_few = 4 * (self._n_keep + PENALTY_LAST_N)
        raised = np.array(sorted(set(recent or ())), np.int32)
        if self.greedy and not self._penalty:
            best = scores.argmax(row, n_threads=1)
            if best[0] < 0:
                raise scores.no_distribution()
            yield best
        if self._n_keep and n_few < self._n_vocab:
            few = np.argpartition(row.array[0], -n_few)[-n_few:].astype(np.int32)
            yield np.union1d(few, raised)
        yield np.arange(self._n_vocab, dtype=np.int32)

    def choose(self, row: Rows | Logits, history: Sequence[int]) -> int:
        """The model's next token at one row; raises as `distribution`."""
        return self.distribution(row, history).sample(self.rng)

    def advance(self, context: Context, token: int, history: Sequence[int]) -> int:
        """Decode one token and choose the next.

        Args:
            context: whose main sequence goes on with `token`.
            token: the token.
            history: the tokens up to and including `token`, for the repeat penalty.

        Raises:
            ContextLengthError, Cancelled, DecodeError: as `Context.decode` and `distribution`.
        """
        if self.argmax_only:
            return context.greedy(token)
        return self.distribution(context.last_row([token]), history).sample(self.rng)

    def n_fitting(self, sequence: Sequence[int], tokens: Sequence[int]) -> int:
        """How many of some tokens the grammar allows behind a sequence; all without one.

        Args:
            sequence: prompt and text so far.
            tokens: what may follow.
        """
        written = None if self._grammar is None else self._written([*sequence, *tokens])
        if self._grammar is None or written is None:
            return len(tokens)
        return max(0, self._grammar.n_allowed(written) + len(tokens) - len(written))

    def close(self) -> None:
        """Free the chain and the grammar."""
        if self._grammar is not None:
            self._grammar.close()
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None

    def __del__(self) -> None:
        self.close()
