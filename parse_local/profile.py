"""The pair's profile: how its target is asked, and the thresholds that follow from that."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from math import isfinite, isinf
from pathlib import Path
from typing import Any

from parse_local.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class JudgeWording:
    """The verdict question; a finished answer and an unfinished one get different ones.

    An unfinished answer cannot be "correct", so the same question for both
    pushes early prefixes below any useful threshold.
    """

    question_full: str = "Is the answer above correct? Reply with one word: Correct or Incorrect."
    question_prefix: str = (
        "The answer above is unfinished. Is everything in it correct so far? "
        "Reply with one word: Correct or Incorrect."
    )
    label_correct: str = "Correct"
    label_incorrect: str = "Incorrect"


@dataclass(frozen=True)
class Fusion:
    """Standardised sum of P(Correct) and mean log-probability: two kinds of evidence from one pass.

    score = (p - p_mean) / p_std + (logprob - logprob_mean) / logprob_std
    """

    p_mean: float
    p_std: float
    logprob_mean: float
    logprob_std: float
    threshold_full: float
    threshold_prefix: float

    def score(self, p_correct: float, mean_logprob: float) -> float:
        """Evidence in standard deviations, larger is more surely correct."""
        return (p_correct - self.p_mean) / self.p_std + (
            mean_logprob - self.logprob_mean
        ) / self.logprob_std


@dataclass(frozen=True)
class Profile:
    """What is known about a pair.

    Args:
        name: the pair, or "default".
        calibrated: the thresholds carry a guarantee; only then is a lossy mode the default.
        tau_full, tau_prefix: thresholds on P(Correct).
        wording: the verdict question.
        fusion: weights of the "fused" mode, None where nobody fitted them.
    """

    name: str = "default"
    calibrated: bool = False
    tau_full: float = 0.9
    tau_prefix: float = 0.9
    wording: JudgeWording = field(default_factory=JudgeWording)
    fusion: Fusion | None = None


def load_profile(path: Path) -> Profile:
    """Read a profile from TOML.

    Args:
        path: a file with the fields of `Profile`, tables `[wording]` and `[fusion]`.

    Raises:
        UsageError: the file cannot be read, or holds an unknown or malformed field.
    """
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        data.pop("fitted", None)  # provenance, for readers
        wording = JudgeWording(**_texts(data.pop("wording", {})))
        fusion = Fusion(**_numbers(data.pop("fusion"))) if "fusion" in data else None
        _numbers({name: data[name] for name in ("tau_full", "tau_prefix") if name in data})
        return Profile(wording=wording, fusion=fusion, **data)
    except OSError as error:
        raise UsageError(f"Cannot use the profile {path}: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError) as error:
        raise UsageError(f"Cannot use the profile {path}: {error}.") from error


def _texts(table: Any) -> dict[str, str]:
    for name, value in _table(table).items():
        if not isinstance(value, str) or not value:
            raise TypeError(f"{name} must be a text, not {value!r}")
    return dict(table)


def _numbers(table: Any) -> dict[str, float]:
    for name, value in _table(table).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # A threshold may be infinite: nothing is accepted on that evidence.
        if not number or not (isfinite(value) or (isinf(value) and name.startswith("threshold"))):
            raise TypeError(f"{name} must be a number, not {value!r}")
        if name.endswith("_std") and value <= 0:
            raise TypeError(f"{name} must be above 0, not {value!r}")
    return dict(table)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a table was expected, not {value!r}")
    return value
