"""Settings of one engine measured against each other, and a draft that is good for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parse_local.bench.padding import add_field, add_tensor, copy_fields, write_file
from parse_local.bench.runner import WARM_UP_TOKENS, keys
from parse_local.bench.tasks import Problem
from parse_local.engine import Engine
from parse_local.events import Result
from parse_local.policy import Options


@dataclass
class Tally:
    """Answers of one setting, added up."""

    n_tokens: int = 0
    seconds: float = 0.0
    draft_decoded: int = 0
    n_accept: int = 0

    def add(self, result: Result) -> None:
        """One more answer."""
        self.n_tokens += result.usage.completion_tokens
        self.seconds += result.timings.total_s
        self.draft_decoded += result.tokens.draft_decoded
        self.n_accept += result.tokens.n_accept

    @property
    def tokens_per_second(self) -> float:
        """Of the whole answers, prompt time included."""
        return self.n_tokens / self.seconds if self.seconds else 0.0


def run(
    engine: Engine, problems: Sequence[Problem], settings: Mapping[str, Options]
) -> Iterator[tuple[Problem, str, Result]]:
    """Answer every problem with every setting before the next one, in rotating order.

    The caches are emptied before each answer; what the engine has learnt stays.
    """
    warm_up = Options(strategy="target", max_tokens=WARM_UP_TOKENS)
    engine.generate(problems[0].messages, warm_up)  # from the disk
    problem_of = {p.name: p for p in problems}
    for key in keys(problems, list(settings)):
        problem = problem_of[key.problem]
        engine.forget()
        yield problem, key.strategy, engine.generate(problem.messages, settings[key.strategy])


def shuffle(source: Path, out: Path, *, seed: int = 0) -> None:
    """Write a model with the rows of all its matrices permuted: as fast, and sure of nonsense.

    Args:
        source: a GGUF file.
        out: the file to write.
        seed: of the permutations.
    """
    from gguf import GGUFReader, GGUFWriter

    rng = np.random.default_rng(seed)
    reader = GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, value, types in copy_fields(reader):
        add_field(writer, name, value, types)
    for tensor in reader.tensors:
        data = tensor.data
        if data.ndim == 2:
            data = data[rng.permutation(len(data))]
        add_tensor(writer, tensor.name, data, tensor)
    write_file(writer)
