"""Whether a requantised model still says what its original says, on a fixed text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import numpy.typing as npt

from parse_local.llama import scores
from parse_local.llama.context import Context
from parse_local.llama.model import Model

Role = Literal["draft", "target"]

N_TOKENS = 1024
"""Most tokens of the text that are compared."""


@dataclass(frozen=True)
class Limits:
    """What a requantised file must keep.

    Args:
        agreement: least share of positions at which both prefer the same token.
        perplexity: most that the perplexity may be, as a multiple of the original's.
    """

    agreement: float
    perplexity: float


LIMITS: dict[Role, Limits] = {
    # A draft is checked by the target anyway; what it may lose is acceptance. A target's
    # text is the answer.
    "draft": Limits(agreement=0.80, perplexity=1.15),
    "target": Limits(agreement=0.85, perplexity=1.05),
}


@dataclass(frozen=True)
class Reading:
    """What a model makes of the text: its own choice and the log-probability of each token."""

    argmax: npt.NDArray[np.int32]
    logprob: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """A requantised model beside its original.

    Args:
        agreement: share of positions at which both prefer the same token.
        perplexity: of the text, as a multiple of the original's.
    """

    agreement: float
    perplexity: float

    def failure(self, role: Role) -> str:
        """Why it may not play this role, "" if it may."""
        limits = LIMITS[role]
        # Written so that NaN fails.
        if not self.agreement >= limits.agreement:
            return f"agrees in {self.agreement:.1%}, less than {limits.agreement:.0%}"
        if not self.perplexity <= limits.perplexity:
            return f"perplexity x{self.perplexity:.3f}, above x{limits.perplexity:.2f}"
        return ""


@cache
def reference_text() -> str:
    """The text that models are compared on: prose, code, arithmetic and a letter of our own."""
    return (files("parse_local.tune") / "reference.txt").read_text(encoding="utf-8")


def reference_tokens(model: Model) -> list[int]:
    """That text in a model's tokens, at most `N_TOKENS`, with what every prompt begins with."""
    bos = model.bos_token
    start = [] if bos is None else [bos]
    return (start + model.tokenize(reference_text()))[:N_TOKENS]


def read_reference(model: Model, context: Context) -> Reading:
    """Let a model read the text; empties its cache before and after.

    Raises:
        DecodeError, Cancelled: as `Context.decode`.
    """
    tokens = reference_tokens(model)
    context.clear()
    argmax, logprob = [], []
    for start, rows in context.decode(tokens, n_rows=len(tokens)):
        following = tokens[start + 1 : start + 1 + len(rows)]
        following += [scores.NO_TOKEN] * (len(rows) - len(following))  # behind the last token
        found = scores.token_scores(rows, following, n_threads=context.n_threads)
        argmax.append(found.argmax)
        logprob.append(found.logprob)
    context.clear()
    return Reading(np.concatenate(argmax), np.concatenate(logprob)[:-1])


def compare(original: Reading, other: Reading) -> Quality:
    """How far another model's reading of the text is from the original's."""
    valid = other.argmax != scores.NO_TOKEN
    agreement = float(np.mean(valid & (original.argmax == other.argmax)))
    worse = float(original.logprob.mean() - other.logprob.mean())  # nats a token
    return Quality(agreement, math.exp(worse) if worse < 700 else math.inf)
