"""Candidate wordings of the verdict question; calibration picks the one that separates best.

What works depends on the target: the same model separates right from wrong answers with an AUC
of 0.85 under one wording and 0.66 under another.
"""

from __future__ import annotations

from parse_local.profile import JudgeWording

WORDINGS: dict[str, JudgeWording] = {
    "correct": JudgeWording(),
    "right": JudgeWording(
        question_full="Compare the answer above with the task. Does it do exactly what was asked, "
        "with the right result? Reply with one word: Right or Wrong.",
        question_prefix="The answer above is unfinished. Is everything in it right so far? "
        "Reply with one word: Right or Wrong.",
        label_correct="Right",
        label_incorrect="Wrong",
    ),
    "pass": JudgeWording(
        question_full="The answer above is now checked against the expected result. What will the "
        "outcome be? Reply with one word: Pass or Fail.",
        question_prefix="The answer above is unfinished. If it goes on as it has begun, what will "
        "a check against the expected result say? Reply with one word: Pass or Fail.",
        label_correct="Pass",
        label_incorrect="Fail",
    ),
    "mistake": JudgeWording(
        question_full="Is there a mistake in the answer above? Reply with one word: No or Yes.",
        question_prefix="The answer above is unfinished. Is there a mistake in it so far? "
        "Reply with one word: No or Yes.",
        label_correct="No",
        label_incorrect="Yes",
    ),
}
"""By name; the first is what a profile without a wording has."""
