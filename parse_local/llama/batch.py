"""A llama_batch whose arrays are numpy's, so that filling it is a slice assignment."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from parse_local.llama._bindings import lib

N_BATCH = 2048
"""Tokens that one llama_decode takes at most."""


class Batch:
    """The tokens of one llama_decode, at most `N_BATCH`."""

    def __init__(self) -> None:
        self._token = np.zeros(N_BATCH, np.int32)
        self._pos = np.zeros(N_BATCH, np.int32)
        self._seq = np.zeros(N_BATCH, np.int32)
        self._logits = np.zeros(N_BATCH, np.int8)
        self._n_seq = np.ones(N_BATCH, np.int32)
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(N_BATCH, dtype=np.uintp)
        self.native = lib.llama_batch()
        for name, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._n_seq),
            ("seq_id", self._seq_pointers),
            ("logits", self._logits),
        ):
            kind = type(getattr(self.native, name))
            setattr(self.native, name, ctypes.cast(array.ctypes.data, kind))

    def clear(self) -> None:
        """Empty the batch."""
        self.native.n_tokens = 0

    @property
    def has_forks(self) -> bool:
        """Whether any token is of another sequence than the main one."""
        return bool(self._seq[: self.native.n_tokens].any())

    def add(self, seq: int, pos: int, tokens: Sequence[int], *, n_rows: int) -> None:
        """Append consecutive tokens of one sequence.

        Args:
            seq: sequence id.
            pos: position of the first token.
            tokens: what to append.
            n_rows: output rows wanted, counted from the end.
        """
        start = int(self.native.n_tokens)
        end = start + len(tokens)
        self._token[start:end] = tokens
        self._pos[start:end] = np.arange(pos, pos + len(tokens))
        self._seq[start:end] = seq
        self._logits[start:end] = 0
        self._logits[end - n_rows : end] = 1
        self.native.n_tokens = end
