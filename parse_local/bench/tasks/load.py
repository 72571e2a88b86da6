"""Problems of a task by its name."""

from __future__ import annotations

from pathlib import Path

from parse_local.bench.tasks import generated, humaneval, jsonl
from parse_local.bench.tasks.problem import Problem
from parse_local.errors import TaskError

TASKS = ("humaneval", "gsm-symbolic", "reasoning-gym", "generated")
"""Names of the built-in tasks."""
N_GENERATED = 100
"""Problems of a generator where nobody says how many."""


def load_task(name: str, *, start: int = 0, n: int | None = None, seed: int = 0) -> list[Problem]:
    """Problems `start` to `start + n` of a task.

    Problem i is the same whatever `start` and `n` are, on every machine.

    Args:
        name: "humaneval" (164 problems), "reasoning-gym", "gsm-symbolic", "generated" (those
            two in turn), or the path of a JSONL file (see `jsonl.load`).
        start: first problem, from 0.
        n: how many; None for all that there are, of a generator `N_GENERATED`.
        seed: of the generators; another seed gives other problems.

    Raises:
        TaskError: no such task or file, a bad line in it, no problem in that range,
            or a package that is not installed.
    """
    if start < 0 or (n is not None and n < 1):
        raise TaskError(
            f"There are no {n} problems from {start} on; count from 0, and ask for one or more."
        )
    problems: list[Problem]
    if name == "humaneval":
        problems = list(humaneval.problems(start, n))
    elif name in TASKS:
        problems = generated.problems(name, range(start, start + (n or N_GENERATED)), seed)
    elif Path(name).is_file():
        problems = [*jsonl.load(Path(name))]
        problems = problems[start : None if n is None else start + n]
    else:
        raise TaskError(f"There is no task or JSONL file {name!r}; tasks are {', '.join(TASKS)}.")
    if not problems:
        raise TaskError(f"{name} has no problem number {start}; use a smaller --start.")
    return problems
