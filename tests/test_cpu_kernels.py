"""The kernels that a patch adds for few rows: against ggml's plain C, and in a whole model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from exact_batches import batches_are_exact
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from parse_local.llama import library, quantize
from parse_local.llama._bindings import lib
from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe, requantise
from parse_local.planner import MAX_WINDOW

QK = 256  # weights of a super-block
VOID, SIZE = ctypes.c_void_p, ctypes.c_size_t


@pytest.fixture(scope="module")
def cpu() -> ctypes.CDLL:
    """libggml-cpu, with the kernels that only a patched build for x86 has."""
    library.init()
    path = Path(str(lib._lib._name)).parent / "libggml-cpu.so"
    if not path.exists():
        pytest.skip("this build has no libggml-cpu.so of its own")
    found = ctypes.CDLL(str(path))
    if not hasattr(found, "ggml_vec_dots_q6_K_q8_K"):
        pytest.skip("this build has no kernels for few rows")
    return found


@pytest.fixture(scope="module")
def avx2(cpu: ctypes.CDLL) -> ctypes.CDLL:
    """The same, where the kernels add up as ggml does for one row."""
    if not batches_are_exact():
        pytest.skip("the kernels for AVX-512 add floats in another order")
    return cpu


def pointer(array: np.ndarray) -> VOID:
    return VOID(array.ctypes.data)


def random_bytes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def fp16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Scales as they stand in a block: shape (..., 2 n) bytes for n of them."""
    return rng.uniform(-0.02, 0.02, shape).astype(np.float16).view(np.uint8)


def quants(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """8-bit activations with the largest there are among them."""
    found = rng.integers(-127, 128, shape).astype(np.int8)
    found[rng.random(shape) < 0.1] = 127
    found[rng.random(shape) < 0.1] = -127
    return found


def q4_k_8(rng: np.random.Generator, n_columns: int, nb: int) -> np.ndarray:
    """Q4_K weights of `n_columns` matrix rows, eight interleaved: (groups, nb, 1152) bytes."""
    found = random_bytes(rng, n_columns // 8, nb, 1152)
    found[..., :32] = fp16(rng, n_columns // 8, nb, 16)
    return found


def q8_k_4(rng: np.random.Generator, n_rows: int, nb: int) -> np.ndarray:
    """Activations, four rows interleaved by 8, with their sums: (groups, nb, 1168) bytes."""
    groups = -(-n_rows // 4)
    q = quants(rng, groups, nb, 4, QK)
    found = np.zeros((groups, nb, 1168), np.uint8)
    scales = rng.uniform(0.001, 0.02, (groups, nb, 4)).astype(np.float32)
    found[..., :16] = scales.view(np.uint8)
    by_eight = q.reshape(groups, nb, 4, 32, 8).swapaxes(2, 3)
    found[..., 16:1040] = by_eight.reshape(groups, nb, 1024).view(np.uint8)
    # sums of 16, four of each row side by side
    sums = q.reshape(groups, nb, 4, 4, 4, 16).sum(-1).astype(np.int16).swapaxes(2, 3)
    found[..., 1040:] = sums.reshape(groups, nb, 64).view(np.uint8)
    return found


def q4_0_8(rng: np.random.Generator, n_columns: int, nb: int) -> np.ndarray:
    """Q4_0 weights of `n_columns` matrix rows, eight interleaved: (groups, nb, 144) bytes."""
    found = random_bytes(rng, n_columns // 8, nb, 144)
    found[..., :16] = fp16(rng, n_columns // 8, nb, 8)
    return found


def q8_0_4(rng: np.random.Generator, n_rows: int, nb: int) -> np.ndarray:
    """Activations, four rows interleaved by 8: (groups, nb, 136) bytes."""
    groups = -(-n_rows // 4)
    found = np.zeros((groups, nb, 136), np.uint8)
    found[..., :8] = fp16(rng, groups, nb, 4)
    found[..., 8:] = quants(rng, groups, nb, 128).view(np.uint8)
    return found


def plain_q8_k(rows: np.ndarray) -> np.ndarray:
    """What `q8_k_4` interleaved, row by row: (rows, nb, 292) bytes."""
    groups, nb, _ = rows.shape
    q = rows[..., 16:1040].reshape(groups, nb, 32, 4, 8).swapaxes(2, 3)
    sums = rows[..., 1040:].reshape(groups, nb, 4, 4, 8).swapaxes(2, 3)
    parts = (rows[..., :16], q, sums)
    by_row = np.concatenate([part.reshape(groups, nb, 4, -1) for part in parts], axis=-1)
    return np.ascontiguousarray(by_row.swapaxes(1, 2)).reshape(groups * 4, nb, 292)


def plain_q8_0(rows: np.ndarray) -> np.ndarray:
    """What `q8_0_4` interleaved, row by row: (rows, nb, 34) bytes."""
    groups, nb, _ = rows.shape
    q = rows[..., 8:].reshape(groups, nb, 4, 4, 8).swapaxes(2, 3)
    parts = (rows[..., :8], q)
    by_row = np.concatenate([part.reshape(groups, nb, 4, -1) for part in parts], axis=-1)
    return np.ascontiguousarray(by_row.swapaxes(1, 2)).reshape(groups * 4, nb, 34)


@pytest.mark.parametrize("kernel", ["q4_0_8x8_q8_0", "q4_K_8x8_q8_K"])
@given(
    nr=st.integers(1, 70),
    nb=st.sampled_from([1, 2, 6]),
    n_columns=st.sampled_from([8, 24]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_interleaved_weights_by_any_number_of_rows(
    cpu: ctypes.CDLL, kernel: str, nr: int, nb: int, n_columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    if kernel.startswith("q4_K"):
        weights, rows, block = q4_k_8(rng, n_columns, nb), q8_k_4(rng, nr, nb), 256
    else:
        weights, rows, block = q4_0_8(rng, n_columns, nb), q8_0_4(rng, nr, nb), 32
    n_padded = 4 * len(rows)
    expected, found = np.zeros((2, n_padded + 1, n_columns), np.float32)
    found[:] = 7.0
    for function, to, n in (
        (cpu[f"ggml_gemm_{kernel}_generic"], expected, n_padded),
        (cpu[f"ggml_gemm_{kernel}"], found, nr),
    ):
        shape = (pointer(to), SIZE(n_columns), pointer(weights), pointer(rows), n, n_columns)
        function(nb * block, *shape)
    # What is added up is far larger than the sum: rounding is relative to that.
    np.testing.assert_allclose(found[:nr], expected[:nr], rtol=1e-5, atol=2e-4 * nb)
    assert np.all(found[nr:] == 7.0), "rows of the padding must not be written"


@pytest.mark.parametrize("kernel", ["q4_0_8x8_q8_0", "q4_K_8x8_q8_K"])
@given(nr=st.integers(1, 70), nb=st.sampled_from([1, 2, 6]), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_a_row_among_others_is_the_row_alone_to_the_last_bit(
    avx2: ctypes.CDLL, kernel: str, nr: int, nb: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n_columns = 24
    if kernel.startswith("q4_K"):
        weights, rows, block = q4_k_8(rng, n_columns, nb), q8_k_4(rng, nr, nb), 256
        plain = plain_q8_k(rows)
    else:
        weights, rows, block = q4_0_8(rng, n_columns, nb), q8_0_4(rng, nr, nb), 32
        plain = plain_q8_0(rows)
    found, alone = np.zeros((2, nr, n_columns), np.float32)
    shape = (SIZE(n_columns), pointer(weights))
    avx2[f"ggml_gemm_{kernel}"](nb * block, pointer(found), *shape, pointer(rows), nr, n_columns)
    gemv = avx2[f"ggml_gemv_{kernel}"]
    for i in range(nr):
        gemv(nb * block, pointer(alone[i:]), *shape, pointer(plain[i:]), 1, n_columns)
    np.testing.assert_array_equal(found, alone)


@given(nr=st.integers(1, 35), nb=st.sampled_from([1, 2, 6]), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_q6_k_by_any_number_of_rows(cpu: ctypes.CDLL, nr: int, nb: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = random_bytes(rng, nb, 210)
    weights[:, 208:] = fp16(rng, nb, 1)
    q = quants(rng, nr, nb, QK)
    rows = np.zeros((nr, nb, 292), np.uint8)
    rows[..., :4] = rng.uniform(0.001, 0.02, (nr, nb, 1)).astype(np.float32).view(np.uint8)
    rows[..., 4:260] = q.view(np.uint8)
    sums = q.reshape(nr, nb, 16, 16).sum(-1).astype(np.int16)
    rows[..., 260:] = sums.view(np.uint8)
    expected, alone = np.zeros((2, nr), np.float32)
    for i in range(nr):
        shape = (SIZE(0), pointer(weights), SIZE(0), pointer(rows[i]), SIZE(0), 1)
        cpu.ggml_vec_dot_q6_K_q8_K_generic(nb * QK, pointer(expected[i:]), *shape)
        cpu.ggml_vec_dot_q6_K_q8_K(nb * QK, pointer(alone[i:]), *shape)
    found = np.full((nr + 1, 3), 7.0, np.float32)  # results three floats apart
    many = (pointer(found), SIZE(3), pointer(weights), pointer(rows), SIZE(rows[0].nbytes), nr)
    cpu.ggml_vec_dots_q6_K_q8_K(nb * QK, *many)
    np.testing.assert_allclose(found[:nr, 0], expected, rtol=1e-5, atol=2e-3 * nb)
    if batches_are_exact():
        np.testing.assert_array_equal(found[:nr, 0], alone)
    assert np.all(found[:, 1:] == 7.0)
    assert np.all(found[nr] == 7.0)


def q8_0(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights or activations: (*shape, 34) bytes."""
    found = np.zeros((*shape, 34), np.uint8)
    found[..., :2] = fp16(rng, *shape, 1)
    found[..., 2:] = quants(rng, *shape, 32).view(np.uint8)
    return found


@given(
    nr=st.integers(1, 35),
    nx=st.integers(1, 5),
    nb=st.sampled_from([1, 2, 6]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_q8_0_by_any_number_of_rows(
    avx2: ctypes.CDLL, nr: int, nx: int, nb: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights, rows = q8_0(rng, nx, nb), q8_0(rng, nr, nb)
    alone = np.zeros((nr, nx), np.float32)
    for i, j in np.ndindex(nr, nx):
        shape = (SIZE(0), pointer(weights[j]), SIZE(0), pointer(rows[i]), SIZE(0), 1)
        avx2.ggml_vec_dot_q8_0_q8_0(nb * 32, pointer(alone[i, j:]), *shape)
    found = np.full((nr + 1, nx + 2), 7.0, np.float32)  # results two floats apart
    many = (pointer(weights), SIZE(nb * 34), nx, pointer(rows), SIZE(nb * 34), nr)
    avx2.ggml_vec_dots_q8_0_q8_0(nb * 32, pointer(found), SIZE(nx + 2), *many)
    np.testing.assert_array_equal(found[:nr, :nx], alone)
    assert np.all(found[:, nx:] == 7.0)
    assert np.all(found[nr] == 7.0)


@pytest.fixture(
    params=[Recipe("q4_0", "q4_0"), Recipe("q4_k_m", "q4_k", "q6_k"), Recipe("q8_0", "q8_0")],
    ids=lambda r: r.name,
)
def quantised(
    request: pytest.FixtureRequest,
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Model]:
    """A tiny model in a mixture of types that has kernels of its own."""
    for table, values in (
        (quantize._FTYPES, {"q4_k": 15}),  # LLAMA_FTYPE_MOSTLY_Q4_K_M
        (quantize._TYPES, {"q6_k": 14}),
        (quantize._BITS, {"q4_k": 4.5, "q6_k": 6.6}),
    ):
        for name, value in values.items():
            monkeypatch.setitem(table, name, value)
    original = Model(tiny(seed=3, n_embd=256, n_layer=2, scale=1.0), headers_only=True)
    file = tmp_path / "quantised.gguf"
    requantise(original, file, request.param, n_threads=1)
    original.close()
    model = Model(file)
    yield model
    model.close()


def read(context: Context, tokens: list[int], sizes: Iterable[int]) -> np.ndarray:
    """Logits of all tokens, decoded so many at a time."""
    rows, start = [], 0
    for n in sizes:
        for _, found in context.decode(tokens[start : start + n], n_rows=n):
            rows.append(found.copy())
        start += n
    return np.concatenate(rows)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("n_threads", [1, 3])
def test_tokens_together_are_as_tokens_one_by_one(quantised: Model, n_threads: int) -> None:
    """In batches of few tokens, and of more than stay in the cache at once."""
    context = Context(quantised, n_ctx=256, n_threads=n_threads, kv_type="f32", flash_attn="off")
    tokens = [int(t) for t in np.random.default_rng(5).integers(0, 256, 100)]

    def logprobs(sizes: list[int]) -> np.ndarray:
        context.clear()
        return log_softmax(read(context, tokens, sizes).astype(np.float64), axis=1)

    try:
        one_by_one = logprobs([1] * 100)
        for n in (*range(2, 18), 31, 32, 33, 40, 100):
            together = logprobs([n] * (100 // n))
            # Activations are rounded to 8 bits on the way: sums that differ in their last bit
            # now and then round to the next one, which every later token sees.
            assert np.abs(together - one_by_one[: len(together)]).max() < 0.1, n
            assert np.abs(together[0] - one_by_one[0]).max() < 0.05, n
    finally:
        context.close()


@pytest.mark.usefixtures("avx2")
@pytest.mark.parametrize("n_threads", [1, 2, 3])  # there are four heads
def test_a_token_is_the_same_alone_and_among_others(quantised: Model, n_threads: int) -> None:
    """To the last bit, in batches as large as a window, across the 512th cell of the cache."""
    context = Context(quantised, n_ctx=1024, n_threads=n_threads, flash_attn="on")
    tokens = [int(t) for t in np.random.default_rng(5).integers(0, 256, 600)]
    before, after = tokens[:480], tokens[480:]

    def logits(n: int) -> np.ndarray:
        context.clear()
        read(context, before, [60] * 8)
        return read(context, after, [n] * (len(after) // n))

    try:
        one_by_one = logits(1)
        for n in (*range(2, 18), 31, 32, 33, MAX_WINDOW + 1):
            together = logits(n)
            assert np.array_equal(together, one_by_one[: len(together)]), n
    finally:
        context.close()
