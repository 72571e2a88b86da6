"""Whose turn it is with Speculative Thinking: how long the target takes over, and how often."""

from __future__ import annotations

from parse_local.answer import Answer
from parse_local.drafting import Draft
from parse_local.events import Round
from parse_local.policy import Options, resolve
from parse_local.profile import Profile
from parse_local.turns import Takeovers

POLICY = resolve(Options(strategy="speculative-thinking", takeover=7), Profile())


class Writing:
    """An answer of one-letter tokens, and the takeovers that it leads to."""

    def __init__(self) -> None:
        self.answer = Answer(prompt=[], max_tokens=100_000)
        self.turns = Takeovers(POLICY)

    def add(self, text: str) -> None:
        pieces = [character.encode() for character in text]
        list(self.answer.append([0] * len(pieces), pieces, "target"))

    def draft(self, text: str, *, complete: bool = False) -> Round:
        """Draft a text letter by letter, as far as the stop lets it."""
        stop = self.turns.draft_stop(self.answer)
        n = next((n for n, c in enumerate(text, 1) if stop.push(c)), len(text))
        assert n == len(text), "the text should end where the draft does"
        self.drafted = Draft([0] * n, [c.encode() for c in text], complete)
        found = self.turns.settle(self.drafted)
        assert found is not None
        if found.n_accept:
            self.add(text)
        return found

    def takeovers(self, found: Round, *written: str) -> list[int]:
        """How many tokens the target is asked for each time; it writes the texts given."""
        lengths = []
        stretches = self.turns.target_writes(self.answer, self.drafted, found)
        for stretch, text in zip(stretches, [*written, None], strict=False):
            assert text is not None, "more is asked than was expected"
            n = stretch.n_tokens or 0
            while stretch.stop is not None:
                n += 1
                if stretch.stop.push("x"):
                    break
            lengths.append(n)
            self.add(text)
        return lengths


def test_a_segment_stays_and_an_opening_with_a_cue_goes() -> None:
    writing = Writing()
    found = writing.draft("Wait. One\n\n")  # the beginning of an answer is no opening
    assert (found.n_draft, found.n_accept, found.whole) == (11, 11, False)
    assert writing.takeovers(found) == []
    found = writing.draft("Hm, wait")
    assert (found.n_draft, found.n_accept) == (8, 0)
    assert writing.takeovers(found, "It is 4") == [7]
    assert writing.answer.text == "Wait. One\n\nIt is 4"
    # Now the draft is within a segment, where cues count for nothing.
    found = writing.draft(", yes, wait\n\n")
    assert found.n_accept == 13
    assert writing.takeovers(found) == []


def test_a_finished_draft_ends_the_answer() -> None:
    writing = Writing()
    assert writing.draft("One", complete=True).whole


def test_where_the_target_begins_to_check_it_goes_on() -> None:
    writing = Writing()
    writing.draft("One\n\n")
    assert writing.takeovers(writing.draft("Yes"), "Let me verify", "all right") == [7, 125]


def test_behind_many_doubts_the_target_recapitulates() -> None:
    writing = Writing()
    recaps = []
    writing.draft("One\n\n")
    for i in range(60):
        assert writing.takeovers(writing.draft("Wait"), "wait, no") == [7]
        found = writing.draft(".\n\n")
        asked = writing.takeovers(found, "So.\n\n")
        if asked:
            recaps.append((i + 1, asked))
    # Behind 15 doubts, then behind 20 and 25 more; 25 tokens longer each time.
    assert recaps == [(15, [125]), (35, [150]), (60, [175])]


def test_a_round_that_adds_nothing_is_the_targets() -> None:
    # Half a character in a vocabulary that the target does not share.
    writing = Writing()
    assert writing.takeovers(writing.draft(""), "x") == [1]
