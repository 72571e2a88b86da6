"""Whether a grammar takes a text, asked of llama.cpp."""

from __future__ import annotations

from parse_local.llama.grammar import Grammar
from parse_local.llama.model import Model


def takes(model: Model, grammar: str, text: str) -> bool:
    """Whether it takes all of the text, and lets it end there."""
    place = Grammar(model, grammar)
    tokens = model.tokenize(text)
    found = place.n_allowed(tokens) == len(tokens) and place.may_end
    place.close()
    return found
