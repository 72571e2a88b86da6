"""Checks that options have in common: one sentence says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from parse_local.errors import UsageError


def check_choices(options: Any, choices: Mapping[str, Sequence[str | None]]) -> None:
    """Raise a UsageError unless each of these attributes is one of its choices."""
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            listed = ", ".join(str(a) for a in allowed if a is not None)
            raise UsageError(f"{name}={getattr(options, name)!r} is not one of: {listed}.")


def check_ranges(options: Any, ranges: Mapping[str, tuple[float, float | None]]) -> None:
    """Raise a UsageError unless each of these attributes is None, or finite and within its range.

    Args:
        options: what has the attributes.
        ranges: lowest and highest value; None for no limit above.
    """
    for name, (low, high) in ranges.items():
        value = getattr(options, name)
        if value is None or (math.isfinite(value) and low <= value <= (high or math.inf)):
            continue
        limit = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise UsageError(f"{name} must be {limit}, not {value}.")
