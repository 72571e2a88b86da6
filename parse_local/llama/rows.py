"""Output rows of a decode: where llama.cpp keeps them, not what is in them."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
"""Logits, shape (n_rows, n_vocab) or (n_vocab,) for one row."""


class Rows:
    """Rows of logits in llama.cpp's own buffer, valid until the next decode.

    A row is as wide as the vocabulary, so it stays where it is: C functions get
    its address (`scores`, `Sampler`). Where only numpy is there to compute, and in
    tests, `array` looks at the same memory.

    Args:
        address: of the first logit; rows follow one another without a gap.
        n_rows, n_vocab: shape.
        owner: the array that they lie in, None for llama.cpp's buffer.
    """

    __slots__ = ("_owner", "address", "n_rows", "n_vocab")

    def __init__(
        self, address: int, n_rows: int, n_vocab: int, owner: Logits | None = None
    ) -> None:
        self.address = address
        self.n_rows = n_rows
        self.n_vocab = n_vocab
        self._owner = owner

    @classmethod
    def of(cls, logits: npt.ArrayLike) -> Rows:
        """Rows of an array, which is copied unless it is contiguous float32."""
        array = np.atleast_2d(np.ascontiguousarray(logits, np.float32))
        n_rows, n_vocab = array.shape
        return cls(array.ctypes.data, n_rows, n_vocab, owner=array)

    @property
    def array(self) -> Logits:
        """The rows as an array, shape (n_rows, n_vocab); a view, nothing is copied."""
        if self._owner is not None:  # a view that keeps it alive
            start = (self.address - self._owner.ctypes.data) // (4 * self.n_vocab)
            part: Logits = self._owner[start : start + self.n_rows]
            return part
        first = ctypes.cast(self.address, ctypes.POINTER(ctypes.c_float))
        view: Logits = np.ctypeslib.as_array(first, shape=(self.n_rows, self.n_vocab))
        return view

    def copy(self) -> Logits:
        """The rows as an array that outlives the next decode, shape (n_rows, n_vocab)."""
        return np.array(self.array)

    def at(self, start: int, n: int = 1) -> Rows:
        """The rows `start` to `start + n`, which must be among these."""
        assert 0 <= start <= start + n <= self.n_rows
        address = self.address + 4 * start * self.n_vocab
        return Rows(address, n, self.n_vocab, self._owner)

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, i: int) -> Logits:
        """One row as an array, shape (n_vocab,); a view."""
        row: Logits = self.array[i]
        return row
