"""What a model thought of the tokens that were written, whatever was sampled from it."""

from __future__ import annotations

import numpy as np

from parse_local.events import TokenLogprob
from parse_local.llama import scores
from parse_local.llama.model import Model
from parse_local.llama.rows import Rows


class LogprobReader:
    """Reads log-probabilities of tokens and of their likeliest alternatives.

    At temperature 1 and before every sampler, as OpenAI's API defines them.

    Args:
        model: whose rows are read.
        n_top: how many alternatives.
    """

    def __init__(self, model: Model, n_top: int) -> None:
        self._model = model
        self._n_top = min(n_top, model.n_vocab)

    def read(self, row: Rows, token: int) -> TokenLogprob:
        """What one output row says of the token that was written there."""
        top: list[int] = []
        if self._n_top:
            logits = row.array[0]
            best = np.argpartition(logits, -self._n_top)[-self._n_top :]
            top = best[np.lexsort((best, -logits[best]))].tolist()
        found = scores.label_logprobs(row, [token, *top], n_threads=1)[0].tolist()
        piece = self._model.piece
        alternatives = zip(top, found[1:], strict=True)
        return TokenLogprob(
            text=piece(token),
            logprob=found[0],
            top=tuple((piece(t), p) for t, p in alternatives if p > -np.inf),
        )

    def unread(self, token: int) -> TokenLogprob:
        """A token whose row nobody has looked at."""
        return TokenLogprob(self._model.piece(token))
