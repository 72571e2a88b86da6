"""Runs several ways of answering side by side on the same problems.

Every problem is answered by all of them before the next one, in an order that rotates,
so that a machine that slows down for a while slows all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parse_local.bench.tasks import Problem
from parse_local.engine import Engine
from parse_local.events import Result
from parse_local.policy import Options


@dataclass(frozen=True)
class Run:
    """One answer to one problem."""

    problem: str
    system: str
    correct: bool
    result: Result


def run(engine: Engine, tasks: Sequence[Problem], systems: dict[str, Options]) -> Iterator[Run]:
    """Answer every problem in every way.

    Args:
        engine: a loaded pair.
        tasks: the problems.
        systems: options by name.

    Yields:
        One `Run` an answer, as it is finished. Both caches are emptied before
        each, so that nobody profits from the prompt of the one before.
    """
    names = list(systems)
    for i, task in enumerate(tasks):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            engine.forget()
            result = engine.generate(task.messages, systems[name])
            yield Run(task.name, name, task.check(result.text), result)
