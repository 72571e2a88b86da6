"""`parse-local`: the commands. They parse arguments, call, and print."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import click

from parse_local._version import __version__
from parse_local.cli_bench import bench
from parse_local.cli_calibrate import calibrate
from parse_local.cli_chat import chat
from parse_local.cli_loading import load, options_from
from parse_local.cli_models import models
from parse_local.cli_options import (
    accept_options,
    answer_options,
    grammar_options,
    pair_options,
    plain_option,
)
from parse_local.cli_serve import serve
from parse_local.cli_sessions import sessions
from parse_local.cli_support import INTERRUPTED, Group
from parse_local.cli_tune import tune
from parse_local.errors import UsageError
from parse_local.text_input import read_file, read_stdin, require_text

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Group, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="parse-local")
def main() -> None:
    """Local chat, sped up: a small model drafts, the big one verifies and finishes.

    \b
    Examples:
      parse-local models pull qwen2.5-coder-1.5b
      parse-local chat
      parse-local run "What does HTTP status 418 mean?"
    """


main.add_command(chat)
main.add_command(models)
main.add_command(calibrate)
main.add_command(tune)
main.add_command(bench)
main.add_command(sessions)
main.add_command(serve)


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": prompt}]


@main.command()
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="System prompt.")
@plain_option
@pair_options
@answer_options
@grammar_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object with text, rounds and timings."
)
@click.option(
    "--show-accepted", is_flag=True, help="Mark what came from the draft, and show its verdicts."
)
def run(
    prompt: str | None,
    system: str | None,
    plain: bool,
    as_json: bool,
    show_accepted: bool,
    **values: Any,
) -> None:
    """Answer PROMPT, or what comes on stdin.

    The answer goes to stdout, one line of statistics to stderr.

    \b
    Examples:
      parse-local run "Write a haiku about caches."
      parse-local run --accept semantic --show-accepted "Sort a list in Rust."
      git diff | parse-local run --system "Write a commit message for this diff."
      parse-local run --json-schema person.json "Invent somebody."
      parse-local run --draft small.gguf --target large.gguf --json "Hello" | jq .timings
    """
    from rich.console import Console

    from parse_local.terminal.answering import show_answer
    from parse_local.terminal.colors import print_colors
    from parse_local.terminal.rounds import print_rounds
    from parse_local.terminal.stats import stats_line

    if prompt is None:
        prompt = "" if sys.stdin.isatty() else read_stdin().strip()
    if not require_text(prompt, "The prompt").strip():
        raise UsageError('There is no prompt; give one: parse-local run "Your question".')
    options = options_from(values)
    engine = load(values)
    if options.thinking and not engine.can_think:
        click.echo(f"{engine.pair_name} does not think; --think changes nothing.", err=True)
    # Where the whole result is printed at the end, nothing is drawn before.
    out = io.StringIO() if as_json or show_accepted else None
    result = show_answer(engine, _messages(prompt, system), options, out=out, markdown=not plain)
    if as_json:
        click.echo(json.dumps(result.to_json(), ensure_ascii=False))
    elif show_accepted:
        console = Console()
        print_colors(result, console)
        print_rounds(result, console)
    if not as_json:
        click.echo(stats_line(result, n_ctx=engine.n_ctx), err=True)
    if result.finish_reason == "cancelled":
        raise click.exceptions.Exit(INTERRUPTED)


@main.command()
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The question.",
)
@click.option(
    "--draft-file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The answer to judge.",
)
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option(
    "--sequential",
    is_flag=True,
    help="Also judge every prefix by a separate plain pass, and compare.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pair_options
@accept_options
def verify(
    prompt_file: Path,
    draft_file: Path,
    system: str | None,
    sequential: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Judge any text as an answer: the target's verdict at every place where it may be cut.

    \b
    Examples:
      parse-local verify --prompt-file question.txt --draft-file answer.txt
      parse-local verify --prompt-file q.txt --draft-file a.txt --sequential --json
    """
    from rich.console import Console

    from parse_local.policy import resolve
    from parse_local.terminal.interrupt import interruptible
    from parse_local.terminal.verdicts import print_verdicts

    question, text = read_file(prompt_file).strip(), read_file(draft_file).rstrip("\n")
    options = options_from(values)
    engine = load({**values, "target_only": True})
    messages = _messages(question, system)

    passes = (False, True) if sequential else (False,)
    work = (engine.verify(messages, text, options=options, sequential=s) for s in passes)
    parallel, *others = interruptible(engine, work)
    plain = others[0] if others else None
    policy = resolve(options, engine.profile)
    if as_json:
        found = _verification_json(parallel, plain, engine.profile.fusion)
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    print_verdicts(
        text,
        parallel,
        console=Console(),
        tau_full=policy.tau_full,
        tau_prefix=policy.tau_prefix,
        sequential=plain,
        fusion=engine.profile.fusion,
    )


def _verification_json(parallel: Any, plain: Any | None, fusion: Any | None) -> dict[str, Any]:
    found = {
        **parallel.to_json(),
        "n_chars": [b.n_chars for b in parallel.boundaries],
        "complete": [b.complete for b in parallel.boundaries],
        "terms": [dict(b.terms) for b in parallel.boundaries],
    }
    if fusion is not None:
        found["parts"] = [fusion.parts(b.terms) for b in parallel.boundaries]
        found["score"] = [fusion.score(b.terms) for b in parallel.boundaries]
    if plain is not None:
        found["p_correct_sequential"] = [b.p_correct for b in plain.boundaries]
    return found


@main.command()
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Look at one GGUF, or model of the catalogue, instead: what it can do here, and how.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(model: Path | None, as_json: bool) -> None:
    """Check this installation: library, devices, memory, models.

    Exits with 1 where something would keep the default pair, or the FILE, from running.

    \b
    Examples:
      parse-local doctor
      parse-local doctor --model some-model.gguf
      parse-local doctor --model smollm2-135m
    """
    from parse_local.doctor import examine, print_report
    from parse_local.doctor_model import ModelReport, examine_model, print_model_report
    from parse_local.pair import locate

    report = examine() if model is None else examine_model(locate(model))
    if as_json:
        click.echo(json.dumps(report.to_json(), ensure_ascii=False, indent=2))
    elif isinstance(report, ModelReport):
        print_model_report(report)
    else:
        print_report(report)
    if report.problems:
        raise click.exceptions.Exit(1)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script.

    \b
    Examples:
      eval "$(parse-local completion bash)"
      parse-local completion fish > ~/.config/fish/completions/parse-local.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "parse-local", "_PARSE_LOCAL_COMPLETE").source())


if __name__ == "__main__":
    main()
