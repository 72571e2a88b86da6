"""Timing decodes on a machine that others use too: in turns, repeated, medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from parse_local.llama import scores
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.tune.check import reference_tokens

N_CONTEXT = 300
"""Tokens in the cache behind which every decode is timed."""
WINDOW = 16
"""Tokens of the verify pass by which settings are compared."""
MARGIN = 1.05
"""How many times faster something must be to take the place of what is there."""
BURST = 4
"""Decodes of single tokens that are timed together."""

Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)


class Subject:
    """A model with settings, whose decodes can be timed.

    Args:
        model: the weights.
        n_threads, flash_attn, kv_type: as those of `Context`; None and "auto" are its defaults.
        n_max: most tokens of a decode.
        cancel: polled during every decode.

    Raises:
        OutOfMemoryError, UsageError: as `Context`.
        Cancelled: while it read its context.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_threads: int | None = None,
        flash_attn: str = "auto",
        kv_type: str = "f16",
        n_max: int = WINDOW,
        cancel: CancelFlag | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        text = reference_tokens(model)
        repeats = 1 + (N_CONTEXT + n_max) // len(text)
        self._text = (text * repeats)[: N_CONTEXT + max(n_max, BURST)]
        self._clock = clock
        self.context = Context(
            model,
            n_ctx=len(self._text) + 1,
            n_threads=n_threads,
            flash_attn=flash_attn,
            kv_type=kv_type,
            cancel=cancel,
        )
        try:
            self.context.prefill(self._text[: N_CONTEXT + 1])
        except BaseException:
            self.context.close()
            raise

    def decode(self, n: int, *, rows: bool) -> float:
        """Seconds of one llama_decode with `n` tokens, reading its output rows' arg-max.

        Args:
            n: tokens.
            rows: an output row for each of them, else one for the last. More rows than a
                context holds at once take several decodes, as they do in an answer.
        """
        context = self.context
        tokens = self._text[N_CONTEXT : N_CONTEXT + n]
        started = self._clock()
        if n == 1:  # as the engine writes: one call into C
            for token in self._text[N_CONTEXT : N_CONTEXT + BURST]:
                context.greedy(token)
        elif rows:
            for _, some in context.decode(tokens, n_rows=n):
                scores.argmax(some, n_threads=context.n_threads)
        else:
            scores.argmax(context.last_row(tokens), n_threads=1)
        seconds = self._clock() - started
        context.rewind(N_CONTEXT)
        return seconds / BURST if n == 1 else seconds

    def batch_is_exact(self) -> bool:
        """Whether a batch has the very logits of its tokens one by one, to the last bit."""
        context = self.context
        tokens = self._text[N_CONTEXT : N_CONTEXT + BURST]
        batch = [rows.copy() for _, rows in context.decode(tokens, n_rows=len(tokens))]
        context.rewind(N_CONTEXT)
        alone = [context.last_row([token]).copy() for token in tokens]
        context.rewind(N_CONTEXT)
        return np.array_equal(np.concatenate(batch), np.concatenate(alone))

    def close(self) -> None:
        """Free the cache; the model stays."""
        self.context.close()


@dataclass(frozen=True)
class Speeds:
    """How fast something is, or how much faster than another.

    Args:
        decode: of single tokens.
        verify: of a token in a verify pass of `WINDOW` tokens; 1 where it doesn't matter.
        both: of a token that is decoded, verified, or both, as the role has it.
    """

    decode: float = 1.0
    verify: float = 1.0
    both: float = 1.0

    def __mul__(self, other: Speeds) -> Speeds:
        return Speeds(
            self.decode * other.decode, self.verify * other.verify, self.both * other.both
        )


Sample = Callable[[], tuple[float, float]]
"""Seconds of (a decode, a token in a verify pass); 0 for what the role does not do."""


def relative(base: Sample, other: Sample, *, most: int, budget_s: float, clock: Clock) -> Speeds:
    """How many times faster `other` is than `base`, medians of pairs timed back to back.

    Whatever else the machine does hits both halves of a pair alike.

    Args:
        base, other: each call times once.
        most: most pairs; at least three are timed.
        budget_s: seconds after which no further pair is begun.
    """
    started = clock()
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    base(), other()  # the first decode of a shape builds its graph
    while len(pairs) < most and (len(pairs) < 3 or clock() - started < budget_s):
        if len(pairs) % 2:
            second = other()
            pairs.append((base(), second))
        else:
            pairs.append((base(), other()))
    return Speeds(
        decode=median(b[0] / o[0] for b, o in pairs),
        verify=median(b[1] / o[1] if o[1] > 0 else 1.0 for b, o in pairs),
        both=median(sum(b) / sum(o) for b, o in pairs),
    )


def in_turns(
    probes: Mapping[Name, Callable[[], float]],
    least: Mapping[Name, int],
    *,
    most: int,
    budget_s: float,
    expected_s: Mapping[Name, float],
    clock: Clock,
) -> Generator[Name, None, dict[Name, float]]:
    """Time several things in turns; the generator's value is the median of each.

    What was never timed is not in it.

    Args:
        probes: each call returns seconds.
        least: repeats that are made whatever they take.
        most: repeats at most.
        budget_s: seconds for everything; once `least` is reached, only what still fits
            is timed again.
        expected_s: what those take, roughly, whose `least` is 0.

    Yields:
        The name of what is timed next.
    """
    started = clock()
    found: dict[Name, list[float]] = {name: [] for name in probes}
    for turn in range(most):
        for name, probe in probes.items():
            left = budget_s - (clock() - started)
            timed = found[name]
            if turn >= least[name] and (median(timed) if timed else expected_s[name]) > left:
                continue
            yield name
            timed.append(probe())
    return {name: median(seconds) for name, seconds in found.items() if seconds}


def threads_to_try(physical: int, logical: int) -> Sequence[int]:
    """Thread counts beside `physical`: fewer by halves, and one for each logical core."""
    fewer = []
    n = 1 << (physical - 1).bit_length() >> 1  # the largest power of two below it
    while n >= 1:
        if n < physical:
            fewer.append(n)
        n //= 2
    return [*([logical] if logical > physical else []), *fewer]
