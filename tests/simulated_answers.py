"""Collected answers of two models that do not exist, whose evidence is worth a known amount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PAIR = "small.gguf + large.gguf"
WEIGHTS = {"log_odds": 1.5, "mean_logprob": 1.0}
"""Of standardised terms: the log-odds that a draft is right are their sum plus `INTERCEPT`."""
INTERCEPT = 1.0


def records(n: int, *, seed: int = 0, task: str = "sim", pair: str = PAIR) -> list[dict[str, Any]]:
    """Lines as `calibration.collect` writes them.

    The verdict in the wording "correct" carries `WEIGHTS["log_odds"]`, that in "mistake" is
    noise. The target is right on nine of ten drafts that are right and on half of the others.
    """
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        verdict, likelihood = rng.normal(size=2)
        score = WEIGHTS["log_odds"] * verdict + WEIGHTS["mean_logprob"] * likelihood + INTERCEPT
        right = bool(rng.random() < 1 / (1 + np.exp(-score)))
        n_tokens = int(rng.integers(50, 150))
        noise = rng.normal(size=n_tokens)
        logprobs = -1.0 + 0.1 * likelihood + 0.25 * (noise - noise.mean())
        early = [_verdict("correct", k, rng.normal(), complete=False) for k in (10, 20, 40)]
        found.append(
            {
                "task": task,
                "problem": f"{task}/{i}",
                "pair": pair,
                "target": _answer(bool(rng.random() < (0.9 if right else 0.5)), n_tokens),
                "draft": _answer(right, n_tokens),
                "n_exact": int(rng.integers(0, n_tokens)),
                "logprobs": logprobs.tolist(),
                "ranks": (rng.random(n_tokens) < 0.1).astype(int).tolist(),
                "entropies": [0.1] * n_tokens,
                "draft_logprobs": [-0.1] * n_tokens,
                "verdicts": [
                    *early,
                    _verdict("correct", n_tokens, verdict),
                    _verdict("mistake", n_tokens, rng.normal()),
                ],
            }
        )
    return found


def _answer(right: bool, n_tokens: int) -> dict[str, Any]:
    return {"text": "", "correct": right, "n_tokens": n_tokens, "finish_reason": "stop"}


def _verdict(wording: str, n_tokens: int, z: float, *, complete: bool = True) -> dict[str, Any]:
    p = float(1 / (1 + np.exp(-2 - z)))
    verdict = {"wording": wording, "n_tokens": n_tokens, "complete": complete}
    return {**verdict, "p_correct": p, "label_mass": 0.99}


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    """As a JSON Lines file."""
    path.write_text("".join(json.dumps(r) + "\n" for r in found), encoding="utf-8")
    return path
