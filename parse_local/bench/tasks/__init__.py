"""Tasks whose answers can be checked: problems, and how to get them by name."""

from __future__ import annotations

from parse_local.bench.tasks.load import TASKS, load_task
from parse_local.bench.tasks.problem import Problem

__all__ = ["TASKS", "Problem", "load_task"]
