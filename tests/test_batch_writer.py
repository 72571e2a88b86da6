"""Many greedy answers at once: the same as one at a time, whatever shares the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import READABLE

from parse_local.errors import ContextLengthError
from parse_local.llama import scores
from parse_local.llama.batch_writer import BatchWriter, Job, Written
from parse_local.llama.context import Context
from parse_local.llama.model import Model

# Long enough to be cut, short enough to end by themselves: both must occur.
ENDS = READABLE | {"<|im_end|>": 18.0}
PROMPTS = ["a", "hello there, batch", "x" * 700, "The rest", "1 2 3", "Correct", "q" * 90, "zz"]


def make(path: Path, *, n_ctx: int = 4096, n_sequences: int = 3) -> Context:
    return Context(
        Model(path, n_gpu_layers=0),
        n_ctx=n_ctx,
        max_forks=n_sequences + 1,
        n_threads=1,
        kv_type="f32",
        flash_attn="off",
    )


@pytest.fixture(params=["llama", "gemma3", "mamba"])
def context(tiny: Callable[..., Path], request: pytest.FixtureRequest) -> Iterator[Context]:
    made = make(tiny(seed=3, bias=ENDS, architecture=request.param, n_layer=2))
    yield made
    made.close()
    made.model.close()


def alone(
    context: Context, prompt: list[int], max_tokens: int
) -> tuple[list[int], str, list[float]]:
    """One at a time, through other calls: one row a token, scored in numpy."""
    context.clear()
    tokens: list[int] = []
    logprobs: list[float] = []
    row = context.last_row(prompt)
    while True:
        x = row[0].astype(np.float64)
        best = int(x.argmax())
        if context.model.is_eog(best):
            return tokens, "stop", logprobs
        tokens.append(best)
        logprobs.append(float(-np.log(np.exp(x - x[best]).sum())))
        if len(tokens) == max_tokens:
            return tokens, "length", logprobs
        row = context.last_row([best])


def test_batched_is_one_at_a_time(context: Context) -> None:
    prompts = [context.model.tokenize(p) for p in PROMPTS]
    jobs = [Job(p, 40 + 3 * i) for i, p in enumerate(prompts)]
    expected = [alone(context, p, 40 + 3 * i) for i, p in enumerate(prompts)]
    assert {reason for _, reason, _ in expected} == {"stop", "length"}
    found = sorted(
        BatchWriter(context, n_sequences=3).write(jobs, logprobs=True), key=lambda w: w.job
    )
    assert [(w.job, w.tokens, w.finish_reason) for w in found] == [
        (i, tokens, reason) for i, (tokens, reason, _) in enumerate(expected)
    ]
    for written, (_, _, logprobs) in zip(found, expected, strict=True):
        np.testing.assert_allclose(written.logprobs, logprobs, atol=1e-4)


@pytest.fixture
def plain(tiny: Callable[..., Path]) -> Iterator[Context]:
    made = make(tiny(seed=3, bias=READABLE))
    yield made
    made.close()
    made.model.close()


def lengths(written: list[Written]) -> list[tuple[int, int, str]]:
    return [(w.job, len(w.tokens), w.finish_reason) for w in written]


def test_a_finished_answers_place_goes_to_the_next_prompt(plain: Context) -> None:
    taken: list[int] = []

    def jobs() -> Iterator[Job]:
        for i, n in enumerate([9, 3, 5, 2, 4]):
            taken.append(i)
            yield Job([65], n)

    writer = BatchWriter(plain, n_sequences=3)  # three places
    stream = writer.write(jobs())
    first = next(stream)
    # The shortest of the first three; the others are not asked for before there is a place.
    assert (first.job, taken) == (1, [0, 1, 2])
    plain_decoded = plain.n_decoded
    rest = list(stream)
    # Steps: 1 ends at 3; 3, started at step 4, ends at 5 together with 2; 4 ends at step 9 with 0.
    assert lengths([first, *rest]) == [
        (1, 3, "length"), (2, 5, "length"), (3, 2, "length"), (0, 9, "length"), (4, 4, "length"),
    ]  # fmt: skip
    # Every step decodes a token of every answer that runs, and none of those that are done:
    # 3 + 3 + 3 up to the first that ended, and of the rest what they had left.
    assert plain_decoded == 9
    assert plain.n_decoded == 9 + 3 + 5 + 2 + 4
    assert rest[0].logprobs == []


def test_a_prompt_shares_what_the_main_sequence_has_of_it(plain: Context) -> None:
    prompt = plain.model.tokenize("what they have in common, and")
    jobs = [Job([*prompt, 65], 20), Job([*prompt[:8], 70], 20), Job([66], 20)]
    whole = {w.job: w.tokens for w in BatchWriter(plain, n_sequences=2).write(jobs)}
    plain.clear()
    plain.start_count()
    # The main sequence changes with every job, as long as answers run that share it.
    written: dict[int, list[int]] = {}

    def prepared() -> Iterator[Job]:
        for job, n in zip(jobs, (len(prompt), 8, 0), strict=True):
            plain.sync([*job.prompt[:n], 1])
            plain.prefill([*job.prompt[:n], 1])
            yield job

    for w in BatchWriter(plain, n_sequences=2).write(prepared()):
        written[w.job] = w.tokens
    assert written == whole
    # Of the prompts: the first once, 8 of it are the second's; then one token each to start with.
    assert plain.n_decoded == len(prompt) + 3 * 20


def test_room_decides_how_many_run_at_once(tiny: Callable[..., Path]) -> None:
    context = make(tiny(seed=3, bias=READABLE), n_ctx=256)
    try:
        assert context.n_ctx == 256
        prompt = [65] * 100
        # 100 + 60 twice would be 320 cells: one after the other, though there are three places.
        found = list(BatchWriter(context, n_sequences=3).write([Job(prompt, 60), Job(prompt, 60)]))
        assert lengths(found) == [(0, 60, "length"), (1, 60, "length")]
        assert found[0].tokens == found[1].tokens
        # Only 156 cells are behind the prompt.
        assert lengths(list(BatchWriter(context, n_sequences=3).write([Job(prompt, 900)]))) == [
            (0, 156, "length")
        ]
        with pytest.raises(ContextLengthError, match="256 tokens does not fit into the context of"):
            list(BatchWriter(context, n_sequences=3).write([Job([65] * 256, 1)]))
    finally:
        context.close()
        context.model.close()


def test_a_writer_that_was_abandoned_writes_again(plain: Context) -> None:
    writer = BatchWriter(plain, n_sequences=3)
    jobs = [Job([65], 6), Job([66], 30), Job([67], 6)]
    whole = {w.job: w.tokens for w in writer.write(jobs)}
    stream = writer.write(jobs)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert {w.job: w.tokens for w in writer.write(jobs)} == whole
    stream = writer.write(jobs)
    next(stream)
    plain.close()
    stream.close()  # type: ignore[attr-defined]


def test_scores_are_not_read_where_nobody_asks(
    plain: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(scores, "token_scores", refuse)
    assert lengths(list(BatchWriter(plain, n_sequences=3).write([Job([65], 2)]))) == [
        (0, 2, "length")
    ]
