"""Problems from a user's own file: a prompt, and a reference answer or a checker, a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parse_local.bench.execution import passes
from parse_local.bench.tasks.problem import ask, final_answer, last_number
from parse_local.chat_template import Message
from parse_local.errors import TaskError

MAX_TOKENS = 256
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class UserProblem:
    """One line of the file.

    Args:
        name: "name" of the line, else the file's name and the line's number.
        messages: the conversation.
        reference: the right answer, None where a checker decides.
        checker: Python that decides, None where the reference does.
        max_tokens: of an answer.
    """

    name: str
    messages: list[Message]
    reference: str | None
    checker: str | None
    max_tokens: int

    @property
    def runs_code(self) -> bool:
        """Whether a checker is run."""
        return self.checker is not None

    def check(self, answer: str) -> bool:
        """Whether the answer is the reference, or the checker says so (see `load`)."""
        if self.checker is not None:
            return passes(f"answer = {answer!r}\nreference = {self.reference!r}\n{self.checker}")
        assert self.reference is not None
        wanted = _number(self.reference)
        for text in (final_answer(answer), answer):
            if text is None:
                continue
            if _plain(text) == _plain(self.reference):
                return True
            found = last_number(text)
            if wanted is not None and found is not None:
                return found == wanted
        return False


def load(path: Path) -> Iterator[UserProblem]:
    """Read a JSONL file, one problem a line; empty lines are skipped.

    A line is an object with "prompt" (a text; the final answer is asked for in the form
    "Answer: ...") or "messages" (a conversation, taken as it is), and with

    - "reference": a text or number. Right is an answer that is the reference, or whose line
      "Answer: ..." is; upper case, spaces and a final full stop do not matter. Of a number
      the last one in that line counts, or in the answer where there is no such line.
    - or "checker": Python that sees `answer` (and `reference`, if there is one too). An
      expression must be true, other code must end without an error.

    "name" and "max_tokens" (256) are optional.

    Raises:
        TaskError: the file cannot be read or a line is not such an object; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"Cannot read the task {path}: {error}.") from error
    names: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            problem = _problem(json.loads(line), f"{path.stem}/{number}")
            if problem.name in names:
                raise ValueError(f"the name {problem.name!r} is there already")
        except ValueError as error:  # JSONDecodeError is one
            raise TaskError(f"{path} line {number} is not a problem: {error}.") from error
        names.add(problem.name)
        yield problem


def _problem(data: Any, name: str) -> UserProblem:
    if not isinstance(data, dict):
        raise ValueError("it must be an object with a prompt and a reference or a checker")
    unknown = data.keys() - {"name", "prompt", "messages", "reference", "checker", "max_tokens"}
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}")
    if ("prompt" in data) == ("messages" in data):
        raise ValueError('it needs either "prompt" or "messages"')
    messages = ask(_text(data, "prompt")) if "prompt" in data else _messages(data["messages"])
    checker = _checker(_text(data, "checker")) if "checker" in data else None
    reference = None
    if isinstance(data.get("reference"), (int, float)) and not isinstance(data["reference"], bool):
        reference = repr(data["reference"])
    elif "reference" in data:
        reference = _text(data, "reference")
    if reference is None and checker is None:
        raise ValueError('it needs "reference" or "checker"')
    max_tokens = data.get("max_tokens", MAX_TOKENS)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError('"max_tokens" must be a whole number above 0')
    name = _text(data, "name") if "name" in data else name
    return UserProblem(name, messages, reference, checker, max_tokens)


def _text(data: dict[str, Any], field: str) -> str:
    value = data[field]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'"{field}" must be a text that is not blank')
    return value


def _messages(value: Any) -> list[Message]:
    wrong = ValueError('"messages" must be a list of {"role", "content"}, the last from the user')
    if not isinstance(value, list) or not value:
        raise wrong
    for message in value:
        if (
            not isinstance(message, dict)
            or message.keys() != {"role", "content"}
            or message["role"] not in _ROLES
            or not isinstance(message["content"], str)
        ):
            raise wrong
    if value[-1]["role"] != "user":
        raise wrong
    messages: list[Message] = value
    return messages


def _checker(source: str) -> str:
    try:
        compile(source.strip(), "checker", "eval")
    except SyntaxError:
        try:
            compile(source, "checker", "exec")
        except SyntaxError as error:
            raise ValueError(f'"checker" is not Python ({error.msg})') from None
        return source
    return f"if not (\n{source.strip()}\n): raise SystemExit(1)"


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
