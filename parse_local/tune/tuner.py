"""The procedure of `parse-local tune`: settings, requantisations, curves."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from parse_local.costs import SIZES
from parse_local.errors import Cancelled, ModelError, OutOfMemoryError, UsageError
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.model import Model
from parse_local.llama.quantize import Recipe, requantise
from parse_local.load_options import FlashAttention, KVType
from parse_local.tune import store
from parse_local.tune.check import N_TOKENS, Reading, Role, compare, read_reference
from parse_local.tune.found import Found, Request, decode_name, decodes
from parse_local.tune.measure import (
    BURST,
    MARGIN,
    N_CONTEXT,
    WINDOW,
    Clock,
    Sample,
    Speeds,
    Subject,
    in_turns,
    relative,
    threads_to_try,
)
from parse_local.tune.store import Record, Setting

GROWTH = 1.5
"""A requantisation that would be larger than the original by this factor is not made."""

RECIPES = (
    Recipe("q4_0", "q4_0"),
    Recipe("q4_0-output-q8_0", "q4_0", "q8_0"),
    Recipe("output-q8_0", None, "q8_0"),
    Recipe("q8_0", "q8_0"),
)
"""What is tried, best guess first."""
_REPEATS = {"draft": 9, "target": 5}
_CACHES: tuple[tuple[FlashAttention, KVType], ...] = (("off", "f16"), ("auto", "q8_0"))
# "auto" is on wherever llama.cpp has it
_SHARE = 0.02  # of the budget, for one comparison
_RESERVED = 0.4  # of the budget, at most, for the cost curves


@dataclass(frozen=True)
class Step:
    """Where a run has got to.

    Args:
        text: what it does.
        done: share of the expected time, 0 to 1.
    """

    text: str
    done: float


class Tuner:
    """Measures the files of a pair; iterate over `run`, then read `records`.

    Args:
        requests: by role.
        budget_s: seconds to stay below. What no longer fits is left out: repeats, then
            requantisations after the first, caches, and sizes above `WINDOW`, beyond which
            the curve goes on with its slope.
        recipes: the requantisations to try.
    """

    def __init__(
        self,
        requests: Mapping[Role, Request],
        *,
        budget_s: float = 110.0,
        recipes: Sequence[Recipe] = RECIPES,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.records: dict[Role, Record] = {}
        self._requests = requests
        self._budget_s = budget_s
        self._recipes = recipes
        self._clock = clock
        self._started = clock()
        self._cancel = CancelFlag()
        self._curves_s = 0.0  # that the cost curves may take, of the files loaded so far

    def cancel(self) -> None:
        """Stop soon; what was found before stays as it was."""
        self._cancel.set()

    def run(self) -> Iterator[Step]:
        """Measure everything and save it.

        Yields:
            What it does next.

        Raises:
            StorageError: there is no room for a requantised file; nothing of it is left.
            ModelError, OutOfMemoryError, DecodeError: as loading and decoding.
            Cancelled: after `cancel`.
        """
        store.remove_leftovers()
        found: dict[Role, Found] = {}
        try:
            with ExitStack() as stack:
                for role, request in self._requests.items():
                    found[role] = Found(request)
                    yield from self._choose_settings(stack, role, found[role])
                for role, choice in found.items():
                    if choice.request.requantise:
                        yield from self._choose_file(role, choice)
                yield from self._curves(stack, found)
            for role, record in self.records.items():
                found[role].keep()
                store.save(record)
        finally:
            for choice in found.values():
                choice.tidy()

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _step(self, text: str) -> Step:
        if self._cancel:
            raise Cancelled("Stopped.")
        return Step(text, min(0.99, self._elapsed() / self._budget_s))

    def _has_time(self, seconds: float) -> bool:
        """Whether something that takes so long leaves time for the cost curves."""
        reserved = min(self._curves_s, _RESERVED * self._budget_s)
        return self._elapsed() + seconds + reserved <= self._budget_s

    # what is fastest

    def _subject(self, stack: ExitStack, model: Model, **settings: Any) -> Subject:
        subject = Subject(
            model, n_max=SIZES[-1], cancel=self._cancel, clock=self._clock, **settings
        )
        stack.callback(subject.close)
        return subject

    def _compare(self, role: Role, base: Sample, other: Sample) -> Speeds:
        budget = _SHARE * self._budget_s
        return relative(base, other, most=_REPEATS[role], budget_s=budget, clock=self._clock)

    def _choose_settings(self, stack: ExitStack, role: Role, found: Found) -> Iterator[Step]:
        yield self._step(f"loading the {role}")
        model = found.load(stack, found.request.path)
        base = self._subject(stack, model, n_threads=found.request.n_threads)
        found.subject, found.n_threads = base, base.context.n_threads
        found.token_s = _batch_s(role, base)
        self._curves_s += sum(found.expected(role).values())
        usual = found.n_threads

        def on(n: int) -> Sample:
            def sample() -> tuple[float, float]:
                base.context.set_threads(n)
                return _sample(role, base)

            return sample

        found.settings.append(Setting(usual, "auto", "f16", 1.0))
        logical = psutil.cpu_count(logical=True) or usual
        given = found.request.n_threads is not None
        for n in () if given else threads_to_try(usual, logical):
            yield self._step(f"{role}: {n} threads")
            speeds = self._compare(role, on(usual), on(n))
            found.settings.append(Setting(n, "auto", "f16", speeds.both))
            if speeds.both > max(MARGIN, found.speeds.both):
                found.n_threads, found.speeds = n, speeds
            if n < usual and speeds.both < 0.8:
                break  # fewer still are slower still
        base.context.set_threads(found.n_threads)
        so_far = found.speeds
        for flash_attn, kv_type in _CACHES:
            # It reads the same context first, and is then compared at least three times.
            if not self._has_time((N_CONTEXT + 8 * (BURST + WINDOW)) * found.token_s):
                break
            yield self._step(f"{role}: flash attention {flash_attn}, KV cache {kv_type}")
            with ExitStack() as tried:
                try:
                    other = self._subject(
                        tried,
                        model,
                        n_threads=found.n_threads,
                        flash_attn=flash_attn,
                        kv_type=kv_type,
                    )
                except (UsageError, OutOfMemoryError):
                    continue  # this model or backend cannot
                speeds = self._compare(
                    role, partial(_sample, role, base), partial(_sample, role, other)
                )
                # What changes the text is measured and left to the user: a quantised cache, and
                # for a target rounding that is no longer the same alone and in a batch.
                faster = kv_type == "f16" and speeds.both > MARGIN
                if faster and (
                    role == "draft" or other.batch_is_exact() or not base.batch_is_exact()
                ):
                    found.flash_attn, found.speeds = flash_attn, so_far * speeds
                    found.subject = other
                    stack.push(tried.pop_all())
            found.settings.append(
                Setting(found.n_threads, flash_attn, kv_type, so_far.both * speeds.both)
            )

    def _choose_file(self, role: Role, found: Found) -> Iterator[Step]:
        base, model = found.subject, found.subject.context.model
        faster: list[tuple[Recipe, Path, Speeds]] = []
        took = 0.0
        for recipe in self._recipes:
            n_bytes = recipe.estimate(model)
            if n_bytes > GROWTH * model.n_bytes:
                found.note(recipe, n_bytes, f"not made: over {GROWTH:g}x the original's size")
                continue
            # Whichever is fastest is read twice beside the original, with every output row.
            if took and not self._has_time(took + 2 * N_TOKENS * found.token_s):
                found.note(recipe, n_bytes, "not made: no time left")
                continue
            yield self._step(f"{role}: requantising to {recipe.name}")
            began = self._elapsed()
            part = found.part(role, recipe)
            try:
                requantise(model, part, recipe, n_threads=found.n_threads)
                speeds = self._speed_of(role, base, found, part)
            except (ModelError, OutOfMemoryError) as error:
                found.note(recipe, n_bytes, f"not made: {error}")
                part.unlink(missing_ok=True)
                continue
            if speeds.both > MARGIN:
                faster.append((recipe, part, speeds))
            else:
                found.note(recipe, part.stat().st_size, "not faster", speed=speeds.both)
                part.unlink()
            took = self._elapsed() - began
        faster.sort(key=lambda f: f[2].both, reverse=True)
        yield from self._check(role, model, found, faster)

    def _speed_of(self, role: Role, base: Subject, found: Found, path: Path) -> Speeds:
        with ExitStack() as stack:
            model = found.load(stack, path)
            other = self._subject(stack, model, **found.chosen_settings)
            return self._compare(role, partial(_sample, role, base), partial(_sample, role, other))

    def _check(
        self, role: Role, model: Model, found: Found, faster: list[tuple[Recipe, Path, Speeds]]
    ) -> Iterator[Step]:
        """Take the fastest that says what the original says."""
        original: Reading | None = None
        for recipe, path, speeds in faster:
            n_bytes = path.stat().st_size
            if found.part_path is not None:
                found.note(recipe, n_bytes, "a faster one was good enough", speed=speeds.both)
                path.unlink()
                continue
            yield self._step(f"{role}: comparing {recipe.name} with the original")
            if original is None:
                original = self._read(found, model)
            with ExitStack() as stack:
                quality = compare(original, self._read(found, found.load(stack, path)))
            failure = quality.failure(role)
            found.note(recipe, n_bytes, failure or "used", speed=speeds.both, quality=quality)
            if failure:
                path.unlink()
            else:
                found.choose(role, recipe, path)
                found.speeds = found.speeds * speeds

    def _read(self, found: Found, model: Model) -> Reading:
        context = Context(model, n_ctx=N_TOKENS, cancel=self._cancel, **found.chosen_settings)
        try:
            return read_reference(model, context)
        finally:
            context.close()

    # what it costs

    def _curves(self, stack: ExitStack, found: Mapping[Role, Found]) -> Iterator[Step]:
        yield self._step("cost curves")
        probes: dict[str, Callable[[], float]] = {}
        expected: dict[str, float] = {}
        for role, choice in found.items():
            subject = choice.subject
            if choice.path != choice.request.path:  # another file than the one that was tried
                model = choice.load(stack, choice.path)
                subject = self._subject(stack, model, **choice.chosen_settings)
                choice.token_s = _batch_s(role, subject)
            expected |= choice.expected(role)
            for n, rows in decodes(role):
                probes[decode_name(role, n, rows)] = partial(subject.decode, n, rows=rows)
        # Small ones first: they matter most, and are repeated most.
        order = sorted(probes, key=_size)
        turns = in_turns(
            {name: probes[name] for name in order},
            {name: 3 if _size(name) <= WINDOW else 0 for name in order},
            most=7,
            budget_s=self._budget_s - self._elapsed(),
            expected_s=expected,
            clock=self._clock,
        )
        seconds = yield from self._reported(turns)
        for role, choice in found.items():
            self.records[role] = choice.record(role, seconds)

    def _reported(
        self, turns: Generator[str, None, dict[str, float]]
    ) -> Generator[Step, None, dict[str, float]]:
        try:
            while True:
                yield self._step(f"cost curves: {next(turns)}")
        except StopIteration as end:
            found: dict[str, float] = end.value
            return found


def _size(name: str) -> int:
    return int(name.split()[1])


def _batch_s(role: Role, subject: Subject) -> float:
    return subject.decode(WINDOW, rows=role == "target") / WINDOW


def _sample(role: Role, subject: Subject) -> tuple[float, float]:
    decode = subject.decode(1, rows=True)
    if role == "draft":
        return decode, 0.0
    return decode, subject.decode(WINDOW, rows=True) / WINDOW
