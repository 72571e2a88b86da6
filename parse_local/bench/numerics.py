"""How much the shape of a batch changes: forks against plain passes, `exact` against the target.

Quantised kernels differ between one row and many, so nothing can be equal to the last
bit. What can be asked is that our results lie within the spread that plain
passes have among themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parse_local.boundaries import candidate_boundaries, spread, token_offsets
from parse_local.chat_template import Message
from parse_local.engine import Engine
from parse_local.judge import make_judge, verdicts
from parse_local.llama.context import Context
from parse_local.llama.conversations import n_common
from parse_local.policy import Options

BATCH_SIZES = (512, 32)
"""Tokens decoded at once by the plain passes; the first is the reference."""


@dataclass(frozen=True)
class VerdictComparison:
    """P(Correct) at the same cuts, computed in several ways.

    Args:
        forks: by forks in one batch, shape (n_cuts,).
        plain: by plain passes, shape (n_batch_sizes, n_cuts).
    """

    forks: npt.NDArray[np.float64]
    plain: npt.NDArray[np.float64]

    @property
    def difference(self) -> float:
        """Largest difference between the forks and the reference pass."""
        return float(np.abs(self.forks - self.plain[0]).max())

    @property
    def plain_spread(self) -> float:
        """Largest difference among the plain passes at one cut."""
        return float((self.plain.max(axis=0) - self.plain.min(axis=0)).max())


def compare_verdicts(
    engine: Engine,
    messages: Sequence[Message],
    draft: str,
    *,
    n_cuts: int,
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> VerdictComparison:
    """Judge prefixes of a draft by forks and by plain passes.

    Args:
        engine: its target judges.
        messages: the conversation.
        draft: the answer.
        n_cuts: prefixes to judge, evenly spread, the whole draft among them.
        batch_sizes: of the plain passes.
    """
    writer = engine.target
    judge = make_judge(writer.model, writer.template, messages, engine.profile.wording)
    prompt = writer.prompt(messages)
    tokens = writer.model.tokenize(draft)
    pieces = [writer.model.piece(t) for t in tokens]
    cuts = spread(candidate_boundaries(draft, token_offsets(pieces), delta=32), n_cuts)
    at = [len(prompt) + c for c in cuts]
    question = judge.prefix
    sequence = prompt + tokens
    writer.context.prefill([*sequence, sequence[-1]])
    forks = verdicts(writer.context.judge(at, question.suffix, question.labels))[0]
    plain = [
        verdicts(
            writer.context.judge_sequentially(
                sequence, at, question.suffix, question.labels, n_batch=n
            )
        )[0]
        for n in batch_sizes
    ]
    return VerdictComparison(forks, np.array(plain))


@dataclass(frozen=True)
class TextComparison:
    """An `exact` answer beside the target's own.

    Args:
        n_tokens: length of the target's own answer.
        n_same: tokens until the first difference; `n_tokens` where there is none.
        margin: log-probability (nats) that the two tokens there differ by, 0 for none.
        spread: how much that margin changes between plain passes of several batch sizes.
    """

    n_tokens: int
    n_same: int
    margin: float = 0.0
    spread: float = 0.0

    @property
    def identical(self) -> bool:
        """Whether the texts are the same."""
        return self.n_same == self.n_tokens


def compare_exact(
    engine: Engine,
    messages: Sequence[Message],
    *,
    max_tokens: int,
    window: int | None = None,
    batch_sizes: Sequence[int] = (1, *BATCH_SIZES),
) -> TextComparison:
    """Answer with `exact` and with the target alone, greedily, and look at the first difference.

    Args:
        engine: a loaded pair.
        messages: the conversation.
        max_tokens: of both answers.
        window: of the drafts, None for the default.
        batch_sizes: of the plain passes that measure the margin.
    """
    engine.forget()
    alone = engine.generate(messages, Options(strategy="target", max_tokens=max_tokens)).text
    engine.forget()
    options = Options(strategy="parse", accept="exact", max_tokens=max_tokens, window=window)
    exact = engine.generate(messages, options).text
    model = engine.target.model
    a, b = model.tokenize(alone), model.tokenize(exact)
    n_same = n_common(a, b)
    if n_same == len(a) == len(b):
        return TextComparison(len(a), n_same)
    end = model.end_of_turn_token
    pair = [tokens[n_same] if n_same < len(tokens) else end for tokens in (a, b)]
    sequence = engine.target.prompt(messages) + a[:n_same]
    margins = [_margin(engine.target.context, sequence, pair, n) for n in batch_sizes]
    return TextComparison(
        len(a), n_same, margin=min(abs(m) for m in margins), spread=max(margins) - min(margins)
    )


def _margin(context: Context, sequence: list[int], pair: Sequence[int], n_batch: int) -> float:
    context.clear()
    for start in range(0, len(sequence), n_batch):
        rows = context.last_row(sequence[start : start + n_batch])
    found = context.label_logprobs(rows, pair)[0]
    return float(found[0] - found[1])
