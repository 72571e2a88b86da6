"""Where a draft may be cut: pure functions over its text and token offsets."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

_WIDE_SENTENCE_END = "。！？"  # noqa: RUF001 - East Asian; need no space behind them
_SENTENCE_END = ".!?…" + _WIDE_SENTENCE_END
_CLOSERS = "\"'”’»)]}*_`」』）"  # noqa: RUF001


def token_offsets(
    pieces: Sequence[bytes], in_marker: Sequence[bool] | None = None
) -> list[int | None]:
    """Character offset behind each token.

    Args:
        pieces: bytes of each token that are shown.
        in_marker: whether each ends within a marker; None where there are none.

    Returns:
        For each token the number of characters up to its end, or None where
        it ends inside a UTF-8 character or a marker. Bytes that are no UTF-8 count as
        `bytes.decode(errors="replace")` counts them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets: list[int | None] = []
    n_chars = 0
    for i, piece in enumerate(pieces):
        n_chars += len(decoder.decode(piece))
        unfinished, _ = decoder.getstate()
        hidden = in_marker is not None and in_marker[i]
        offsets.append(None if unfinished or hidden else n_chars)
    return offsets


def _ends_unit(text: str, end: int) -> int | None:
    """If text[:end] closes a line or a sentence, the length of what it closes, else None."""
    body = end
    newline = False
    while body > 0 and text[body - 1].isspace():
        newline = newline or text[body - 1] == "\n"
        body -= 1
    if body == 0:
        return None
    if newline:
        return body
    last = body
    while last > 1 and text[last - 1] in _CLOSERS:
        last -= 1
    if text[last - 1] not in _SENTENCE_END:
        return None
    if text[text.rfind("\n", 0, body) + 1 : body].strip(" .").isdigit():
        return None  # the number of a list item, whose text is yet to come
    spaced = end > body or end == len(text) or text[end].isspace()
    return body if spaced or text[last - 1] in _WIDE_SENTENCE_END else None


def candidate_boundaries(text: str, offsets: Sequence[int | None], *, delta: int) -> list[int]:
    """Every place where the draft may be cut.

    Ends of paragraphs, list items, lines of code and sentences; and every
    `delta` tokens within a stretch that offers none of these.

    Args:
        text: the draft.
        offsets: character offset behind each token (see `token_offsets`).
        delta: tokens, at least 1.

    Returns:
        Prefix lengths in tokens, ascending; the whole draft is the last
        (if it ends inside a character, the last whole one).
    """
    cuts: list[int] = []
    last_cut = 0
    last_unit = 0
    last_whole = 0  # latest token that ends on a character's border
    for n, offset in enumerate(offsets, start=1):
        if offset is None:
            continue
        unit = _ends_unit(text, offset)
        if unit is not None and unit > last_unit:
            last_unit = unit
            cuts.append(n)
            last_cut = n
        elif n - last_cut >= delta:
            cuts.append(n)
            last_cut = n
        last_whole = n
    if last_whole and (not cuts or cuts[-1] != last_whole):
        cuts.append(last_whole)
    return cuts


def spread(cuts: Sequence[int], n: int) -> list[int]:
    """At most `n` of the boundaries, evenly spread; the last one always stays."""
    if len(cuts) <= n:
        return list(cuts)
    return [cuts[round((i + 1) * len(cuts) / n) - 1] for i in range(n)]
