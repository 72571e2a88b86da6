"""Loading a pair of files: what is checked, what is refused, and how options arrive."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from asking import answer

from parse_local import Engine, LoadOptions, Options, load_pair, memory
from parse_local.controller import guess_costs
from parse_local.costs import CostCurve, PairCosts
from parse_local.errors import ModelError, OutOfMemoryError, UsageError
from parse_local.fingerprint import fingerprint
from parse_local.llama._bindings import lib
from parse_local.llama.cancel import CancelFlag
from parse_local.policy import resolve
from parse_local.profile import (
    FittedFile,
    Fusion,
    Profile,
    Weight,
    dump_profile,
    profile_name,
    user_profile,
)
from parse_local.room import SUFFIX_SLACK

Tiny = Callable[..., Path]


def test_a_target_alone_answers_alone(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1))
    assert engine.draft is None
    assert answer(engine, "hello", strategy="target", max_tokens=5).usage.completion_tokens == 5
    for strategy in ("parse", "draft"):
        with pytest.raises(UsageError, match=r"needs a draft model; name a pair or give --draft"):
            answer(engine, "hello", strategy=strategy)


def test_target_only_leaves_the_draft_out(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), draft=Path("never read.gguf"), target_only=True)
    assert engine.draft is None


def test_a_draft_that_was_never_measured_is_timed_while_it_is_loaded(
    load: Callable[..., Any], tiny: Tiny
) -> None:
    engine = load(draft=tiny(seed=2), target=tiny(seed=1))
    costs, guess = engine.controller.costs, guess_costs(*[engine.draft.model.n_bytes] * 2)
    # A decode of a file this small takes far longer than the reading of its bytes.
    assert costs.draft.seconds(1) > 2 * guess.draft.seconds(1)
    assert costs.target.seconds(1) < 2 * guess.target.seconds(1)
    assert engine.draft.context.tokens == []
    known = PairCosts(*[CostCurve(((1, 1.0), (64, 2.0)))] * 3)
    measured = Engine(
        engine.target, engine.draft, profile=engine.profile, cancel=CancelFlag(), costs=known
    )
    measured.time_draft()
    assert measured.controller.costs.draft.seconds(1) == 1.0


LOAD = """
import sys, time
import numpy, psutil  # numpy has threads of its own
from parse_local import load_pair
from parse_local.llama import library
library.init()
before = psutil.Process().num_threads()
engine = load_pair(target=sys.argv[1], draft=sys.argv[2], n_ctx=64, n_threads=2)
assert engine.draft.context.passes, "nothing was timed"
for _ in range(500):  # they end a moment after the thread that they belong to
    more = psutil.Process().num_threads() - before
    if not more:
        break
    time.sleep(0.01)
print(more)
"""


def test_loading_leaves_no_threads_that_those_of_answers_would_have_to_share_cores_with(
    tiny: Tiny,
) -> None:
    command = [sys.executable, "-c", LOAD, str(tiny(seed=1)), str(tiny(seed=2))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_a_guarantee_ends_where_other_files_begin(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARSE_LOCAL_HOME", str(tmp_path))
    target, small, other = tiny(seed=1), tiny(seed=2), tiny(seed=3)
    profile = Profile(
        calibrated=True,
        fusion=Fusion({"log_odds": Weight(0.0, 1.0, 1.0)}, 0.0, 2.0, 3.0),
        target=FittedFile("target.gguf", fingerprint(target)),
        drafts=(FittedFile("draft.gguf", fingerprint(small)),),
    )
    own = user_profile(profile_name("", {"target": target, "draft": small}))
    own.parent.mkdir()
    own.write_text(dump_profile(profile))

    def loaded(**arguments: Any) -> tuple[bool, str, str]:
        engine = load_pair(n_ctx=64, n_threads=1, spec="none", **arguments)
        try:
            accept = resolve(Options(), engine.profile).accept
            return engine.profile.calibrated, accept, " ".join(engine.notes)
        finally:
            engine.close()

    assert loaded(target=target, draft=small) == (True, "fused", "")
    assert loaded(target=target, draft=other) == (False, "exact", "")  # has no profile
    calibrated, accept, note = loaded(target=target, draft=other, profile=own)
    assert (calibrated, accept) == (False, "exact")
    assert f"calibrated with another draft than {other.name}" in note


def test_room_for_forks_is_added_to_the_context(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), draft=tiny(seed=2), n_ctx=300, max_forks=7)
    assert engine.n_ctx == 300
    from parse_local.judge import make_judge

    target = engine.target
    judge = make_judge(
        target.model, target.template, [{"role": "user", "content": "?"}], engine.profile.wording
    )
    suffix = max(len(judge.full.suffix), len(judge.prefix.suffix)) + SUFFIX_SLACK
    assert 300 + 7 * suffix <= target.context.n_cells < 300 + 7 * suffix + 256
    assert lib.llama_n_seq_max(target.context.handle) == 8
    assert 300 <= engine.draft.context.n_cells < 300 + 256
    assert lib.llama_n_seq_max(engine.draft.context.handle) == 1


def test_options_reach_both_contexts(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), draft=tiny(seed=2), n_threads=2)
    for writer in (engine.target, engine.draft):
        assert lib.llama_n_threads(writer.context.handle) == 2
        assert writer.context.cancel is engine.target.context.cancel


def test_placements_name_both_models(load: Callable[..., Any], tiny: Tiny) -> None:
    target, draft = tiny(seed=1), tiny(seed=2)
    engine = load(target=target, draft=draft)
    assert [p.split(":")[0] for p in engine.placements] == [draft.name, target.name]
    assert "of 1 layers on the GPU" in engine.placements[0]
    assert engine.pair_name == target.stem


def test_a_recurrent_model_gets_forks_and_checkpoints(load: Callable[..., Any], tiny: Tiny) -> None:
    mamba = tiny(seed=3, architecture="mamba")
    target = load(target=mamba, max_forks=7).target.context
    assert target.max_forks == 7
    assert lib.llama_n_seq_max(target.handle) == 1 + 7 + (7 + 3)
    draft = load(target=tiny(seed=1), draft=mamba).draft.context
    assert lib.llama_n_seq_max(draft.handle) == 1 + 8


def test_states_are_part_of_the_memory_that_is_checked(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundredth of a GiB for all states, of which this model's takes 31,457 bytes.
    monkeypatch.setattr(memory, "CHECKPOINT_BYTES", 10 * 31_457)
    seen: dict[str, memory.Need] = {}
    monkeypatch.setattr(memory, "check", lambda needs, available: seen.update(needs))
    mamba = tiny(seed=3, architecture="mamba", n_layer=2)
    engine = load_pair(target=mamba, draft=mamba, n_ctx=512)
    n_seq = [lib.llama_n_seq_max(w.context.handle) for w in (engine.target, engine.draft)]
    engine.close()
    assert n_seq == [1 + 3 + 6, 1 + 8]
    assert [seen[role].states for role in ("target", "draft")] == [n * 31_457 for n in n_seq]
    assert [seen[role].kv_cache for role in ("target", "draft")] == [0, 0]


def test_a_recurrent_model_runs_alone(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=3, architecture="mamba"))
    first = answer(engine, "hello", strategy="target", max_tokens=20)
    assert first.usage.completion_tokens == 20
    assert answer(engine, "hello", strategy="target", max_tokens=20).text == first.text


def test_a_sliding_window_model_drafts_and_judges(load: Callable[..., Any], tiny: Tiny) -> None:
    gemma = {"architecture": "gemma3", "n_layer": 2}  # a window of 32 tokens, which this exceeds
    engine = load(target=tiny(seed=3, **gemma), draft=tiny(seed=4, weights_from=3, **gemma))
    alone = answer(engine, "hello " * 20, strategy="target", max_tokens=60)
    found = answer(engine, "hello " * 20, accept="exact", max_tokens=60)
    assert found.text == alone.text
    assert found.tokens.n_accept > 0
    text = "One. Two. Three.\n" * 5
    parallel = engine.verify([{"role": "user", "content": "hello"}], text)
    plain = engine.verify([{"role": "user", "content": "hello"}], text, sequential=True)
    assert [b.p_correct for b in parallel.boundaries] == pytest.approx(
        [b.p_correct for b in plain.boundaries], rel=1e-4
    )


def test_memory_is_checked_before_anything_is_loaded(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One layer, two KV heads of 16: K and V of a token take 64 values, 128 bytes in F16.
    n_ctx = psutil.virtual_memory().total // 128
    with pytest.raises(OutOfMemoryError, match=r"This needs about .* GiB .* lower --ctx"):
        load_pair(target=tiny(seed=1), draft=tiny(seed=2), n_ctx=n_ctx)
    # What is measured is what the message and the check use.
    seen: dict[str, memory.Need] = {}
    monkeypatch.setattr(memory, "check", lambda needs, available: seen.update(needs))
    load_pair(target=tiny(seed=1), draft=tiny(seed=2), n_ctx=1000, max_forks=1).close()
    assert seen["draft"].kv_cache == 1000 * 128
    assert seen["draft"].weights == tiny(seed=2).stat().st_size
    assert seen["target"].kv_cache > 1000 * 128


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 0}, "n_ctx must be at least 1, not 0"),
        ({"n_threads": 0}, "n_threads must be between 1 and 512, not 0"),
        ({"n_threads": 100_000}, "n_threads must be between 1 and 512"),
        ({"max_forks": 256}, "max_forks must be between 1 and 255, not 256"),
        ({"n_gpu_layers": -2}, "n_gpu_layers must be at least -1"),
        ({"kv_type": "f64"}, "kv_type='f64' is not one of: f16, q8_0, q4_0, f32"),
        ({"flash_attn": "maybe"}, "flash_attn='maybe' is not one of: auto, on, off"),
    ],
)
def test_impossible_load_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        LoadOptions(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kv_type": "q8_0"}, "does not divide n_embd_head_k=16"),
        ({"kv_type": "q4_0", "flash_attn": "off"}, "requires flash_attn"),
    ],
)
def test_a_cache_type_that_the_model_cannot_have(
    load: Callable[..., Any], tiny: Tiny, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match="use --kv-type f16") as caught:
        load(target=tiny(seed=1), **{"flash_attn": "on", **options})
    assert reason in str(caught.value)


def test_the_most_forks_that_llama_cpp_takes(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1), max_forks=255, n_ctx=300)
    found = engine.verify([{"role": "user", "content": "?"}], "a. " * 60)
    assert len(found.boundaries) > 30


def test_the_draft_is_freed_when_the_target_fails(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parse_local.llama.context import Context
    from parse_local.writer import Writer

    closed: list[str] = []
    close = Writer.close

    def closing(writer: Writer) -> None:
        closed.append(writer.model.path.name)
        close(writer)

    monkeypatch.setattr(Writer, "close", closing)
    init, calls = Context.__init__, []

    def failing(context: Context, *args: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OutOfMemoryError("no room")
        init(context, *args, **options)

    monkeypatch.setattr(Context, "__init__", failing)
    with pytest.raises(OutOfMemoryError, match="no room"):
        load_pair(target=tiny(seed=1), draft=tiny(seed=2))
    assert closed == [tiny(seed=2).name]


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ModelError, match=r"There is no file /nowhere/x\.gguf; check the path"):
        load_pair(target="/nowhere/x.gguf")
