"""What rows say about tokens, in C and in numpy: against definitions, and against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy

from parse_local.errors import DecodeError
from parse_local.llama import library, scores
from parse_local.llama.rows import Rows

INF, NAN = math.inf, math.nan


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


def both(compute: Any) -> Iterator[Any]:
    """What a function finds with libparse_local, and with numpy alone."""
    if library.shim() is None:
        pytest.skip("libparse_local is not beside this llama.cpp")
    yield compute()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "shim", lambda: None)
        yield compute()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("n", "n_vocab"), [(1, 1), (1, 5), (3, 271), (40, 1000), (7, 152_064), (600, 33)]
)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_both_kinds_equal_float64(n: int, n_vocab: int, n_threads: int) -> None:
    logits = some_rows(n, n_vocab)
    rows = Rows.of(logits)
    expected = log_softmax(logits.astype(np.float64), axis=1)
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, n_vocab, n)]
    found = scores.token_scores(rows, tokens, n_threads=n_threads)
    picked = logits[np.arange(n), tokens]
    assert found.argmax.tolist() == logits.argmax(axis=1).tolist()
    assert scores.argmax(rows, n_threads=n_threads).tolist() == found.argmax.tolist()
    assert found.rank.tolist() == (logits > picked[:, None]).sum(axis=1).tolist()
    np.testing.assert_allclose(found.logprob, expected[np.arange(n), tokens], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(found.entropy, entropy(np.exp(expected), axis=1), atol=2e-5)
    labels = [n_vocab - 1, 0, n_vocab // 2]
    of_labels = scores.label_logprobs(rows, labels, n_threads=n_threads)
    assert of_labels.shape == (n, 3)
    np.testing.assert_allclose(of_labels, expected[:, labels], rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("path")
def test_hand_computed() -> None:
    # Weights 1, 1, 2: the third token has 1/2, the others 1/4 each.
    # Entropy: 1/2 ln 2 + 2 * 1/4 ln 4 = 3/2 ln 2.
    # Second row: one token is certain. Third: all four are alike, ln 4.
    ln2 = math.log(2)
    logits = [[0.0, 0.0, ln2, -INF], [-INF, 5.0, -INF, -INF], [7.0, 7.0, 7.0, 7.0]]
    rows = Rows.of(logits)
    found = scores.token_scores(rows, [1, 0, 3], n_threads=1)
    assert found.argmax.tolist() == [2, 1, 0]
    assert found.rank.tolist() == [1, 1, 0]  # equal logits share a rank
    np.testing.assert_allclose(found.logprob, [-2 * ln2, -INF, -2 * ln2], atol=1e-6)
    np.testing.assert_allclose(found.entropy, [1.5 * ln2, 0.0, 2 * ln2], atol=1e-6)
    labels = scores.label_logprobs(rows, [2, 1], n_threads=1)
    expected = [[-ln2, -2 * ln2], [-INF, 0.0], [-2 * ln2, -2 * ln2]]
    np.testing.assert_allclose(labels, expected, atol=1e-6)


@pytest.mark.usefixtures("path")
def test_a_row_without_a_token_still_has_an_arg_max_and_an_entropy() -> None:
    found = scores.token_scores(Rows.of([[0.0, 0.0], [1.0, 0.0]]), [-1, 0], n_threads=1)
    assert found.argmax.tolist() == [0, 0]
    assert found.rank.tolist() == [-1, 0]
    assert math.isnan(found.logprob[0])
    assert found.entropy[0] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("bad", [[NAN, 1, 2], [0, NAN, 9], [1, INF, 0], [-INF] * 3, [NAN] * 3])
@pytest.mark.parametrize("n_before", [0, 16, 200, 1023, 5000])  # around the blocks of the C loops
def test_a_row_without_a_distribution(bad: list[float], n_before: int) -> None:
    fill = -INF if bad[0] == -INF else 0.0
    row = [fill] * n_before + bad + [fill] * (n_before // 2)
    good = [0.0] * len(row)
    rows = Rows.of([good, row, good])
    found = scores.token_scores(rows, [0, 0, 0], n_threads=1)
    assert found.argmax.tolist() == [0, -1, 0]
    assert found.rank.tolist() == [0, -1, 0]
    assert np.isnan(found.logprob).tolist() == [False, True, False]
    assert np.isnan(found.entropy).tolist() == [False, True, False]
    assert scores.argmax(rows, n_threads=1).tolist() == [0, -1, 0]
    labels = scores.label_logprobs(rows, [0, 1], n_threads=1)
    assert np.isnan(labels).all(axis=1).tolist() == [False, True, False]


LOGIT = st.one_of(
    st.floats(-60, 60, width=32), st.sampled_from([-INF, INF, NAN, 0.0, 1.0, 1.0, -1e30])
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_c_and_numpy_agree_on_any_rows(data: Any) -> None:
    n_vocab = data.draw(st.integers(1, 70))
    row = st.lists(LOGIT, min_size=n_vocab, max_size=n_vocab)
    logits = np.array(data.draw(st.lists(row, min_size=1, max_size=4)), np.float32)
    n = len(logits)
    token = st.integers(-1, n_vocab - 1)
    tokens = data.draw(st.lists(token, min_size=n, max_size=n))
    rows = Rows.of(logits)
    in_c, in_numpy = both(lambda: scores.token_scores(rows, tokens, n_threads=2))
    for name in ("argmax", "rank"):
        assert getattr(in_c, name).tolist() == getattr(in_numpy, name).tolist(), name
    for name in ("logprob", "entropy"):
        a, b = getattr(in_c, name), getattr(in_numpy, name)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-5, err_msg=name)
    labels = data.draw(st.lists(st.integers(0, n_vocab - 1), max_size=3))
    a, b = both(lambda: scores.label_logprobs(rows, labels, n_threads=2))
    assert a.shape == b.shape == (n, len(labels))
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-5)


@pytest.mark.usefixtures("path")
def test_large_logits_do_not_overflow() -> None:
    rows = Rows.of([[1e4, 0.0], [-1e4, -1e4]])
    found = scores.token_scores(rows, [0, 1], n_threads=1)
    np.testing.assert_allclose(found.logprob, [0.0, math.log(0.5)], atol=1e-6)
    np.testing.assert_allclose(found.entropy, [0.0, math.log(2)], atol=1e-6)


@pytest.mark.usefixtures("path")
def test_tokens_of_another_vocabulary_are_an_error_that_says_so() -> None:
    rows = Rows.of(some_rows(2, 10))
    for wrong in (10, -1):
        with pytest.raises(DecodeError, match=rf"Token {wrong} is not in .* of 10; .* tokeniser"):
            scores.label_logprobs(rows, [3, wrong], n_threads=1)
    for wrong in (10, -2):
        with pytest.raises(DecodeError, match=rf"Token {wrong} is not in"):
            scores.token_scores(rows, [wrong, 0], n_threads=1)


def test_rows_are_where_the_array_is() -> None:
    logits = some_rows(4, 20)
    rows = Rows.of(logits)
    assert (rows.address, len(rows), rows.n_vocab) == (logits.ctypes.data, 4, 20)
    middle = rows.at(1, 2)
    logits[1, 3] = 77
    assert middle[0][3] == 77  # a view, also of the part
    assert (middle.copy() == logits[1:3]).all()
    assert [row.tolist() for row in middle] == logits[1:3].tolist()
    wide = Rows.of(logits[:, :7])  # rows with gaps between them are copied
    assert (wide.array == logits[:, :7]).all()
    assert (wide.at(3)[0] == logits[3, :7]).all()
