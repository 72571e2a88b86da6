"""What a model's next token may be: llama.cpp's sampler chain over one output row."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.distribution import Distribution
from parse_local.llama._bindings import lib
from parse_local.llama.model import Model

PENALTY_LAST_N = 64  # llama.cpp's default window of the repeat penalty

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler:
    """Shapes output rows as llama.cpp does and draws from what is left.

    The chain is penalties → top-k → top-p → min-p → temperature, llama.cpp's
    own order. The draw itself is numpy's, because speculative sampling needs
    the probabilities and not only a token.

    Args:
        model: whose rows are sampled.
        temperature: 0 is greedy; the other samplers are then off, the penalty is not.
        top_k, top_p, min_p, repeat_penalty: as in llama.cpp; 0, 1, 0, 1 switch them off.
        seed: of the draw; None draws one.
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
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.greedy = temperature <= 0
        self._penalty = repeat_penalty != 1.0
        self.argmax_only = self.greedy and not self._penalty
        """The token is the row's arg-max and nothing else has to be looked at."""
        self._chain: Any = None
        if self.argmax_only:
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
        self._candidates = np.empty(model.n_vocab, _TOKEN_DATA)
        self._ids = np.arange(model.n_vocab, dtype=np.int32)

    def distribution(self, row: npt.NDArray[np.float32], history: Sequence[int]) -> Distribution:
        """What the chain leaves of one row.

        Args:
            row: logits, shape (n_vocab,).
            history: tokens before this position, for the repeat penalty.
        """
        if self.argmax_only:
            return Distribution(np.array([row.argmax()], np.int32), np.ones(1))
        if self._penalty:
            lib.llama_sampler_reset(self._chain)
            for token in history[-PENALTY_LAST_N:]:
                lib.llama_sampler_accept(self._chain, token)
        self._candidates["id"] = self._ids
        self._candidates["logit"] = row
        array = lib.llama_token_data_array()
        array.data = ctypes.cast(self._candidates.ctypes.data, type(array.data))
        array.size = len(self._candidates)
        array.selected = -1
        array.sorted = False
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        address = ctypes.cast(array.data, ctypes.c_void_p).value or 0
        n_bytes = int(array.size) * _TOKEN_DATA.itemsize
        left: npt.NDArray[Any] = np.frombuffer(ctypes.string_at(address, n_bytes), _TOKEN_DATA)
        logits = left["logit"].astype(np.float64)
        if self.greedy:
            best = int(logits.argmax())
            return Distribution(left["id"][best : best + 1].copy(), np.ones(1))
        weights = np.exp(logits - logits.max())
        return Distribution(left["id"].copy(), weights / weights.sum())

    def choose(self, row: npt.NDArray[np.float32], history: Sequence[int]) -> int:
        """The model's next token at one row."""
        if self.argmax_only:
            return int(row.argmax())
        return self.distribution(row, history).sample(self.rng)

    def close(self) -> None:
        """Free the chain."""
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None

    def __del__(self) -> None:
        self.close()
