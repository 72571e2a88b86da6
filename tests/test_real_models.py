"""The proof on real models: forks judge as plain passes do, `exact` is the target's own text.

scripts/check_numerics measures the same on more; docs/benchmarks/numerics.md has its table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from exact_batches import batches_are_exact

from parse_local import Options, load_pair
from parse_local.bench.numerics import compare_exact, compare_verdicts
from parse_local.engine import Engine
from parse_local.events import Drafted, Finished, Text
from parse_local.grammar import schema_grammar
from parse_local.hub import paths
from parse_local.llama.sampler import Sampler

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

SAMPLES = json.loads((Path(__file__).parent / "data" / "drafts.json").read_text(encoding="utf-8"))


def ask(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def test_samples_are_what_the_proof_asks_for() -> None:
    assert sum(50 <= s["n_tokens"] <= 400 for s in SAMPLES) >= 20
    assert max(s["n_tokens"] for s in SAMPLES) == 400
    assert any("🚀" in s["prompt"] for s in SAMPLES)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = load_pair("qwen2.5-coder-1.5b")
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("judge", "n_samples", "n_cuts"),
    [
        ("smollm2-135m", 22, 2),
        ("qwen2.5-coder-0.5b-q4_k_m", 10, 2),
        ("qwen2.5-coder-1.5b-q4_k_m", 6, 2),
    ],
)
def test_forks_judge_as_plain_passes_do(judge: str, n_samples: int, n_cuts: int) -> None:
    engine = load_pair(target=judge)
    compared = [
        compare_verdicts(engine, ask(s["prompt"]), s["draft"], n_cuts=n_cuts, batch_sizes=(512, 16))
        for s in SAMPLES[:n_samples]
    ]
    engine.close()
    forks = np.concatenate([np.abs(c.forks - c.plain[0]) for c in compared])
    plain = np.concatenate([c.plain.max(axis=0) - c.plain.min(axis=0) for c in compared])
    # As a forked verdict is one more way to shape the batch, it may differ from
    # the reference by as much as two plain passes differ from each other.
    assert forks.mean() <= 1.5 * plain.mean() + 1e-3
    assert forks.max() <= 1.5 * plain.max() + 5e-3


def test_exact_differs_from_the_target_only_at_near_ties(
    engine: Engine, record_property: pytest.RecordProperty
) -> None:
    compared = [
        compare_exact(engine, ask(s["prompt"]), max_tokens=40, batch_sizes=(1, 16, 512))
        for s in SAMPLES[:20]
    ]
    same = sum(c.identical for c in compared)
    record_property("identical texts", f"{same} of {len(compared)}")
    print(f"\nexact: {same} of {len(compared)} texts are the target's own to the last token")
    assert same >= len(compared) // 2
    if batches_are_exact():
        assert same == len(compared), "a batch has the logits of its tokens one by one here"
    for c in compared:
        if not c.identical:
            # Two tokens so close that plain passes of other shapes move them as far.
            assert c.margin <= max(c.spread, 0.15), c


@pytest.mark.parametrize("spec", ["draft", "ngram"])
def test_speculated_text_differs_from_the_plain_only_at_near_ties(spec: str) -> None:
    engine = load_pair("qwen2.5-coder-1.5b", spec=spec, spec_max=4, n_ctx=1024)
    context = engine.target.context
    sampler = Sampler(engine.target.model)
    assert engine.speculation is not None
    for sample in SAMPLES[:2]:
        prompt = engine.target.prompt(ask(sample["prompt"]))
        sequence = list(prompt)
        context.prefill(sequence)
        engine.speculation.begin(sequence)
        while len(sequence) < len(prompt) + 40:
            sequence += engine.speculation.step(sequence, sampler, len(prompt) + 40 - len(sequence))
        context.clear()
        context.prefill(prompt)
        for i in range(len(prompt), len(sequence)):
            row = context.last_row(sequence[i - 1 : i])[0]
            # Rows of a batch round differently from rows decoded alone.
            assert row.max() - row[sequence[i]] <= 0.15, (sample["prompt"], i - len(prompt))
    if spec == "draft":
        assert engine.speculation.n_accepted > 0.5 * engine.speculation.n_proposed > 20
    engine.close()


def test_a_continuation_takes_tokens_from_the_rejected_tail() -> None:
    engine = load_pair("qwen2.5-coder-1.5b", spec="ngram", n_ctx=1024)
    messages = ask("Write a Python class for a stack with push, pop, peek and is_empty.")
    options = Options(
        strategy="parse", accept="semantic", tau_full=1.0, tau_prefix=1.0, max_tokens=80
    )
    result = engine.generate(messages, options)
    assert len(result.rounds) == 1
    written = result.usage.completion_tokens - result.rounds[0].n_accept
    assert written > 40
    assert result.tokens.spec_accepted > written / 4
    engine.close()


def test_a_prompt_is_never_decoded_twice(engine: Engine) -> None:
    engine.forget()
    messages = ask(SAMPLES[0]["prompt"])
    first = engine.generate(messages, Options(strategy="parse", accept="semantic", max_tokens=60))
    r = first.rounds[0]
    # The whole answer is one round here: prompt, draft, and what the target wrote after
    # a rejection; the last token of an answer is never decoded.
    continuation = first.usage.completion_tokens - r.n_accept
    decoded = first.usage.prompt_tokens + r.n_draft + max(0, continuation - 1)
    decoded += first.tokens.spec_proposed - first.tokens.spec_accepted
    assert len(first.rounds) == 1
    assert first.tokens.target_decoded == decoded
    second = engine.generate(
        [
            *messages,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Thanks. Now in one sentence, please."},
        ],
        Options(strategy="parse", accept="semantic", max_tokens=20),
    )
    assert second.tokens.reused >= first.usage.prompt_tokens
    assert second.tokens.reused_draft >= first.usage.prompt_tokens


def test_a_draft_with_another_vocabulary() -> None:
    engine = load_pair(draft=paths("smollm2-135m")[0], target=paths("qwen2.5-coder-1.5b")[1])
    assert not engine.shared_vocabulary
    messages = ask("Antworte kurz: was bedeutet 猫? Benutze ein Emoji wie 🐈 oder 👩‍💻.")
    alone = engine.generate(messages, Options(strategy="target", max_tokens=40))
    events = list(engine.stream(messages, Options(strategy="parse", accept="exact", max_tokens=40)))
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert result.text == "".join(e.text for e in events if isinstance(e, Text))
    assert any(isinstance(e, Drafted) for e in events)
    assert result.text[:20] == alone.text[:20]
    judged = engine.verify(messages, "猫 heißt Katze. 🐈\nUnd 👩‍💻 ist eine Programmiererin.")
    text = "猫 heißt Katze. 🐈\nUnd 👩‍💻 ist eine Programmiererin."
    assert judged.boundaries[-1].n_chars == len(text)
    assert all(0 < (b.p_correct or 0) < 1 for b in judged.boundaries)
    options = Options(
        strategy="parse", accept="semantic", tau_full=0.5, tau_prefix=0.5, max_tokens=40
    )
    semantic = engine.generate(messages, options)
    assert semantic.text
    engine.close()


def test_sliding_window_forks() -> None:
    engine = load_pair(target="gemma-3-270m")
    text = "A cache keeps what was asked for lately. " * 30
    compared = compare_verdicts(
        engine, ask("What is a cache?"), text, n_cuts=3, batch_sizes=(512, 64)
    )
    engine.close()
    assert compared.difference <= 1.5 * compared.plain_spread + 5e-3


def test_a_sliding_window_drafts_judges_and_is_written_on() -> None:
    # A prompt of more than two windows, so that every position that is rolled back to has some
    # layers which no longer see the beginning.
    gemma = paths("gemma-3-270m")[0]
    story = "The cat sat on the mat. The dog lay by the door. The bird sang in the tree. "
    messages = ask(story * 70 + "What did the cat do?")
    engine = load_pair(target=gemma, draft=gemma, flash_attn="off")
    alone = engine.generate(messages, Options(strategy="target", max_tokens=32))
    assert alone.usage.prompt_tokens > 2 * 512
    exact = engine.generate(messages, Options(strategy="parse", accept="exact", max_tokens=32))
    # Its own draft, but for near-ties between batches of one and of many.
    assert exact.accepted_share > 0.5
    assert exact.text[:20] == alone.text[:20]
    assert exact.tokens.reused >= alone.usage.prompt_tokens - 1
    cut = Options(
        strategy="parse", accept="semantic", tau_full=1.0, tau_prefix=0.0, delta=8, max_tokens=32
    )
    judged = engine.generate(messages, cut)
    assert judged.rounds[0].n_accept > 0
    again = engine.generate(
        [*messages, {"role": "assistant", "content": judged.text}, *ask("And the dog?")],
        Options(strategy="parse", max_tokens=8),
    )
    assert again.tokens.reused > 2 * 512
    engine.close()
    # As the draft of another family.
    engine = load_pair(target=paths("qwen2.5-coder-1.5b")[0], draft=gemma)
    short = ask("Name three prime numbers.")
    alone = engine.generate(short, Options(strategy="target", max_tokens=24))
    found = engine.generate(short, Options(strategy="parse", accept="exact", max_tokens=24))
    assert found.text[:12] == alone.text[:12]
    engine.close()


def test_an_answer_under_a_json_schema_validates_and_is_the_targets_own(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 18, "maximum": 99},
            "languages": {"type": "array", "items": {"enum": ["Python", "Rust"]}, "minItems": 1},
        },
        "required": ["name", "age", "languages"],
    }
    question = ask("Invent a programmer with name, age and languages. Answer in JSON.")
    options = {"grammar": schema_grammar(schema), "max_tokens": 80, "accept": "exact"}
    for more in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}):
        found = engine.generate(question, Options(strategy="parse", **options, **more))
        jsonschema.validate(json.loads(found.text), schema)
        assert found.finish_reason == "stop"
        assert found.accepted_share > 0.5


def test_a_tool_is_called(engine: Engine) -> None:
    properties = {"city": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    tool = {"name": "get_weather", "description": "Weather of a city.", "parameters": parameters}
    found = engine.generate(
        ask("What is the weather in Rome?"),
        Options(max_tokens=60),
        tools=[{"type": "function", "function": tool}],
    )
    assert found.finish_reason == "tool_calls"
    assert found.text == ""
    (call,) = found.tool_calls
    assert call.name == "get_weather"
    assert json.loads(call.arguments_json)["city"].startswith("Rome")
    # Asked for something else it calls nothing, unless it has to.
    tools = [{"type": "function", "function": tool}]
    asked = ask("Write a haiku about autumn.")
    free = engine.generate(asked, Options(max_tokens=60), tools=tools)
    made = engine.generate(asked, Options(max_tokens=60), tools=tools, tool_choice="required")
    assert free.tool_calls == ()
    assert (made.finish_reason, made.text) == ("tool_calls", "")
    (call,) = made.tool_calls
    jsonschema.validate(json.loads(call.arguments_json), parameters)
