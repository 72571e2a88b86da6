"""`parse-local bench`: strategies side by side on problems with checkable answers."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from parse_local.cli_loading import load, load_options
from parse_local.cli_options import pair_options, spec_options
from parse_local.cli_support import INTERRUPTED
from parse_local.cli_task_options import task_options
from parse_local.errors import UsageError

if TYPE_CHECKING:
    from parse_local.bench.record import Record
    from parse_local.bench.session import Session
    from parse_local.bench.summary import Row

_STRATEGIES = "target,speculative,specreason,parse,auto"


@click.command()
@pair_options
@spec_options
@task_options(n=40, default="humaneval")
@click.option(
    "--start",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="First problem, from 0.",
)
@click.option(
    "--strategies",
    default=_STRATEGIES,
    show_default=True,
    metavar="LIST",
    help="Strategies, with options of their own, as auto:accept=exact or "
    "parse:accept=semantic,window=64; target is always among them.",
)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Times that everything is answered.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Most tokens of an answer.  [default: the problem's own]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where answers and reports go; an interrupted run goes on from there.  "
    "[default: a new one in the user's data directory]",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="PEER",
    help="Another program in the same run: llama-server=PATH (its modes: "
    "target, draft-16, draft-3, ngram; PATH,modes=target+ngram chooses), openai=URL[,model=NAME] "
    "(the key comes from OPENAI_API_KEY), or mlx_lm=MODEL on Apple Silicon; may be given again.",
)
def bench(
    task: str,
    n: int,
    start: int,
    seed: int,
    strategies: str,
    repeat: int,
    max_tokens: int | None,
    out: Path | None,
    allow_exec: bool,
    peers: tuple[str, ...],
    **values: Any,
) -> None:
    """Compare strategies, problem by problem in one run: accuracy, speed, where the time goes.

    Writes answers.jsonl, summary.json, summary.md, plots, and index.html, where every answer can
    be opened. Ctrl-C ends it and reports what is complete; the same command goes on with --out.

    \b
    Examples:
      parse-local bench --task humaneval --n 20 --allow-exec --out results
      parse-local bench --task mine.jsonl --strategies parse,auto:accept=exact
      parse-local bench --task generated --peer llama-server=/usr/local/bin/llama-server
    """
    from parse_local.bench.peers import parse_peer
    from parse_local.bench.session import Plan, Session
    from parse_local.bench.systems import parse_strategies
    from parse_local.bench.tasks import load_task

    items = parse_strategies(strategies)
    specs = [parse_peer(p) for p in peers]
    problems = load_task(task, start=start, n=n, seed=seed)
    if not allow_exec and any(p.runs_code for p in problems):
        raise UsageError(
            f"{task} runs code that the models write, in a sandbox; say --allow-exec if it may, "
            "or choose another --task."
        )
    with ExitStack() as stack:
        engine = load(values)
        stack.callback(engine.close)
        where = out or _new_directory(engine.pair_name, task)
        plan = Plan(
            task=f"{Path(task).name} from {start}" + (f", seed {seed}" if seed else ""),
            problems=problems,
            items=items,
            peers=specs,
            repeat=repeat,
            max_tokens=max_tokens,
            load=load_options(values),
        )
        session = stack.enter_context(closing(Session(engine, plan, where)))
        _answer(session)
        rows, note = session.report()
    _print(rows, where / "summary.md")
    if note:
        click.echo(f"Note: {note}", err=True)
    click.echo(f"Everything is in {where}; open {where / 'index.html'}", err=True)
    if session.stop.pressed:
        raise click.exceptions.Exit(INTERRUPTED)


def _new_directory(pair: str, task: str) -> Path:
    from parse_local.paths import data_dir

    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    return data_dir() / "bench" / f"{stamp}-{pair}-{Path(task).stem}"


def _answer(session: Session) -> None:
    from parse_local.terminal.interrupt import on_interrupt

    with on_interrupt(session.stop.press):
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            _answer_with_bar(session)
        else:
            _answer_with_lines(session)


def _answer_with_lines(session: Session) -> None:
    done = total = 0

    def begun(n_total: int, n_there: int) -> None:
        nonlocal done, total
        done, total = n_there, n_total

    def finished(record: Record) -> None:
        nonlocal done
        done += 1
        click.echo(f"{done}/{total} {_line(record)}", err=True)

    session.run(lambda text: click.echo(text, err=True), begun, finished)


def _answer_with_bar(session: Session) -> None:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        refresh_per_second=1,  # drawing takes time from what is measured
        speed_estimate_period=3600,  # answers differ in length
    )
    task = bar.add_task("warming up", total=None)

    def begun(total: int, there: int) -> None:
        bar.reset(task, total=total, completed=there, description="")

    def finished(record: Record) -> None:
        bar.update(task, advance=1, description=_line(record))

    with bar:
        session.run(lambda text: bar.update(task, description=text), begun, finished)


def _line(record: Record) -> str:
    speed = record.n_tokens / record.timings.total_s if record.timings.total_s else 0.0
    verdict = "right" if record.correct else "wrong"
    return f"{record.problem} {record.strategy}: {verdict}, {speed:.1f} tok/s"


def _print(rows: list[Row], report: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from parse_local.bench.report import terminal_columns

    if not sys.stdout.isatty() or not rows:
        click.echo(report.read_text(encoding="utf-8"), nl=False)
        return
    columns = terminal_columns()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for heading, _ in columns:
        first = heading == columns[0][0]
        table.add_column(heading, no_wrap=not first, overflow="fold")
    for row in rows:
        table.add_row(*[Text(text(row)) for _, text in columns])
    Console().print(table)
