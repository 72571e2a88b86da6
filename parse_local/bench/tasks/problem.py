"""What a problem is to whoever runs it, and the form in which final answers are asked for."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Protocol

from parse_local.chat_template import Message
from parse_local.errors import TaskError

ANSWER_FORM = (
    "\n\nReply with a few short steps and then the result, in this form:\n"
    "Step 1: ...\nStep 2: ...\nAnswer: ..."
)
"""Follows the question of every task whose checker reads one final answer."""

_ANSWER = re.compile(r"\banswer(?: is)?[^\w\n]*?[:=](.*)$", re.IGNORECASE | re.MULTILINE)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d+)?")
_DECORATION = " \t*`$\"'"


class Problem(Protocol):
    """One problem; every task's own class has these."""

    @property
    def name(self) -> str:
        """Unique within the task and the same in every run, e.g. "HumanEval/3"."""
        ...

    @property
    def messages(self) -> list[Message]:
        """The conversation to be answered."""
        ...

    @property
    def max_tokens(self) -> int:
        """Enough tokens for nearly every answer that gets there at all."""
        ...

    @property
    def runs_code(self) -> bool:
        """Whether `check` runs code that came from the answer or from a file."""
        ...

    def check(self, answer: str) -> bool:
        """Whether the answer is right."""
        ...


def ask(question: str) -> list[Message]:
    """The conversation of a question whose final answer stands in the last line."""
    return [{"role": "user", "content": question.strip() + ANSWER_FORM}]


def final_answer(text: str) -> str | None:
    """What stands behind the last "Answer:" of a text, else in its last \\boxed{}.

    Returns:
        The answer without decoration; None where there is neither.
    """
    found = [f for f in map(_bare, _ANSWER.findall(text)) if f] or list(
        map(_bare, _BOXED.findall(text))
    )
    return (found[-1] if found else "") or None


def _bare(answer: str) -> str:
    boxed = _BOXED.findall(answer)
    answer = (boxed[-1] if boxed else answer).strip(_DECORATION).rstrip(_DECORATION + ".")
    return answer.removeprefix("\\(").removesuffix("\\)").strip(_DECORATION)


def last_number(text: str) -> float | None:
    """The last number of a text, thousands separated by commas or not; None without one."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def require(module: str, package: str) -> Any:
    """Import what a task's problems come from.

    Raises:
        TaskError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise TaskError(
            f"This task needs the package {package} ({error}); "
            "install it with: pip install 'parse-local[bench]'."
        ) from error
