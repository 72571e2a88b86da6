"""Log-probabilities read from rows, in C and in numpy, against float64 arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax

from parse_local.llama import library, scores


@pytest.fixture(params=["shim", "numpy"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of computing; the C one only where our library stands beside llama.cpp."""
    if request.param == "numpy":
        monkeypatch.setattr(library, "shim", lambda: None)
    elif library.shim() is None:
        pytest.skip("libparse_local is not beside this llama.cpp")
    return str(request.param)


def some_rows(n: int, n_vocab: int, scale: float = 5.0) -> np.ndarray:
    return (np.random.default_rng(n).standard_normal((n, n_vocab)) * scale).astype(np.float32)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("n", "n_vocab"), [(1, 5), (3, 271), (40, 1000), (7, 152_064)])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_both_kinds_equal_float64(n: int, n_vocab: int, n_threads: int) -> None:
    rows = some_rows(n, n_vocab)
    expected = log_softmax(rows.astype(np.float64), axis=1)
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, n_vocab, n)]
    of_tokens = scores.token_logprobs(rows, tokens, n_threads=n_threads)
    np.testing.assert_allclose(of_tokens, expected[np.arange(n), tokens], rtol=1e-6, atol=1e-5)
    labels = [n_vocab - 1, 0, 3]
    of_labels = scores.label_logprobs(rows, labels, n_threads=n_threads)
    assert of_labels.shape == (n, 3)
    np.testing.assert_allclose(of_labels, expected[:, labels], rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("path")
def test_hand_computed() -> None:
    # e^0 + e^0 + e^(ln 2) = 4, so the third token has 1/2 and the others 1/4 each.
    rows = np.array([[0.0, 0.0, math.log(2)]], np.float32)
    found = scores.label_logprobs(rows, [2, 0], n_threads=1)
    np.testing.assert_allclose(found, [[math.log(0.5), math.log(0.25)]], atol=1e-6)


@pytest.mark.usefixtures("path")
def test_large_logits_do_not_overflow() -> None:
    rows = np.array([[1e4, 0.0], [-1e4, -1e4]], np.float32)
    found = scores.token_logprobs(rows, [0, 1], n_threads=1)
    np.testing.assert_allclose(found, [0.0, math.log(0.5)], atol=1e-6)


@pytest.mark.usefixtures("path")
def test_rows_that_are_not_contiguous() -> None:
    wide = some_rows(4, 20)
    rows = wide[:, :10]
    expected = log_softmax(rows.astype(np.float64), axis=1)[:, [1, 2]]
    found = scores.label_logprobs(rows, [1, 2], n_threads=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_lowest_id_wins_a_tie() -> None:
    rows = np.array([[1, 7, 7, 0], [2, 2, 2, 2]], np.float32)
    assert scores.argmax(rows).tolist() == [1, 0]
