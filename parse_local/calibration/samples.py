"""Collected answers as samples: evidence, who was right, and which split each belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from parse_local.calibration.collect import read_collected
from parse_local.calibration.features import N_EARLIER, evidence_terms
from parse_local.errors import UsageError

Split = Literal["fit", "calibrate", "held-out"]
SHARES: Mapping[Split, float] = {"fit": 0.25, "calibrate": 0.55, "held-out": 0.2}
"""A handful of weights needs few problems, a guarantee many."""


@dataclass(frozen=True)
class Sample:
    """One problem, answered by both models.

    Args:
        task, problem: their names; together they identify it.
        target_right, draft_right: whether each answer is correct.
        finished: the draft ended by itself; only then can it be accepted whole.
        terms: evidence about the whole draft, by the verdict's wording.
    """

    task: str
    problem: str
    target_right: bool
    draft_right: bool
    finished: bool
    terms: Mapping[str, Mapping[str, float]] = field(hash=False)

    @property
    def loss(self) -> int:
        """What accepting the draft costs: 1 a right answer lost, -1 one won, 0 neither."""
        return int(self.target_right) - int(self.draft_right)

    def draw(self, seed: int) -> float:
        """A number in [0, 1) that depends on seed and name alone."""
        name = f"{seed}\n{self.task}\n{self.problem}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") / 2**64

    def split(self, seed: int) -> Split:
        """Where it belongs; more problems, or other ones, do not move it."""
        left = self.draw(seed)
        for name, share in SHARES.items():
            if left < share:
                return name
            left -= share
        return "held-out"


def read_samples(paths: Iterable[Path], *, seed: int = 0, pair: str | None = None) -> list[Sample]:
    """Samples of several files of collected answers, in an order that depends on `seed`.

    Args:
        paths: of files that `calibration.collect` wrote.
        seed: of the order.
        pair: whose answers they must be; None for any.

    Raises:
        UsageError: a file cannot be read, a line is malformed or another pair's, or a
            problem comes twice.
    """
    found: dict[tuple[str, str], Sample] = {}
    n_earlier = 0
    for path in paths:
        if not path.is_file():
            raise UsageError(f"There are no collected answers in {path}; check the path.")
        for name, record in read_collected(path).items():
            try:
                sample = sample_of(record)
                owner = str(record["pair"])
                n_earlier = max(n_earlier, sum(not v["complete"] for v in record["verdicts"]))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"{path}: {name} is not a collected answer ({error!r}); "
                    "give a file that parse-local calibrate wrote."
                ) from error
            if pair not in (None, owner):
                raise UsageError(
                    f"{path} holds answers of {owner}, not of {pair}; name that pair's files with "
                    "--draft and --target, or collect anew."
                )
            key = (sample.task, sample.problem)
            if key in found:  # one problem in two splits would make the check a sham
                raise UsageError(f"{path}: the problem {name} is in another file too.")
            found[key] = sample
    samples = sorted(found.values(), key=lambda s: s.draw(seed))
    return samples if n_earlier >= N_EARLIER else [_without_change(s) for s in samples]


def _without_change(sample: Sample) -> Sample:
    # Fewer earlier verdicts were collected than the engine would ask for: another quantity.
    terms = {
        wording: {name: v for name, v in found.items() if name != "log_odds_change"}
        for wording, found in sample.terms.items()
    }
    return replace(sample, terms=terms)


def sample_of(record: Mapping[str, Any]) -> Sample:
    """One line of collected answers (`calibration.collect` says what is in it).

    Raises:
        KeyError, TypeError, ValueError: it is malformed.
    """
    draft, target = record["draft"], record["target"]
    n_tokens = len(record["logprobs"])
    finished = draft["finish_reason"] == "stop" and n_tokens > 0
    terms: dict[str, dict[str, float]] = {}
    verdicts: dict[str, list[Mapping[str, Any]]] = {}
    for verdict in record["verdicts"]:
        verdicts.setdefault(str(verdict["wording"]), []).append(verdict)
    for wording, given in verdicts.items():
        whole = [v for v in given if v["complete"]]
        before = [v for v in given if not v["complete"] and int(v["n_tokens"]) < n_tokens]
        if whole and n_tokens:
            terms[wording] = evidence_terms(
                n_tokens=n_tokens,
                n_exact=int(record["n_exact"]),
                p_correct=float(whole[-1]["p_correct"]),
                label_mass=float(whole[-1]["label_mass"]),
                earlier=[float(v["p_correct"]) for v in before],
                logprobs=np.asarray(record["logprobs"], np.float64),
                ranks=np.asarray(record["ranks"]),
            )
    return Sample(
        task=str(record["task"]),
        problem=str(record["problem"]),
        target_right=bool(target["correct"]),
        draft_right=bool(draft["correct"]),
        finished=finished and bool(terms),
        terms=terms,
    )


def losses(samples: Sequence[Sample]) -> npt.NDArray[np.float64]:
    """What accepting each draft costs."""
    return np.array([s.loss for s in samples], np.float64)
