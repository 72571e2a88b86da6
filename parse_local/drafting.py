"""The draft: one window of the answer, written by the draft model, in the target's tokens."""

from __future__ import annotations

import codecs
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property

from parse_local.answer import Answer, TextStream
from parse_local.boundaries import token_offsets
from parse_local.distribution import Distribution
from parse_local.events import Drafted
from parse_local.llama.model import Model
from parse_local.llama.sampler import Sampler
from parse_local.writer import Writer


@dataclass(frozen=True)
class Draft:
    """A draft in the target's vocabulary.

    Args:
        tokens: target tokens.
        pieces: their bytes.
        complete: the draft model (or a stop string) ended the answer here.
        proposals: distributions that the tokens, and the end token, were drawn from;
            None where they were not drawn or the vocabularies differ.
        end_token: the token that ended the draft, None where something else did.
    """

    tokens: list[int]
    pieces: list[bytes] = field(repr=False)
    complete: bool
    proposals: list[Distribution] | None = field(default=None, repr=False)
    end_token: int | None = None

    @cached_property
    def text(self) -> str:
        """The draft as text; a character cut in two ends it as U+FFFD."""
        return b"".join(self.pieces).decode("utf-8", "replace")

    @cached_property
    def offsets(self) -> list[int | None]:
        """Character offset behind each token (see `boundaries.token_offsets`)."""
        return token_offsets(self.pieces)

    def head(self, n: int) -> str:
        """Text of the first `n` tokens without an unfinished character: a prefix of `text`."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(self.pieces[:n]))


class Drafter:
    """Writes drafts for one answer.

    Args:
        writer: the draft model.
        target: whose vocabulary the drafts are handed over in.
        shared_vocabulary: token ids mean the same in both models.
        sampler: of the draft model.
        prompt: the conversation in the draft model's tokens.
    """

    def __init__(
        self,
        writer: Writer,
        target: Model,
        *,
        shared_vocabulary: bool,
        sampler: Sampler,
        prompt: list[int],
    ) -> None:
        self.context = writer.context
        self.prompt = prompt
        self._model = writer.model
        self._target = target
        self._shared = shared_vocabulary
        self._sampler = sampler

    def write(self, answer: Answer, *, limit: int) -> Generator[Drafted, None, Draft | None]:
        """Draft the answer's next tokens.

        The cache is first rolled back to what the answer so far shares with it.

        Args:
            answer: what is final already.
            limit: most tokens to draft.

        Returns:
            The draft, or None where there is no room for one.
        """
        sequence = self.prompt + self._own_tokens(answer)  # grows with the draft
        limit = min(limit, self.context.n_ctx - len(sequence))
        if limit <= 0:
            return None
        with answer.timed("draft_s" if answer.n_drafted else "prompt_s"):
            self.context.prefill(sequence)
        tokens: list[int] = []
        proposals: list[Distribution] = []
        shown = TextStream()
        stops = TextStream(answer.stops)
        stops.push(answer.data)
        complete = False
        end_token: int | None = None
        while len(tokens) < limit and not complete:
            with answer.timed("draft_s"):
                token = self._next(sequence, proposals)
            answer.n_drafted += 1
            complete = self._model.is_eog(token)
            if complete:
                end_token = token
            else:
                tokens.append(token)
                sequence.append(token)
                piece = self._model.piece(token)
                yield Drafted(shown.push(piece), len(tokens))
                stops.push(piece)
                complete = stops.stopped
        return self._hand_over(answer, tokens, proposals, complete, end_token)

    def _next(self, sequence: list[int], proposals: list[Distribution]) -> int:
        if self._sampler.greedy:  # nobody asks how likely it was
            return self._sampler.advance(self.context, sequence[-1], sequence)
        row = self.context.last_row(sequence[-1:])
        proposals.append(self._sampler.distribution(row, sequence))
        return proposals[-1].sample(self._sampler.rng)

    def _own_tokens(self, answer: Answer) -> list[int]:
        # Vocabularies that are shared may still differ in padding behind their common part.
        if self._shared and all(t < self._model.n_vocab for t in answer.tokens):
            return answer.tokens
        return self._model.tokenize(answer.data.decode("utf-8", "ignore"))

    def _hand_over(
        self,
        answer: Answer,
        tokens: list[int],
        proposals: list[Distribution],
        complete: bool,
        end_token: int | None,
    ) -> Draft:
        shared = self._shared and all(t < self._target.n_vocab for t in tokens)
        if not shared:
            text = self._model.detokenize(tokens).decode("utf-8", "ignore")
            tokens = self._target.tokenize(text)
        complete = complete and len(tokens) <= answer.n_left
        tokens = tokens[: answer.n_left]
        drawn = shared and not self._sampler.greedy
        return Draft(
            tokens=tokens,
            pieces=[self._target.piece(t) for t in tokens],
            complete=complete,
            proposals=proposals if drawn else None,
            end_token=end_token,
        )
