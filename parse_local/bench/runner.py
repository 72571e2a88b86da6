"""Runs several ways of answering side by side on the same problems.

Every problem is answered by all of them before the next one, in an order that rotates,
so that a machine that slows down for a while slows all alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from parse_local.bench.meters import Energy, PeakMemory
from parse_local.bench.record import Key, Record
from parse_local.bench.systems import System
from parse_local.bench.tasks import Problem

WARM_UP_TOKENS = 8


class Stop:
    """A request to end the run, as by Ctrl-C; what is being answered is dropped."""

    def __init__(self) -> None:
        self.pressed = False
        self._system: System | None = None

    def press(self) -> None:
        """End soon; from any thread or signal handler."""
        self.pressed = True
        if self._system is not None:
            self._system.cancel()

    def watch(self, system: System | None) -> None:
        """This one is answering now."""
        self._system = system


def keys(problems: Sequence[Problem], names: Sequence[str], repeat: int = 1) -> Iterator[Key]:
    """Every answer of a run in its order, `names` being those of the systems."""
    for r in range(repeat):
        for i, problem in enumerate(problems):
            turn = (i + r) % len(names)
            for name in [*names[turn:], *names[:turn]]:
                yield Key(r, problem.name, name)


def warm_up(systems: Sequence[System], problem: Problem, stop: Stop) -> None:
    """A short answer of each before the clock: weights come from the disk, threads start."""
    for system in systems:
        if not stop.pressed:
            stop.watch(system)
            system.answer(problem.messages, WARM_UP_TOKENS)
    stop.watch(None)


def run(
    systems: Sequence[System],
    problems: Sequence[Problem],
    *,
    repeat: int = 1,
    max_tokens: int | None = None,
    done: Collection[Key] = (),
    stop: Stop | None = None,
) -> Iterator[Record]:
    """Answer every problem in every way.

    Args:
        systems: with different names; each empties its caches before it answers.
        problems: with different names.
        repeat: times that everything is answered.
        max_tokens: of each answer; None for what the problem says.
        done: answers that are there already.
        stop: ends the run early.

    Yields:
        One record an answer, as it is finished and checked.
    """
    stop = stop or Stop()
    by_name = {s.name: s for s in systems}
    problem_of = {p.name: p for p in problems}
    memory, energy = PeakMemory(), Energy()
    for key in keys(problems, list(by_name), repeat):
        if key in done:
            continue
        if stop.pressed:
            return
        system, problem = by_name[key.strategy], problem_of[key.problem]
        stop.watch(system)
        memory.start(system.pid)
        energy.start()
        answered = system.answer(problem.messages, max_tokens or problem.max_tokens)
        usage = {"peak_bytes": memory.stop(), "joules": energy.stop()}
        stop.watch(None)
        if stop.pressed:
            return
        correct = problem.check(answered.result.text)
        yield Record.of(key, answered, correct=correct, **usage)
