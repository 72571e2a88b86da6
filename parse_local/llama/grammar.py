"""Where an answer is in its grammar: llama.cpp's grammar sampler, kept from aborting.

llama.cpp ends the whole process where a token is accepted that the grammar does not allow. So
every token is asked about before it is accepted, and what may follow is a question of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.errors import GrammarError
from parse_local.gbnf import ROOT, check_grammar
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.model import Model

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data"""

FEW = 1000
"""Tokens that are looked up one by one; asking about a whole vocabulary takes a while, once."""


def token_array(candidates: npt.NDArray[Any]) -> Any:
    """A `llama_token_data_array` over candidates of type `TOKEN_DATA`, which it does not copy."""
    array = lib.llama_token_data_array()
    array.data = ctypes.cast(candidates.ctypes.data, type(array.data))
    array.size = len(candidates)
    array.selected = -1
    array.sorted = False
    return array


class Grammar:
    """A grammar, and how far one sequence of tokens has come in it.

    Args:
        model: whose tokens they are.
        text: GBNF.
        marks: control tokens whose names are part of the text, as those that begin a call.

    Raises:
        GrammarError: llama.cpp cannot work with it.

    Source: llama_sampler_init_grammar.
    """

    def __init__(self, model: Model, text: str, marks: Collection[int] = ()) -> None:
        self._sampler: Any = None
        check_grammar(text)
        self._model = model
        self._marks = np.array(sorted(marks), np.int32)
        self._tokens: list[int] = []
        with library.log.capture() as log:
            self._sampler = lib.llama_sampler_init_grammar(
                model.vocab, text.encode(), ROOT.encode()
            )
            if not self._sampler:
                reason = log[-1] if log else "it gives no reason"
                raise GrammarError(f"llama.cpp refuses the grammar ({reason}); simplify it.")

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens a text may begin with; `allows` then speaks of what follows.

        Going on from what was asked for before is cheap.
        """
        n = len(self._tokens)
        if self._tokens != tokens[:n]:
            lib.llama_sampler_reset(self._sampler)
            self._tokens.clear()
            n = 0
        for token in tokens[n:]:
            if self._model.is_eog(token) or not self.allows(np.array([token], np.int32))[0]:
                break
            lib.llama_sampler_accept(self._sampler, token)
            self._tokens.append(token)
        return len(self._tokens)

    def allows(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of some tokens may follow, shape as `ids`.

        Never one that leaves no trace in the text, as control tokens do but for `marks`: the
        grammar would take the name that they are written with for text.
        """
        candidates = np.zeros(len(ids), TOKEN_DATA)
        candidates["id"] = ids
        lib.llama_sampler_apply(self._sampler, ctypes.byref(token_array(candidates)))
        allowed: npt.NDArray[np.bool_] = candidates["logit"] == 0
        marks = allowed & np.isin(ids, self._marks)
        if len(ids) > FEW:
            return allowed & self._model.is_shown[ids] | marks
        for i in np.flatnonzero(allowed & ~marks):
            allowed[i] = self._model.shows(int(ids[i]))
        return allowed

    @property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        ends = np.flatnonzero(self._model.ends).astype(np.int32)
        return bool(self.allows(ends).any())

    def close(self) -> None:
        """Free it."""
        if self._sampler:
            lib.llama_sampler_free(self._sampler)
            self._sampler = None

    def __del__(self) -> None:
        self.close()
