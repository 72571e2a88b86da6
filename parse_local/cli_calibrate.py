"""`parse-local calibrate`: thresholds with a guarantee, from answers that can be checked."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import click

from parse_local._version import __version__
from parse_local.cli_loading import load
from parse_local.cli_options import pair_options
from parse_local.cli_task_options import task_options
from parse_local.errors import CalibrationError, Cancelled, UsageError


@click.command()
@pair_options
@task_options(n=200)
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="Accuracy that may be lost against the target alone.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.95,
    show_default=True,
    help="That no more is lost.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Answers collected earlier, instead of new ones; may be given again.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the profile goes, its picture beside it.  [default: the user's data directory]",
)
def calibrate(
    task: str | None,
    n: int,
    max_drop: float,
    confidence: float,
    seed: int,
    data: tuple[Path, ...],
    out: Path | None,
    allow_exec: bool,
    **values: Any,
) -> None:
    """Choose how much of a draft may be accepted, with a guarantee on the accuracy lost.

    Both models answer the task's problems, which takes a while and goes on where it was
    stopped. A part of them fits the weights of the evidence, another proves a threshold, a third
    checks it. The profile is used from then on; where nothing can be proven, the pair
    stays lossless.

    \b
    Examples:
      parse-local calibrate --task humaneval --n 164 --allow-exec
      parse-local calibrate --task generated --n 800 --max-drop 2
      parse-local calibrate --draft small.gguf --target large.gguf --task my-problems.jsonl
      parse-local calibrate --data answers.jsonl --out profile.toml
    """
    from rich.console import Console

    from parse_local.calibration import calibrate as calibration
    from parse_local.calibration.report import plotting, print_outcome, save_picture
    from parse_local.calibration.samples import read_samples
    from parse_local.calibration.wordings import WORDINGS
    from parse_local.fingerprint import fingerprint
    from parse_local.load_options import LoadOptions
    from parse_local.profile import FittedFile, dump_profile, user_profile

    if not (task or data):
        raise UsageError("Say what to calibrate on: --task TASK, or --data FILE.")
    if task and data:
        raise UsageError("--data takes the place of --task; give one of them.")
    plotting()
    engine = load({**values, "max_forks": LoadOptions().max_forks})
    if engine.draft is None:
        raise UsageError("Calibration compares two models; name a pair or give --draft FILE.")
    name = engine.profile.name
    if task:
        data = (_collect(engine, task, n, seed, allow_exec, values),)
    files = {"target": engine.target.model.path, "draft": engine.draft.model.path}
    engine.close()

    pair = f"{files['draft'].name} + {files['target'].name}"
    samples = read_samples(data, seed=seed, pair=pair)
    outcome = calibration.calibrate(
        samples, max_drop=max_drop / 100, confidence=confidence, seed=seed
    )
    if outcome.fit.wording not in WORDINGS:
        raise CalibrationError(
            f"The wording {outcome.fit.wording!r} is not one of this version's; collect again."
        )
    fitted = {role: FittedFile(path.name, fingerprint(path)) for role, path in files.items()}
    profile = replace(
        calibration.profile_of(outcome, engine.profile, WORDINGS[outcome.fit.wording]),
        target=fitted["target"],
        drafts=(fitted["draft"],),
    )
    origin = {
        "date": date.today().isoformat(),
        "parse_local": __version__,
        "tasks": sorted({s.task for s in samples}),
        "data": [path.name for path in data],
        **calibration.fitted_table(outcome),
    }
    console = Console()
    print_outcome(outcome, console)
    place = out or user_profile(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(dump_profile(profile, origin), encoding="utf-8")
    picture = place.with_suffix(".png")
    save_picture(picture, outcome, f"{name}: {', '.join(origin['tasks'])}")
    click.echo(f"Profile: {place}\nPicture: {picture}")


def _collect(
    engine: Any, task: str, n: int, seed: int, allow_exec: bool, values: dict[str, Any]
) -> Path:
    """Answers of both models, in a file that a later run goes on with."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from parse_local.bench.tasks import load_task
    from parse_local.calibration.collect import collect, read_collected
    from parse_local.load_options import LoadOptions
    from parse_local.paths import data_dir
    from parse_local.terminal.interrupt import interruptible

    problems = load_task(task, n=n, seed=seed)
    task = Path(task).stem if Path(task).is_file() else task
    pair = f"{engine.draft.model.path.stem}+{engine.target.model.path.stem}"
    stem = re.sub(r"[^A-Za-z0-9._+-]", "_", f"{pair}-{task}-{seed}")
    path = data_dir() / "calibration" / f"{stem}.jsonl"
    wanted = {p.name for p in problems}
    done = len(wanted & set(read_collected(path)))
    how = LoadOptions(kv_type=values["kv_type"], flash_attn=values["flash_attn"])
    found = collect(engine, problems, path, task=task, allow_exec=allow_exec, load=how)
    columns = (
        TextColumn("Answering"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    click.echo(f"Answers are kept in {path}", err=True)
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("", total=len(problems), completed=done)
        try:
            for _ in interruptible(engine, found):
                progress.advance(bar)
        except Cancelled:
            raise Cancelled("Interrupted; the same command goes on from there.") from None
    return path
