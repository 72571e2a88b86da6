"""Log-probabilities read from output rows: in C where our library is loaded, else in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.llama import library

Rows = npt.NDArray[np.float32]
"""Logits, shape (n_rows, n_vocab), usually a view of llama.cpp's own buffer."""


def _pointer(array: npt.NDArray[Any] | None) -> Any:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


def argmax(rows: Rows) -> npt.NDArray[np.int32]:
    """The greedy token of each row, shape (n_rows,); the lowest id wins a tie."""
    return np.asarray(rows.argmax(axis=1), dtype=np.int32)


def _log_normaliser(rows: Rows) -> npt.NDArray[np.float64]:
    top = rows.max(axis=1, keepdims=True)
    total = np.exp(rows - top).sum(axis=1, dtype=np.float64)
    return np.asarray(top[:, 0] + np.log(total), dtype=np.float64)


def token_logprobs(rows: Rows, tokens: Sequence[int], *, n_threads: int) -> npt.NDArray[np.float32]:
    """Log-probability (nats) of one given token in each row.

    Args:
        rows: shape (n_rows, n_vocab).
        tokens: one token id a row.
        n_threads: CPU threads.

    Returns:
        Shape (n_rows,), float32.
    """
    ids = np.ascontiguousarray(tokens, dtype=np.int32)
    shim = library.shim()
    if shim is None or not rows.flags.c_contiguous:
        picked = rows[np.arange(len(ids)), ids].astype(np.float64)
        return (picked - _log_normaliser(rows)).astype(np.float32)
    out = np.empty(len(ids), np.float32)
    status = shim.parse_local_score_rows(
        _pointer(rows), len(ids), rows.shape[1], _pointer(ids), n_threads,
        None, _pointer(out), None, None, None,
    )  # fmt: skip
    assert status == 0, status
    return out


def label_logprobs(rows: Rows, labels: Sequence[int], *, n_threads: int) -> npt.NDArray[np.float32]:
    """Log-probabilities (nats) of a few tokens in every row.

    Args:
        rows: shape (n_rows, n_vocab).
        labels: token ids.
        n_threads: CPU threads.

    Returns:
        Shape (n_rows, n_labels), float32.
    """
    ids = np.ascontiguousarray(labels, dtype=np.int32)
    shim = library.shim()
    if shim is None or not rows.flags.c_contiguous:
        return (rows[:, ids] - _log_normaliser(rows)[:, None]).astype(np.float32)
    out = np.empty((len(rows), len(ids)), np.float32)
    status = shim.parse_local_label_logprobs(
        _pointer(rows), len(rows), rows.shape[1], _pointer(ids), len(ids), n_threads, _pointer(out)
    )
    assert status == 0, status
    return out
