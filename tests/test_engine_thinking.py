"""Models that think, under every strategy: scripted answers on the real llama.cpp."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import answer, ask, check_contract
from click.testing import CliRunner
from scripted_gguf import write_scripted_gguf

from parse_local import Options
from parse_local.answer import Answer
from parse_local.boundaries import candidate_boundaries
from parse_local.cli import main
from parse_local.drafting import Draft
from parse_local.events import Drafted, Text
from parse_local.judge import make_judge
from parse_local.profile import JudgeWording
from parse_local.terminal.reasoning import ReasoningView

TEMPLATES = Path(__file__).parent / "chat_templates"
QUESTION = "What is 6 * 7?"
WORDS = ("<think>", "</think>", "\n\n", "Let", " me", " see", " Six", " times", "It", " is", " 42")
WORDS += ("analysis", "final", "assistant", "thought")
CHATML = ("<|im_start|>", "<|im_end|>")
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>")
GEMMA = ("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<eos>")

THOUGHT, ANSWER = ("Let", " me", " see", "."), ("It", " is", " 42")
OTHER = ("Let", " me", " Six", " times")
TAGGED = ("<think>", "Ċ", *THOUGHT, "Ċ", "</think>", "\n\n", *ANSWER)
SPELLED = (*"</think>",)  # by tokens of one letter each
HARMONIC = (
    *("<|channel|>", "analysis", "<|message|>", *THOUGHT, "<|end|>"),
    *("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", *ANSWER),
)

# name: template, what the prompt ends with, the script, control tokens, end
MODELS: dict[str, tuple[str, tuple[str, str], tuple[str, ...], tuple[str, ...], str]] = {
    "qwen3": ("qwen3", ("t", "Ċ"), TAGGED, CHATML, "<|im_end|>"),
    "deepseek-r1": ("deepseek-r1", ("<think>", "Ċ"), TAGGED[2:], CHATML, "<|im_end|>"),
    "gpt-oss": ("harmony", ("n", "t"), HARMONIC, HARMONY, "<|return|>"),
    "gemma4": (
        "gemma4",
        ("l", "Ċ"),
        ("<|channel>", "thought", "Ċ", *THOUGHT, "<channel|>", *ANSWER),
        GEMMA,
        "<turn|>",
    ),
    "other": (
        "qwen3",
        ("t", "Ċ"),
        ("<think>", "Ċ", *OTHER, "</think>", "\n\n", *ANSWER),
        CHATML,
        "<|im_end|>",
    ),
    "spelled": (
        "deepseek-r1",
        (">", "Ċ"),
        (*THOUGHT, *SPELLED, "\n\n", *ANSWER),
        CHATML,
        "<|im_end|>",
    ),
    "never": ("qwen3", ("t", "Ċ"), ("<think>", "Ċ", *THOUGHT), CHATML, "<|im_end|>"),
}
REASONING = {"qwen3": "Let me see.\n", "deepseek-r1": "Let me see.\n"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The file of a model in `MODELS`, of another vocabulary with `shuffle`."""
    directory = tmp_path_factory.mktemp("scripted")
    written: dict[str, Path] = {}

    def write(name: str, shuffle: bool = False) -> Path:
        key = f"{name}-{shuffle}"
        if key not in written:
            template, start, script, controls, eos = MODELS[name]
            written[key] = write_scripted_gguf(
                directory / f"{key}.gguf",
                {start: script},
                template=(TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"),
                words=[w for w in WORDS if name != "spelled" or "think" not in w],
                controls=controls,
                unread=["assistant"],
                eos=eos,
                shuffle=shuffle,
            )
        return written[key]

    return write


@pytest.fixture(scope="module")
def engines(load_once: Callable[..., Any], files: Callable[..., Path]) -> Callable[..., Any]:
    """The engine of a target and a draft, loaded once."""
    loaded: dict[tuple[str, str, bool], Any] = {}

    def engine(target: str, draft: str | None = None, shuffle: bool = False) -> Any:
        key = (target, draft or target, shuffle)
        if key not in loaded:
            loaded[key] = load_once(target=files(target), draft=files(key[1], shuffle), n_ctx=512)
        return loaded[key]

    return engine


STRATEGIES: dict[str, dict[str, Any]] = {
    "target": {"strategy": "target"},
    "auto": {"strategy": "auto"},
    "windows of 1": {"window": 1},
    "windows of 3": {"window": 3},
    "windows of 5": {"window": 5},
    "sampled": {"temperature": 0.1, "seed": 1, "window": 4},
    "loose": {"accept": "loose"},
    "judged": {"accept": "semantic", "tau_full": 1, "tau_prefix": 1},
    "speculative-thinking": {"strategy": "speculative-thinking"},
    "confspec": {"strategy": "confspec", "min_confidence": 1.0, "min_score": 10},
    "specreason": {"strategy": "specreason", "min_score": 10},
}


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1", "gpt-oss", "gemma4"])
def test_reasoning_is_no_part_of_the_answer(
    engines: Callable[..., Any], name: str, how: str
) -> None:
    found = answer(engines(name), QUESTION, thinking=True, max_tokens=60, **STRATEGIES[how])
    expected = REASONING.get(name, "Let me see.")
    assert (found.reasoning, found.text, found.finish_reason) == (expected, "It is 42", "stop")


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize(
    ("draft", "shuffle"),
    [("other", False), ("qwen3", True), ("deepseek-r1", True), ("gpt-oss", True), ("never", False)],
)
def test_whatever_the_draft_thinks_the_answer_is_the_targets(
    engines: Callable[..., Any], draft: str, shuffle: bool, how: str
) -> None:
    if how == "speculative-thinking":
        pytest.skip("what the draft writes stays")
    engine = engines("qwen3", draft, shuffle)
    found = answer(engine, QUESTION, thinking=True, max_tokens=60, **STRATEGIES[how])
    assert (found.reasoning, found.text) == ("Let me see.\n", "It is 42")


@pytest.mark.parametrize("draft", ["qwen3", "deepseek-r1", "gpt-oss"])
def test_a_draft_in_another_format_is_accepted_all_the_same(
    engines: Callable[..., Any], draft: str
) -> None:
    # Its markers become the target's, and what is final is spelled in its own.
    engine = engines("deepseek-r1", draft, True)
    assert not engine.shared_vocabulary
    found = answer(engine, QUESTION, thinking=True, window=8)
    assert (found.reasoning, found.text) == ("Let me see.\n", "It is 42")
    # All but the first tokens of the answer behind a marker that the draft spells differently.
    assert found.tokens.n_accept >= 7


@pytest.mark.parametrize("window", range(1, 9))
def test_a_marker_may_be_cut_by_every_window(engines: Callable[..., Any], window: int) -> None:
    events = list(
        engines("spelled").stream(ask(QUESTION), Options(strategy="parse", window=window))
    )
    found = check_contract(events, max_tokens=2048)
    assert (found.reasoning, found.text) == ("Let me see.", "It is 42")
    for event in events:
        if isinstance(event, Drafted | Text):
            assert not set(event.text) & set("</>")


def test_no_place_within_a_marker_is_judged(engines: Callable[..., Any]) -> None:
    writer = engines("spelled").target
    prompt = writer.prompt(ask(QUESTION))
    growing = Answer(prompt=prompt, max_tokens=99, parser=writer.parser(prompt))
    tokens = writer.model.tokenize("Let me see.</think>\n\nIt")
    pieces = [writer.model.piece(t) for t in tokens]
    for n in range(len(tokens)):
        seen = growing.seen(tokens[:n], pieces[:n])
        draft = Draft(tokens[:n], pieces[:n], complete=False, shown=seen)
        cuts = candidate_boundaries(draft.text, draft.offsets, delta=1)
        assert cuts == list(range(1, min(n, 4) + 1))
        assert draft.channel == "reasoning"


def test_reasoning_gets_its_own_question(engines: Callable[..., Any]) -> None:
    engine = engines("qwen3", "other")
    writer, how = engine.target, {"accept": "semantic", "tau_full": 1, "tau_prefix": 1, "delta": 1}
    found = answer(engine, QUESTION, thinking=True, max_tokens=60, **how)
    # The draft leaves the target's words at " Six": that and " times" are asked about.
    (only,) = found.rounds
    assert (only.channel, only.n_exact, [b.n_tokens for b in only.boundaries]) == (
        "reasoning",
        4,
        [5, 6],
    )
    marks = writer.thinking.marks
    judge = make_judge(writer.model, writer.template, ask("?"), JudgeWording(), marks=marks)
    assert judge.reasoning is not None
    assert found.tokens.suffix_decoded == 2 * len(judge.reasoning.suffix)
    assert len(judge.reasoning.suffix) != len(judge.prefix.suffix)


def test_a_draft_ends_where_a_block_does(engines: Callable[..., Any]) -> None:
    found = answer(engines("qwen3"), QUESTION, thinking=True, window=100)
    assert [(r.channel, r.n_draft) for r in found.rounds] == [("reasoning", 8), ("answer", 3)]
    assert found.rounds[0].to_json()["channel"] == "reasoning"
    assert "channel" not in found.rounds[1].to_json()


def test_an_answer_that_ends_in_its_reasoning_has_no_text(engines: Callable[..., Any]) -> None:
    for name in ("target", "auto", "windows of 3", "judged", "specreason"):
        how = STRATEGIES[name]
        cut = answer(engines("qwen3"), QUESTION, thinking=True, max_tokens=4, **how)
        assert (cut.reasoning, cut.text, cut.finish_reason) == ("Let me", "", "length")
        open_end = answer(engines("never"), QUESTION, thinking=True, max_tokens=40, **how)
        assert (open_end.reasoning, open_end.text) == ("Let me see.", "")
        assert open_end.finish_reason == "stop"


@pytest.mark.parametrize("strategy", ["target", "parse"])
def test_stop_strings_end_answers_only(engines: Callable[..., Any], strategy: str) -> None:
    for stop in (("see", " 42"), (" 4",)):
        found = answer(engines("qwen3"), QUESTION, thinking=True, strategy=strategy, stop=stop)
        assert (found.reasoning, found.text) == ("Let me see.\n", "It is")


def test_off_is_off_where_the_template_can_and_parsed_where_not(
    engines: Callable[..., Any], files: Callable[..., Path]
) -> None:
    qwen = answer(engines("qwen3"), QUESTION)
    assert (qwen.reasoning, qwen.text) == ("", "It is 42")
    r1 = answer(engines("deepseek-r1"), QUESTION)
    assert (r1.reasoning, r1.text) == ("Let me see.\n", "It is 42")
    oss = answer(engines("gpt-oss"), QUESTION)
    assert (oss.reasoning, oss.text) == ("Let me see.", "It is 42")


def test_a_completion_has_no_channels(engines: Callable[..., Any]) -> None:
    engine = engines("qwen3")
    events = engine.complete("t\n", Options(strategy="target"))
    text = "".join(e.text for e in events if isinstance(e, Text))
    assert text == "<think>\nLet me see.\n</think>\n\nIt is 42"


def test_the_question_closes_an_open_block(engines: Callable[..., Any]) -> None:
    def suffix(name: str) -> str:
        writer = engines(name).target
        marks = writer.thinking.marks
        judge = make_judge(writer.model, writer.template, ask("?"), JudgeWording(), marks=marks)
        model = writer.model
        pieces = [model.piece(t) or model.token_text(t).encode() for t in judge.reasoning.suffix]
        return b"".join(pieces).decode()

    question = JudgeWording().question_reasoning
    assert suffix("qwen3").startswith("\n</think>\n\n<|im_end|>\n<|im_start|>user\n" + question)
    assert suffix("qwen3").endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    # A message of any channel is ended by the end of the turn.
    assert suffix("gpt-oss").startswith("<|end|><|start|>user<|message|>" + question)
    assert suffix("gemma4").startswith("\n<channel|>\n\n<turn|>\n<|turn>user\n" + question)


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("qwen3", ""),
        ("deepseek-r1", "\n</think>\n\n"),
        ("gpt-oss", "<|channel|>final<|message|>"),
        ("gemma4", ""),
    ],
)
def test_a_text_to_be_judged_is_an_answer(
    engines: Callable[..., Any], name: str, added: str
) -> None:
    writer = engines(name).target
    prompt = writer.prompt(ask(QUESTION))
    more = writer.answering(prompt)[len(prompt) :]
    spelled = (writer.model.piece(t) or writer.model.token_text(t).encode() for t in more)
    assert b"".join(spelled).decode() == added
    assert all(b.p_correct is not None for b in engines(name).verify(ask("?"), "42").boundaries)


@pytest.mark.parametrize("name", ["qwen3", "gpt-oss"])
def test_proposals_cross_markers(
    load_once: Callable[..., Any], files: Callable[..., Path], name: str
) -> None:
    pair = {"target": files(name), "draft": files(name), "n_ctx": 512}
    for spec in ("draft", "ngram"):
        engine = load_once(**pair, spec=spec)
        found = answer(engine, QUESTION, strategy="speculative", thinking=True)
        assert (found.reasoning, found.text) == (REASONING.get(name, "Let me see."), "It is 42")


def test_later_turns_reuse_what_the_template_keeps(engines: Callable[..., Any]) -> None:
    engine = engines("deepseek-r1")
    engine.forget()
    first = answer(engine, QUESTION, strategy="target")
    prompt = engine.target.prompt(ask(QUESTION))
    said = {"role": "assistant", "content": first.text, "reasoning_content": first.reasoning}
    again = answer(engine, [*ask(QUESTION), said, *ask("Why?")], strategy="target", max_tokens=3)
    # The template drops what was thought, and with it the opening behind the first question.
    assert again.tokens.reused == len(prompt) - 2
    assert again.usage.prompt_tokens == len(
        engine.target.prompt([*ask(QUESTION), said, *ask("Why?")])
    )


def test_the_command_prints_the_answer_alone(files: Callable[..., Path]) -> None:
    pair = ["--draft", str(files("other")), "--target", str(files("qwen3")), "--ctx", "512"]
    found = CliRunner().invoke(main, ["run", *pair, "--think", "--max-tokens", "40", QUESTION])
    assert (found.exit_code, found.stdout) == (0, "It is 42\n")
    assert "see" not in found.stderr
    found = CliRunner().invoke(main, ["run", *pair, "--think", "--json", QUESTION])
    result = json.loads(found.stdout)
    assert (result["reasoning"], result["text"]) == ("Let me see.\n", "It is 42")


@pytest.mark.parametrize("how", ["target", "auto", "windows of 3", "sampled"])
@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1", "gpt-oss", "gemma4"])
def test_a_grammar_holds_for_the_answer(engines: Callable[..., Any], name: str, how: str) -> None:
    how_options = {"thinking": True, "max_tokens": 60, **STRATEGIES[how]}
    found = answer(engines(name), QUESTION, grammar='root ::= "It" " is"+', **how_options)
    # Behind " is" the model would say " 42", and it can end there.
    assert (found.reasoning, found.text) == (REASONING.get(name, "Let me see."), "It is")
    assert found.finish_reason == "stop"


def test_a_grammar_keeps_a_model_from_thinking_where_that_is_off(
    engines: Callable[..., Any],
) -> None:
    found = answer(engines("qwen3"), QUESTION, grammar='root ::= "<"', max_tokens=9)
    assert (found.reasoning, found.text) == ("", "<")


def test_asking_a_model_to_think_that_cannot_is_said_to_be_idle(
    tiny: Callable[..., Path], files: Callable[..., Path]
) -> None:
    def stderr(file: Path, *options: str) -> str:
        how = ["--strategy", "target", "--target", str(file), "--ctx", "512", "--max-tokens", "2"]
        return CliRunner().invoke(main, ["run", *how, *options, "?"]).stderr

    assert "does not think; --think changes nothing." in stderr(tiny(seed=1), "--think")
    assert "does not think" not in stderr(tiny(seed=1))
    assert "does not think" not in stderr(files("qwen3"), "--think")


class Terminal(io.StringIO):
    """Looks like one."""

    def isatty(self) -> bool:
        return True


def reasoning_shown(out: io.StringIO, err: io.StringIO) -> str:
    """What is written to `err` for a short answer."""
    view = ReasoningView(out, err)
    view.show(Drafted("Hm", 1, "reasoning"))
    view.show(Text("Hm\x1b[2J", "draft", "reasoning"))
    view.show(Text(".", "target", "reasoning"))
    view.show(Text("42", "target"))
    return err.getvalue()


def test_reasoning_goes_to_stderr_where_the_answer_leaves_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = reasoning_shown(io.StringIO(), Terminal())
    assert shown == "\x1b[2mHm\u241b[2J\x1b[22m\x1b[2m.\x1b[22m\n"
    assert reasoning_shown(Terminal(), Terminal()) == ""  # drawn above the answer
    assert reasoning_shown(io.StringIO(), io.StringIO()) == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert reasoning_shown(io.StringIO(), Terminal()) == "Hm\u241b[2J.\n"


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1", "gpt-oss", "gemma4"])
@pytest.mark.parametrize("thinking", [False, True])
def test_an_answer_that_has_begun_is_gone_on_with(
    engines: Callable[..., Any], name: str, thinking: bool
) -> None:
    begun = {"role": "assistant", "content": "It is"}
    found = answer(engines(name), [*ask(QUESTION), begun], thinking=thinking, max_tokens=20)
    assert (found.reasoning, found.text) == ("", " 42")
