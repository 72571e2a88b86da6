"""Collected answers: both models' own texts, the engine's evidence, and a file that goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import READABLE

from parse_local import Engine, Options
from parse_local.bench.tasks.jsonl import UserProblem
from parse_local.bench.tasks.problem import ask
from parse_local.calibration.collect import collect, read_collected
from parse_local.calibration.wordings import WORDINGS
from parse_local.drafting import Draft, in_target_tokens
from parse_local.errors import UsageError
from parse_local.judge import make_judge
from parse_local.llama.context import Context
from parse_local.llama.sampler import Sampler
from parse_local.load_options import LoadOptions
from parse_local.policy import resolve
from parse_local.verifier import Verifier

ENDS = READABLE | {"<|im_end|>": 20.0}
EXACT = LoadOptions(kv_type="f32", flash_attn="off")


def problems(n: int, max_tokens: int = 40, checker: str | None = None) -> list[UserProblem]:
    # Right is what has an "e" early on.
    return [
        UserProblem(f"p{i}", ask("q" * (5 * i + 1)), None if checker else "e", checker, max_tokens)
        for i in range(n)
    ]


def greedy(context: Context, prompt: list[int], n: int) -> tuple[list[int], bool]:
    """Tokens of an answer written one at a time, and whether it ended by itself."""
    context.prefill(prompt)
    tokens = [context.greedy(prompt[-1])]
    while not context.model.is_eog(tokens[-1]) and len(tokens) < n:
        tokens.append(context.greedy(tokens[-1]))
    ended = context.model.is_eog(tokens[-1])
    return tokens[: len(tokens) - ended], ended


@pytest.fixture(params=["close", "vocabulary"])
def engine(load: Callable[..., Engine], tiny: Callable[..., Path], request: Any) -> Engine:
    target = tiny(seed=5, bias=ENDS, n_layer=2)
    if request.param == "close":
        draft = tiny(seed=6, weights_from=5, bias=ENDS, n_layer=2)
    else:
        draft = tiny(seed=5, vocab_seed=9, bias=ENDS, n_layer=2)
    return load(draft=draft, target=target)


def test_records_are_what_the_engine_says_one_by_one(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "new" / "collected.jsonl"
    tasks = problems(6)
    found = list(collect(engine, tasks, path, task="mine", n_at_once=3, load=EXACT))
    assert sorted(r["problem"] for r in found) == [f"p{i}" for i in range(6)]
    assert [json.loads(line) for line in path.read_text().splitlines()] == found
    reasons = set()
    model = engine.target.model
    sampler, policy = Sampler(model), resolve(Options(accept="semantic"), engine.profile)
    assert engine.draft is not None
    for task in tasks:
        record = next(r for r in found if r["problem"] == task.name)
        assert record["task"] == "mine"
        for role in ("target", "draft"):
            alone = engine.generate(task.messages, Options(strategy=role, max_tokens=40))
            assert record[role] == {
                "text": alone.text,
                "correct": task.check(alone.text),
                "n_tokens": alone.usage.completion_tokens,
                "finish_reason": alone.finish_reason,
            }
            reasons.add(alone.finish_reason)
        # The draft's own tokens: tokenising its text again would give others.
        own, _ = greedy(engine.draft.context, engine.draft.prompt(task.messages), 40)
        tokens, _ = in_target_tokens(
            own, engine.draft.model, model, shared=engine.shared_vocabulary
        )
        draft = Draft(tokens[:40], [model.piece(t) for t in tokens[:40]], complete=True)
        prompt = engine.target.prompt(task.messages)
        judge = make_judge(model, engine.target.template, task.messages, engine.profile.wording)
        judged = Verifier(engine.target.context, sampler, judge, policy).judge_all(prompt, draft)
        n = len(draft.tokens)
        assert record["n_exact"] == judged.n_exact
        assert len(record["logprobs"]) == len(record["ranks"]) == len(record["entropies"]) == n
        whole = judged.boundaries[-1]
        assert whole.terms["mean_logprob"] == pytest.approx(np.mean(record["logprobs"]), abs=1e-4)
        assert all(rank == 0 for rank in record["ranks"][: record["n_exact"]])
        assert len(record["draft_logprobs"]) == record["draft"]["n_tokens"]
        ends = [v for v in record["verdicts"] if v["complete"]]
        assert [v["wording"] for v in ends] == list(WORDINGS)
        assert {v["n_tokens"] for v in ends} == {n}
        assert ends[0]["p_correct"] == pytest.approx(whole.p_correct, abs=1e-4)
        assert ends[0]["label_mass"] == pytest.approx(whole.label_mass, abs=1e-4)
        before = [v for v in record["verdicts"] if not v["complete"]]
        assert len(before) == min(3, len(judged.boundaries) - 1)
        known = {b.n_tokens: b.p_correct for b in judged.boundaries[:-1]}
        for verdict in before:
            assert verdict["wording"] == "correct"
            assert verdict["p_correct"] == pytest.approx(known[verdict["n_tokens"]], abs=1e-4)
    assert reasons == {"stop", "length"}


@pytest.fixture
def pair(load: Callable[..., Engine], tiny: Callable[..., Path]) -> Engine:
    target = tiny(seed=5, bias=ENDS, n_layer=2)
    return load(draft=tiny(seed=6, weights_from=5, bias=ENDS, n_layer=2), target=target)


def run(engine: Engine, path: Path, n: int, **arguments: Any) -> list[str]:
    tasks = problems(n, 12)
    found = collect(engine, tasks, path, task="mine", n_at_once=2, load=EXACT, **arguments)
    return [r["problem"] for r in found]


def test_a_file_goes_on_where_it_ended(pair: Engine, tmp_path: Path) -> None:
    path = tmp_path / "collected.jsonl"
    stream = collect(pair, problems(5, 12), path, task="mine", n_at_once=2, load=EXACT)
    done = {next(stream)["problem"], next(stream)["problem"]}
    stream.close()  # type: ignore[attr-defined]
    assert set(read_collected(path)) == done  # on the disk as soon as they were yielded
    with path.open("a", encoding="utf-8") as file:
        file.write('{"task": "mine", "problem": "p4", "targ')
    assert set(read_collected(path)) == done
    assert set(run(pair, path, 5)) == {f"p{i}" for i in range(5)} - done
    assert len(path.read_text(encoding="utf-8").splitlines()) == 5
    assert len(read_collected(path)) == 5
    assert run(pair, path, 5) == []
    whole = tmp_path / "whole.jsonl"
    run(pair, whole, 5)
    texts = [
        {name: (r["target"], r["draft"], r["ranks"]) for name, r in read_collected(p).items()}
        for p in (path, whole)
    ]
    assert texts[0] == texts[1]


def test_a_file_of_something_else_is_left_alone(pair: Engine, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"problem": "p0", "pair": "a.gguf + b.gguf"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"holds answers of a.gguf \+ b.gguf, not of tiny-"):
        run(pair, path, 1)
    path.write_text("[1]\n{}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 1 is not a collected answer"):
        run(pair, path, 1)
    assert path.read_text(encoding="utf-8") == "[1]\n{}\n"


def test_code_runs_only_where_that_is_allowed(pair: Engine, tmp_path: Path) -> None:
    path = tmp_path / "collected.jsonl"
    tasks = problems(1, 12, checker="len(answer) > 3")
    with pytest.raises(UsageError, match="allow that with --allow-exec"):
        next(collect(pair, tasks, path, task="mine", load=EXACT))
    assert not path.exists()
    record = next(collect(pair, tasks, path, task="mine", allow_exec=True, load=EXACT))
    assert record["target"]["correct"] == (len(record["target"]["text"]) > 3)


def test_calibration_needs_two_models(
    load: Callable[..., Engine], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    alone = load(target=tiny(seed=5, bias=ENDS, n_layer=2), target_only=True)
    with pytest.raises(UsageError, match="compares two models"):
        run(alone, tmp_path / "x.jsonl", 1)
