"""`parse-local tune`: find out what runs fastest here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from parse_local.cli_options import file_options
from parse_local.load_options import MAX_THREADS

if TYPE_CHECKING:
    from pathlib import Path

    from parse_local.tune.check import Role
    from parse_local.tune.found import Request
    from parse_local.tune.store import Record

_BUDGET_S, _TARGET_BUDGET_S = 110.0, 300.0


@click.command()
@file_options
@click.option(
    "--gpu-layers",
    "n_gpu_layers",
    type=click.IntRange(min=-1),
    default=-1,
    help="Layers of each model on the GPU.  [default: as many as fit, the draft first]",
)
@click.option(
    "--threads",
    "n_threads",
    type=click.IntRange(1, MAX_THREADS),
    help="CPU threads, instead of finding out how many are fastest.",
)
@click.option(
    "--requantise-target",
    is_flag=True,
    help="Look for a faster quantisation of the target too. It changes the answers.",
)
@click.option("--again", is_flag=True, help="Measure even what is known already.")
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help=f"Time to stay below; what does not fit is left out.  [default: {_BUDGET_S:g}, "
    f"or {_TARGET_BUDGET_S:g} with --requantise-target]",
)
@click.option(
    "--reset",
    is_flag=True,
    help="Remove results and requantised files: those of the files named, else all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tune(
    pair: str | None,
    draft: str | None,
    target: str | None,
    n_gpu_layers: int,
    n_threads: int | None,
    requantise_target: bool,
    again: bool,
    budget_s: float | None,
    reset: bool,
    as_json: bool,
) -> None:
    """Measure what this machine runs fastest, and use it from then on.

    Times decodes of every size, thread counts, flash attention and KV types, and
    requantisations of the draft, each compared with the original before it is used. The
    target's file stays as it is unless --requantise-target is given. Results are kept for
    these files on this machine; --no-tuned leaves them out of a single run.

    \b
    Examples:
      parse-local tune
      parse-local tune --draft small.gguf --target large.gguf --requantise-target
      parse-local tune --reset
    """
    from rich.console import Console

    from parse_local.hub.storage import format_size
    from parse_local.tune import store
    from parse_local.tune.report import print_report, to_json

    if reset and not (pair or draft or target):
        click.echo(f"Removed everything ({format_size(store.reset())} freed).", err=True)
        return
    paths = _paths(pair, draft, target)
    if reset:
        freed = format_size(store.reset(paths.items()))
        click.echo(f"Removed the results of these files ({freed} freed).", err=True)
        return
    requests = _requests(paths, n_gpu_layers, n_threads, requantise_target)
    records = {} if again else _known(requests)
    if not records:
        usual = _TARGET_BUDGET_S if requantise_target else _BUDGET_S
        records = _measure(requests, budget_s or usual)
    elif not as_json:
        click.echo("Measured before; --again measures anew, --reset undoes it.", err=True)
    if as_json:
        click.echo(json.dumps(to_json(records), ensure_ascii=False))
    else:
        width = None if sys.stdout.isatty() else 200  # a pipe gets whole lines
        print_report(records, Console(width=width, highlight=False))


def _paths(pair: str | None, draft: str | None, target: str | None) -> dict[Role, Path]:
    from parse_local.pair import find_files
    from parse_local.tune.apply import ROLES

    _, paths = find_files(pair, draft, target, False)
    return {role: paths[role] for role in ROLES if role in paths}


def _requests(
    paths: dict[Role, Path], n_gpu_layers: int, n_threads: int | None, requantise_target: bool
) -> dict[Role, Request]:
    from parse_local.load_options import LoadOptions
    from parse_local.pair import plan_files
    from parse_local.profile import Profile
    from parse_local.tune.found import Request

    options = LoadOptions(n_gpu_layers=n_gpu_layers, spec="none")
    plan = plan_files({str(role): path for role, path in paths.items()}, options, Profile())
    return {
        role: Request(
            path,
            n_gpu_layers=plan.placements[role].n_gpu_layers,
            requantise=role == "draft" or requantise_target,
            n_threads=n_threads,
        )
        for role, path in paths.items()
    }


def _known(requests: dict[Role, Request]) -> dict[Role, Record]:
    """Results of all the files, {} where one is missing or was measured otherwise."""
    from parse_local.tune import store

    found: dict[Role, Record] = {}
    for role, request in requests.items():
        try:
            record = store.find(role, request.path)
        except store.BrokenResultError:
            return {}  # to be measured again, and replaced
        if (
            record is None
            or record.n_gpu_layers != request.n_gpu_layers
            or request.n_threads not in (None, record.n_threads)
            or (request.requantise and not record.candidates)
        ):
            return {}
        found[role] = record
    return found


def _measure(requests: dict[Role, Request], budget_s: float) -> dict[Role, Record]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from parse_local.errors import Cancelled
    from parse_local.terminal.interrupt import interruptible
    from parse_local.tune.tuner import Tuner

    tuner = Tuner(requests, budget_s=budget_s)
    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=1.0)
        try:
            for step in interruptible(tuner, tuner.run()):
                bar.update(task, description=step.text, completed=step.done)
        except Cancelled:
            raise KeyboardInterrupt from None
    return tuner.records
