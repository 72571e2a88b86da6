"""Memory arithmetic: what a pair needs, whether it fits, where it goes."""

from __future__ import annotations

import pytest

from parse_local.errors import OutOfMemoryError
from parse_local.memory import (
    GIB,
    Need,
    Sequences,
    check,
    compute_bytes,
    kv_cache_bytes,
    place,
    share_states,
)


def need(gib: float, n_layer: int = 10) -> Need:
    return Need(weights=int(gib * GIB), kv_cache=0, compute=0, n_layer=n_layer)


def test_kv_cache_of_a_known_model() -> None:
    # Qwen2.5 1.5B: 28 layers, 2 KV heads of 128, K and V: 28 KiB a token in F16.
    elements = 28 * 2 * (128 + 128)
    assert kv_cache_bytes(elements, 1, 2.0) == 28 * 1024
    assert kv_cache_bytes(elements, 4096, 2.0) == 112 * 1024 * 1024
    assert kv_cache_bytes(elements, 4096, 34 / 32) == 112 * 1024 * 1024 * 34 // 64


def test_compute_grows_with_rows_and_vocabulary() -> None:
    assert compute_bytes(1000, 64, 512, 10) == 4 * (2 * 10 * 1000 + 16 * 512 * 64)


def test_what_fits_passes_and_what_does_not_is_named() -> None:
    needs = {"draft": need(1.0), "target": Need(2 * GIB, GIB // 2, GIB // 4, 10)}
    check(needs, int(3.75 * GIB))
    with pytest.raises(OutOfMemoryError) as caught:
        check(needs, int(3.75 * GIB) - 1)
    message = str(caught.value)
    assert "about 3.8 GiB" in message
    assert "target: weights 2.0 + KV cache 0.5 + buffers 0.2" in message
    assert "lower --ctx" in message


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (0.0, (0, 0)),
        (0.5, (5, 0)),  # half of the draft, and nothing of the target before it
        (1.0, (11, 0)),
        (3.0, (11, 5)),  # 2 GiB left for 11 parts of 0.4 GiB
        (5.4, (11, 11)),
        (99.0, (11, 11)),
    ],
)
def test_the_draft_is_placed_first(free: float, expected: tuple[int, int]) -> None:
    assert place(int(free * GIB), need(1.0), need(4.4)) == expected


def test_a_target_alone_is_placed_alone() -> None:
    assert place(2 * GIB, None, need(1.0)) == (0, 11)


@pytest.mark.parametrize(
    ("mib", "max_forks", "expected"),
    [
        (0, 32, Sequences(32, 35)),  # nothing to bound it
        (0, 255, Sequences(126, 129)),  # 256 sequences are llama.cpp's limit
        (50, 32, Sequences(8, 11)),  # 20 states in 1 GiB
        (300, 32, Sequences(1, 2)),  # 3 states, and 4 are the least
        (300, 0, Sequences(0, 2)),
        (1, 0, Sequences(0, 8)),  # a draft model needs no more
    ],
)
def test_states_are_shared_out(mib: int, max_forks: int, expected: Sequences) -> None:
    assert share_states(mib << 20, max_forks) == expected


def test_states_count() -> None:
    assert Need(1, 2, 3, 1, states=4).total == 10
