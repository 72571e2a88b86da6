"""What output rows say about tokens: in C where our library is loaded, else in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse_local.errors import DecodeError
from parse_local.llama import library
from parse_local.llama.rows import Rows

_OK, _INVALID_TOKEN = 0, -2  # ggml_patches/src/parse-local.h

NO_TOKEN = -1
"""In place of a token: a row whose scores of one are not wanted; as an arg-max: there is none."""


@dataclass(frozen=True)
class TokenScores:
    """Scores of one token in each row, arrays of shape (n_rows,).

    A row has no distribution if one of its logits is NaN or +inf, or all of them are -inf.

    Args:
        argmax: the row's best token, the lowest id of several; -1 without a distribution.
        logprob: log-probability (nats) of the token; NaN without one.
        rank: tokens with a strictly larger logit, 0 for the best; -1 without one.
        entropy: of the whole row (nats); NaN without a distribution.
    """

    argmax: npt.NDArray[np.int32]
    logprob: npt.NDArray[np.float32]
    rank: npt.NDArray[np.int32]
    entropy: npt.NDArray[np.float32]


def argmax(rows: Rows, *, n_threads: int) -> npt.NDArray[np.int32]:
    """The greedy token of each row, shape (n_rows,); lowest id of several, -1 for none."""
    shim = library.shim()
    if shim is None:
        return _argmax(rows)
    out = np.empty(rows.n_rows, np.int32)
    _check(
        shim.parse_local_score_rows(
            rows.address, rows.n_rows, rows.n_vocab, None, n_threads,
            out.ctypes.data, None, None, None, None,
        )
    )  # fmt: skip
    return out


def token_scores(rows: Rows, tokens: Sequence[int], *, n_threads: int) -> TokenScores:
    """Arg-max and entropy of each row, log-probability and rank of one given token.

    Args:
        rows: n_rows of them.
        tokens: one token id a row, NO_TOKEN for none.
        n_threads: CPU threads.

    Raises:
        DecodeError: a token is not in the rows' vocabulary.
    """
    ids = np.ascontiguousarray(tokens, np.int32)
    assert ids.shape == (rows.n_rows,)
    shim = library.shim()
    if shim is None:
        _check_ids(ids, rows.n_vocab, lowest=NO_TOKEN)
        return _numpy_token_scores(rows, ids)
    n = rows.n_rows
    found = TokenScores(
        np.empty(n, np.int32), np.empty(n, np.float32), np.empty(n, np.int32),
        np.empty(n, np.float32),
    )  # fmt: skip
    status = shim.parse_local_score_rows(
        rows.address, n, rows.n_vocab, ids.ctypes.data, n_threads, found.argmax.ctypes.data,
        found.logprob.ctypes.data, found.rank.ctypes.data, found.entropy.ctypes.data, None,
    )  # fmt: skip
    if status == _INVALID_TOKEN:
        _check_ids(ids, rows.n_vocab, lowest=NO_TOKEN)
    _check(status)
    return found


def label_logprobs(rows: Rows, labels: Sequence[int], *, n_threads: int) -> npt.NDArray[np.float32]:
    """Log-probabilities (nats) of the same few tokens in every row.

    Args:
        rows: n_rows of them.
        labels: token ids.
        n_threads: CPU threads.

    Returns:
        Shape (n_rows, n_labels); NaN where a row has no distribution.

    Raises:
        DecodeError: a label is not in the rows' vocabulary.
    """
    ids = np.ascontiguousarray(labels, np.int32)
    shim = library.shim()
    if shim is None:
        _check_ids(ids, rows.n_vocab)
        valid, log_total = _normaliser(rows)
        with np.errstate(invalid="ignore"):
            found = rows.array[:, ids] - log_total[:, None]
        return np.where(valid[:, None], found, np.nan).astype(np.float32)
    out = np.empty((rows.n_rows, len(ids)), np.float32)
    status = shim.parse_local_label_logprobs(
        rows.address, rows.n_rows, rows.n_vocab, ids.ctypes.data, len(ids), n_threads,
        out.ctypes.data,
    )  # fmt: skip
    if status == _INVALID_TOKEN:
        _check_ids(ids, rows.n_vocab)
    _check(status)
    return out


def no_distribution() -> DecodeError:
    """The error for a row from which no token can be chosen."""
    return DecodeError(
        "The model's output holds NaN or infinite values, so no token can be chosen; its file may "
        "be damaged: download it again, or try --kv-type f16."
    )


def _check(status: int) -> None:
    assert status == _OK, f"libparse_local refused its arguments (code {status})"


def _check_ids(ids: npt.NDArray[np.int32], n_vocab: int, *, lowest: int = 0) -> None:
    wrong = ids[(ids < lowest) | (ids >= n_vocab)]
    if wrong.size:
        raise DecodeError(
            f"Token {wrong[0]} is not in the model's vocabulary of {n_vocab:,}; it was made with "
            "another model's tokeniser, so check that draft, target and profile belong together."
        )


# numpy


def _normaliser(rows: Rows) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Whether each row has a distribution, and the logarithm of its sum of exponentials."""
    x = rows.array
    top = x.max(axis=1, keepdims=True)  # NaN if one logit is
    valid = np.isfinite(top[:, 0])
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.exp(x - top).sum(axis=1, dtype=np.float64)
        return valid, top[:, 0] + np.log(total)


def _argmax(rows: Rows) -> npt.NDArray[np.int32]:
    x = rows.array
    best = x.argmax(axis=1)  # the first NaN, if there is one
    valid = np.isfinite(x[np.arange(len(x)), best])
    return np.where(valid, best, NO_TOKEN).astype(np.int32)


def _numpy_token_scores(rows: Rows, ids: npt.NDArray[np.int32]) -> TokenScores:
    valid, log_total = _normaliser(rows)
    x = rows.array
    picked = x[np.arange(len(ids)), ids]  # some token of the row where none is wanted
    known = valid & (ids != NO_TOKEN)
    with np.errstate(invalid="ignore"):
        logprobs = x - log_total[:, None]
        # 0 * log 0 counts as 0.
        terms = np.where(logprobs > -np.inf, np.exp(logprobs) * logprobs, 0.0)
        entropy = -terms.sum(axis=1)
        rank = (x > picked[:, None]).sum(axis=1)
        logprob = picked - log_total
    return TokenScores(
        argmax=_argmax(rows),
        logprob=np.where(known, logprob, np.nan).astype(np.float32),
        rank=np.where(known, rank, NO_TOKEN).astype(np.int32),
        entropy=np.where(valid, entropy, np.nan).astype(np.float32),
    )
