"""Speculators of llama.cpp through the C ABI: what they propose, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from asking import answer, ask
from tiny_gguf import READABLE, write_tiny_gguf
from tiny_heads import eagle3, glm4moe, qwen35_mtp

from parse_local.errors import ModelError, PairError, UsageError, VocabularyError
from parse_local.llama import speculator
from parse_local.llama.sampler import Sampler
from parse_local.llama.speculator import Speculator
from parse_local.speculation import Speculation

pytestmark = pytest.mark.skipif(
    not speculator.available(), reason="a stock llama-cpp-python has no speculators"
)

Tiny = Callable[..., Path]
Files = Callable[[str], Path]
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
OFTEN_A = {"a": 60.0}
"""A bias that makes a model write one letter again and again, and its heads expect it."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Tiny models and heads by name."""
    directory = tmp_path_factory.mktemp("heads")
    made: dict[str, dict[str, Any]] = {
        "target": {"seed": 1, "n_layer": 4},
        "target-a": {"seed": 1, "n_layer": 4, "bias": OFTEN_A},
        "eagle3": {"seed": 5, "architecture": "eagle3", "write_layers": eagle3},
        "eagle3-a": {
            "seed": 5,
            "architecture": "eagle3",
            "write_layers": eagle3,
            "bias": OFTEN_A,
        },
        "mtp": {"seed": 1, "n_layer": 3, "architecture": "glm4moe", "write_layers": glm4moe},
        "mtp-a": {
            "seed": 1,
            "n_layer": 3,
            "architecture": "glm4moe",
            "write_layers": glm4moe,
            "bias": OFTEN_A,
        },
    }

    hybrid = {"seed": 1, "n_layer": 4, "architecture": "qwen35", "write_layers": qwen35_mtp}
    made |= {"hybrid": hybrid, "hybrid-a": {**hybrid, "bias": OFTEN_A}}

    def file(name: str) -> Path:
        path = directory / f"{name}.gguf"
        if not path.exists():
            write_tiny_gguf(path, **made[name])
        return path

    return file


@pytest.fixture
def any_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads propose however unsure they are, so that random ones propose at all."""
    monkeypatch.setattr(speculator, "P_MIN", 0.0)
    defaults = dict(Speculator.__init__.__kwdefaults__)
    monkeypatch.setattr(Speculator.__init__, "__kwdefaults__", {**defaults, "p_min": 0.0})


# lossless, whoever proposes


@pytest.mark.usefixtures("any_token")
@pytest.mark.parametrize(
    ("spec", "target", "model"),
    [
        ("eagle3", "target", "eagle3"),
        ("eagle3", "target-a", "eagle3-a"),
        ("mtp", "mtp", None),
        ("mtp", "mtp-a", None),
        ("mtp", "hybrid", None),
        ("mtp", "hybrid-a", None),
        ("draft", "target", "target-a"),
        ("draft", "target-a", "target-a"),
        ("ngram", "target-a", None),
        ("auto", "target", "eagle3"),
        ("auto", "mtp-a", None),
        ("auto", "target-a", None),
    ],
)
def test_greedy_text_is_the_targets_own(
    load: Callable[..., Any],
    files: Files,
    spec: str,
    target: str,
    model: str | None,
) -> None:
    turns = [*ask("hello there"), {"role": "assistant", "content": "aaaa"}, *ask("go on")]
    plain = load(target=files(target), target_only=True)
    engine = load(
        target=files(target),
        target_only=True,
        spec=spec,
        spec_model=files(model) if model else None,
    )
    for messages in (turns[:1], turns, turns[:1]):  # caches grow, and are cut back
        expected = answer(plain, messages, strategy="target", max_tokens=60)
        result = answer(engine, messages, strategy="speculative", max_tokens=60)
        assert result.text == expected.text
        assert result.finish_reason == expected.finish_reason
        t = result.tokens
        rejected = t.spec_proposed - t.spec_accepted
        again = t.target_decoded - expected.tokens.target_decoded - rejected
        # Only a memory that cannot be cut decodes something twice.
        assert again == 0 or ("hybrid" in target and again > 0)


@pytest.mark.usefixtures("any_token")
@pytest.mark.parametrize(
    ("spec", "target", "model"), [("eagle3", "target-a", "eagle3-a"), ("mtp", "mtp-a", None)]
)
def test_heads_that_expect_what_the_target_writes_are_followed(
    load: Callable[..., Any],
    files: Files,
    spec: str,
    target: str,
    model: str | None,
) -> None:
    engine = load(
        target=files(target),
        target_only=True,
        spec=spec,
        spec_max=2,
        spec_model=files(model) if model else None,
    )
    tokens = answer(engine, "hello there", strategy="speculative", max_tokens=60).tokens
    assert tokens.spec_accepted >= 10


def test_a_draft_that_is_the_target_is_accepted_whole(load: Callable[..., Any], tiny: Tiny) -> None:
    engine = load(target=tiny(seed=1, bias=READABLE), target_only=True)
    context, model = engine.target.context, engine.target.model
    prompt = engine.target.prompt(ask("hello"))
    spec = Speculator("draft-simple", context, model, n_max=4, p_min=0.0, kv_type="f32")
    try:
        speculation = Speculation(context, spec, n_max=4)
        context.prefill(prompt)
        speculation.begin(prompt)
        context.start_count()
        sequence = list(prompt)
        for n in range(1, 5):
            tokens = speculation.step(sequence, Sampler(model), 100)
            assert len(tokens) == 5
            assert context.n_decoded == 5 * n
            sequence += tokens
        assert (speculation.n_proposed, speculation.n_accepted) == (16, 16)
    finally:
        spec.close()


def test_judging_never_reaches_a_head(
    load: Callable[..., Any], files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(target=files("mtp-a"), target_only=True, spec="mtp")
    context = engine.target.context
    prompt = engine.target.prompt(ask("hello"))
    context.prefill(prompt)
    context.last_row(prompt[-1:])
    seen: list[tuple[int, int]] = []
    process = Speculator.process

    def watch(self: Speculator, tokens: Any, position: int) -> None:
        seen.append((len(tokens), position))
        process(self, tokens, position)

    monkeypatch.setattr(Speculator, "process", watch)
    context.judge([4, 8], [1, 2, 3], [5, 6])
    assert seen == []
    context.last_row([7])
    assert seen == [(1, len(prompt))]


def test_a_head_that_lost_its_place_proposes_nothing_until_it_is_back(
    load: Callable[..., Any], files: Files
) -> None:
    engine = load(target=files("mtp-a"), target_only=True, spec="mtp")
    context = engine.target.context
    prompt = engine.target.prompt(ask("hello"))
    spec = Speculator("draft-mtp", context, n_max=4, p_min=0.0, kv_type="f32")
    try:
        spec.process(prompt[3:5], 3)  # what came before was never seen
        spec.begin(prompt[:6])
        assert spec.propose(4) == []
        context.prefill(prompt)
        spec.begin(prompt)
        assert len(spec.propose(4)) == 4
        context.truncate(len(prompt) - 3)
        spec.begin(prompt[: len(prompt) - 2])
        assert spec.propose(4) == []  # its hidden state is of a token that is gone
        context.last_row(prompt[-3:-2])
        spec.begin(prompt[:-1])
        assert len(spec.propose(4)) == 4
    finally:
        spec.close()


def test_ngrams_propose_what_followed_before(load: Callable[..., Any], files: Files) -> None:
    engine = load(target=files("target"), target_only=True)
    for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"):
        spec = Speculator(kind, engine.target.context, n_max=4, ngram_size=3)
        try:
            cycle = list(range(10, 30))
            spec.begin([*cycle * 4, *cycle[:5]])
            proposal = spec.propose(4)
            assert proposal, kind
            assert proposal == cycle[5 : 5 + len(proposal)]
            spec.accept([*proposal, cycle[5 + len(proposal)]])
            more = spec.propose(2)
            assert more == (cycle * 2)[6 + len(proposal) :][: len(more)]
        finally:
            spec.close()


def test_a_continuation_that_shares_its_beginning_is_like_a_new_one(
    load: Callable[..., Any], files: Files
) -> None:
    # Only what differs is converted: longer ones, shorter ones, others in the middle.
    cycle = list(range(10, 22))
    begun = [
        [*cycle, 40, *cycle[:4]],
        [*cycle, 40, *cycle[:5]],
        [*cycle, 40, 41, *cycle[:6]],
        [*cycle, *cycle, *cycle[:7]],
        [9, 12, 13, 14, 15, 30, 31, 32, 33, 12, 13, 14],
        [*cycle, 40, *cycle[:4]],
    ]
    context = load(target=files("target"), target_only=True).target.context
    proposals = []
    with closing(Speculator("ngram-simple", context, n_max=3)) as kept:
        for sequence in begun:
            kept.begin(sequence)
            kept.accept([7, *sequence[-3:]])  # of what follows nothing stays
            kept.begin(sequence)
            proposals.append(kept.propose(3))
    assert proposals == [
        [14, 15, 16],
        [15, 16, 17],
        [16, 17, 18],
        [17, 18, 19],
        [15, 30, 31],
        [14, 15, 16],
    ]


# what is refused, in one sentence


def test_types_of_files(files: Files, tmp_path: Path) -> None:
    assert speculator.type_of(files("eagle3")) == "draft-eagle3"
    assert speculator.type_of(files("mtp")) == "draft-mtp"
    assert speculator.type_of(files("target")) == "draft-simple"
    bad = tmp_path / "bad.gguf"
    for content, message in (
        (b"", r"bad\.gguf is not a GGUF file"),
        (b"not a model at all", r"bad\.gguf is not a GGUF file"),
        (b"GGUF", r"bad\.gguf cannot speculate .*another --spec-model"),
        (files("target").read_bytes()[:2000], r"bad\.gguf cannot speculate .*another --spec-model"),
    ):
        bad.write_bytes(content)
        with pytest.raises(ModelError, match=message):
            speculator.type_of(bad)


def load_error(load: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises((UsageError, PairError, ModelError)) as caught:
        load(target_only=True, **arguments)
    return str(caught.value)


def test_misfits_are_refused(load: Callable[..., Any], files: Files, tmp_path: Path) -> None:
    target = files("target")
    assert "needs the head's file" in load_error(load, target=target, spec="eagle3")
    assert "needs a draft model" in load_error(load, target=target, spec="draft")
    assert "no MTP heads" in load_error(load, target=target, spec="mtp")
    assert "is an EAGLE-3 head, which --spec draft cannot use" in load_error(
        load, target=target, spec="draft", spec_model=files("eagle3")
    )
    assert "is an ordinary model, which --spec eagle3 cannot use" in load_error(
        load, target=target, spec="eagle3", spec_model=target
    )
    assert "There is no file" in load_error(
        load, target=target, spec="draft", spec_model=tmp_path / "none.gguf"
    )
    with pytest.raises(PairError, match=r"loaded without its MTP heads"):
        Speculator("draft-mtp", load(target=files("mtp")).target.context, n_max=4)
    assert "uses no model" in load_error(load, target=target, spec="ngram", spec_model=target)


def test_a_head_for_another_target_is_refused(
    load: Callable[..., Any], files: Files, tmp_path: Path
) -> None:
    def wide(*arguments: Any) -> None:
        eagle3(*arguments, n_target=128)

    head = {"seed": 5, "architecture": "eagle3"}
    other = write_tiny_gguf(tmp_path / "wide.gguf", write_layers=wide, **head)
    assert (
        "wide.gguf cannot speculate for target.gguf (the head was made for a target of another"
        in (load_error(load, target=files("target"), spec="eagle3", spec_model=other))
    )
    shallow = write_tiny_gguf(tmp_path / "shallow.gguf", seed=1, n_layer=2)
    assert "the head reads layer 2 of the target, which has 2" in load_error(
        load, target=shallow, spec="eagle3", spec_model=files("eagle3")
    )
    foreign = write_tiny_gguf(tmp_path / "foreign.gguf", vocab_seed=7, write_layers=eagle3, **head)
    with pytest.raises(VocabularyError, match=r"another vocabulary than target\.gguf"):
        load(target=files("target"), target_only=True, spec="eagle3", spec_model=foreign)
    silent = write_tiny_gguf(tmp_path / "silent.gguf", seed=1, n_layer=4, architecture="gemma3")
    assert (
        "does not hand out the hidden states of a target of the architecture gemma3"
        in load_error(load, target=silent, spec="eagle3", spec_model=files("eagle3"))
    )


@pytest.fixture
def foreign(tiny: Tiny) -> Path:
    return tiny(seed=1, vocab_seed=7, bias=READABLE)


def test_a_draft_with_another_vocabulary_gives_way_to_ngrams(
    load: Callable[..., Any], tiny: Tiny, foreign: Path
) -> None:
    target = tiny(seed=1, bias=READABLE)
    for options in ({"draft": foreign}, {"target_only": True, "spec_model": foreign}):
        engine = load(target=target, spec="draft", **options)
        assert engine.notes == (
            f"{foreign.name} has another vocabulary than the target: n-grams propose in its place.",
        )
        assert engine.speculation is not None
        answer(engine, "hello", strategy="speculative", max_tokens=10)


@pytest.mark.parametrize("architecture", ["lfm2", "qwen35", "gemma3"])
@pytest.mark.parametrize("spec", ["draft", "ngram"])
def test_memories_that_cannot_be_cut_write_the_same(
    load: Callable[..., Any], tiny: Tiny, architecture: str, spec: str
) -> None:
    target = tiny(seed=1, architecture=architecture, n_layer=4, bias=OFTEN_A)
    draft = tiny(seed=1, n_layer=4, bias=OFTEN_A)
    plain = load(target=target, target_only=True)
    engine = load(
        target=target, target_only=True, spec=spec, spec_model=None if spec == "ngram" else draft
    )
    turns = [*ask("hello there"), {"role": "assistant", "content": "aaaa"}, *ask("go on")]
    n_proposed = n_accepted = 0
    for messages in (turns[:1], turns, turns[:1]):
        expected = answer(plain, messages, strategy="target", max_tokens=60)
        result = answer(engine, messages, strategy="speculative", max_tokens=60)
        assert result.text == expected.text
        n_proposed += result.tokens.spec_proposed
        n_accepted += result.tokens.spec_accepted
    assert n_proposed > n_accepted > 0


def test_a_stock_library_says_what_to_do(
    load: Callable[..., Any], tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculator, "_library", lambda: None)
    model = tiny(seed=1, bias=READABLE)
    for spec in ("ngram", "draft"):
        with pytest.raises(UsageError, match=r"no speculators.*or use --spec none"):
            load(target=model, draft=model, spec=spec)
    engine = load(target=model, draft=model, spec="auto")  # the rejected tail needs no library
    answer(engine, "hello", accept="exact", max_tokens=20)


# nothing is printed


@pytest.fixture
def cli(files: Files) -> Cli:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "parse_local.cli", "run", *arguments, "hello"],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            timeout=120,
        )

    return run


def test_the_command_line_speculates_in_silence(cli: Cli, files: Files) -> None:
    how = ["--target", str(files("mtp-a")), "--strategy", "speculative", "--max-tokens", "20"]
    quiet = cli(*how, "--spec", "mtp", "--threads", "1")
    assert quiet.returncode == 0
    assert len(quiet.stderr.splitlines()) == 1  # the line of statistics
    loud = cli(*how, "--spec", "mtp", "--threads", "1", "--verbose")
    assert "adding speculative implementation 'draft-mtp'" in loud.stderr
    assert loud.stdout == quiet.stdout


def test_the_command_line_notes_once_what_it_cannot_do(
    cli: Cli,
    files: Files,
    foreign: Path,
) -> None:
    done = cli(
        *("--target", str(files("target")), "--draft", str(foreign)),
        *("--spec", "draft", "--max-tokens", "5", "--threads", "1"),
    )
    assert done.returncode == 0
    assert done.stderr.count("another vocabulary") == 1
    wrong = cli("--target", str(files("target")), "--strategy", "speculative", "--spec", "eagle3")
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "Error: --spec eagle3 needs the head's file; give it with --spec-model.\n"
    )
