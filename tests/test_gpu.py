"""On a GPU: forks judge as plain passes do, and `exact` writes the target's own text.

Runs on whatever GPU llama.cpp has a backend for, with all layers on it, and is
skipped where there is none. scripts/check_vulkan runs it on Mesa's lavapipe, a Vulkan
driver for the processor, where the machine has no GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask
from tiny_gguf import READABLE

from parse_local import Options
from parse_local.bench.numerics import compare_exact, compare_verdicts
from parse_local.hub import paths
from parse_local.llama import library
from parse_local.llama.model import Model

pytestmark = [
    pytest.mark.skipif(
        not library.gpus(),
        reason="llama.cpp finds no GPU; scripts/check_vulkan runs these without one",
    ),
    pytest.mark.timeout(900),  # a driver without a GPU compiles its shaders for a minute
]

# In nats. Shaders multiply in half precision, unless they are told not to; cuBLAS in TF32.
EXACT = "GGML_VK_DISABLE_F16" in os.environ
TOLERANCE = 2e-5 if EXACT else 0.03

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain attention": ({}, {"kv_type": "f32", "flash_attn": "off"}),
    "flash attention": ({}, {"kv_type": "f16", "flash_attn": "on"}),
    "sliding window": ({"architecture": "gemma3", "n_layer": 2}, {}),
}
TEXTS = [
    "Abc xyz. Not so?\n\n* one\n* two",
    "日本 🎉! " * 8,  # longer than the sliding window of 32 tokens
]


def test_every_layer_is_on_the_gpu(
    tiny: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library.init()
    monkeypatch.setattr(library.log, "verbose", True)
    Model(tiny(seed=1, n_layer=3), n_gpu_layers=-1).close()
    # Three layers and the output matrix.
    assert re.findall(r"offloaded (\d+)/(\d+) layers", capsys.readouterr().err) == [("4", "4")]


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_verdicts_equal_sequential_ones(
    load: Callable[..., Any], tiny: Callable[..., Path], kind: str
) -> None:
    model, context = KINDS[kind]
    target = tiny(seed=1, **model)
    engine = load(target=target, n_gpu_layers=-1, **context)
    options = Options(delta=4, max_forks=12)
    for text in TEXTS:
        parallel, plain = (
            engine.verify(ask("hello"), text, options=options, sequential=sequential)
            for sequential in (False, True)
        )
        found, expected = (
            np.log([[b.p_correct, b.label_mass] for b in judged.boundaries])
            for judged in (parallel, plain)
        )
        assert len(found) > 4
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
        # A fork that saw the wrong cells would be as far off as one cut is from the next.
        assert np.abs(np.diff(expected[:, 0])).min() > 3 * TOLERANCE
        assert np.ptp(expected[:, 0]) > 0.3


def test_exact_equals_the_target_alone(load: Callable[..., Any], tiny: Callable[..., Path]) -> None:
    target = tiny(seed=1, bias=READABLE)
    draft = tiny(seed=2, weights_from=1, bias=READABLE)
    engine = load(target=target, draft=draft, n_gpu_layers=-1)
    compared = [
        compare_exact(engine, ask(question), max_tokens=32, window=window, batch_sizes=(1, 64))
        for question in ("hello there", "日本語で答えて。")
        for window in (0, 5)
    ]
    for c in compared:
        assert c.n_tokens > 20
        if not c.identical:  # two tokens so close that another shape of batch swaps them
            assert c.margin <= max(c.spread, TOLERANCE), c
    assert sum(c.identical for c in compared) >= (4 if EXACT else 2)


@pytest.mark.real
def test_a_real_model_judges_in_forks_as_in_plain_passes(load: Callable[..., Any]) -> None:
    engine = load(
        target=paths("smollm2-135m")[0], n_gpu_layers=-1, kv_type="f16", flash_attn="auto"
    )
    text = "def add(a, b):\n    return a + b\n"
    compared = compare_verdicts(engine, ask("Write add."), text, n_cuts=2, batch_sizes=(512, 16))
    assert compared.difference <= 1.5 * compared.plain_spread + 5e-3
    assert (compared.forks > 0).all()
    assert (compared.forks < 1).all()
