"""What decodes of the loaded pair cost, measured briefly where `parse-local tune` has not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from parse_local.costs import CostCurve, PairCosts
from parse_local.engine import Engine
from parse_local.load_options import LoadOptions
from parse_local.tune.measure import WINDOW, Subject, in_turns
from parse_local.writer import Writer

SIZES = {
    "draft": (1, 4, 16, 64, 256),
    "target": (2, 4, 8, 16, 32, 64, 128),
    "target_bare": (1, 16, 64, 256),
}
"""Tokens of the decodes that are timed, by curve; verify passes are what matters most.

One token has one row either way, so that both of the target's curves begin with its decode.
"""
BUDGET_S = 20.0
_TURNS = 5


def measure_costs(
    engine: Engine, options: LoadOptions, stopped: Callable[[], bool]
) -> PairCosts | None:
    """Time decodes of both models in turns, behind a context of some hundred tokens.

    Medians; what does not fit into `BUDGET_S` is left out, but for decodes of at most 16 tokens.

    Args:
        engine: a pair.
        options: how it was loaded.
        stopped: asked before each decode whether to give up.

    Returns:
        The curves; None where it was stopped.

    Raises:
        OutOfMemoryError: there is no room for a second context beside the pair's.
    """
    assert engine.draft is not None
    with ExitStack() as stack:

        def subject(writer: Writer) -> Subject:
            made = Subject(
                writer.model,
                n_threads=writer.context.n_threads,
                flash_attn=options.flash_attn,
                kv_type=options.kv_type,
                n_max=256,
            )
            stack.callback(made.close)
            return made

        draft, target = subject(engine.draft), subject(engine.target)
        probes: dict[tuple[str, int], Callable[[], float]] = {}
        expected: dict[tuple[str, int], float] = {}
        for curve, sizes in SIZES.items():
            if stopped():
                return None
            decode = partial((draft if curve == "draft" else target).decode, rows=curve == "target")
            token_s = decode(WINDOW) / WINDOW
            for n in sizes:
                probes[curve, n] = partial(decode, n)
                expected[curve, n] = n * token_s
        by_size = sorted(probes, key=lambda probe: probe[1])
        turns = in_turns(
            {(curve, n): probes[curve, n] for curve, n in by_size},
            {(curve, n): 3 if n <= WINDOW else 0 for curve, n in by_size},
            most=_TURNS,
            budget_s=BUDGET_S,
            expected_s=expected,
            clock=time.perf_counter,
        )
        while True:
            try:
                next(turns)
            except StopIteration as end:
                found: dict[tuple[str, int], float] = end.value
                break
            if stopped():
                return None
    points = {
        curve: {n: found[curve, n] for n in sizes if (curve, n) in found}
        for curve, sizes in SIZES.items()
    }
    points["target"][1] = points["target_bare"][1]
    return PairCosts(**{curve: CostCurve.through(p) for curve, p in points.items()})
