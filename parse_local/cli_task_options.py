"""Options of the commands that answer a task's problems: `bench` and `calibrate`."""

from __future__ import annotations

from collections.abc import Callable

import click

from parse_local.cli_options import Command, apply_options


def task_options(*, n: int, default: str | None = None) -> Callable[[Command], Command]:
    """Which problems: `--task`, `--n`, `--seed`, `--allow-exec`.

    Args:
        n: default number of problems.
        default: default task; None for none.
    """

    def decorate(command: Command) -> Command:
        return apply_options(
            command,
            [
                click.option(
                    "--task",
                    default=default,
                    show_default=default is not None,
                    metavar="NAME|FILE",
                    help="humaneval, gsm-symbolic, reasoning-gym, generated (those two in turn), "
                    "or a JSONL file of prompts with references or checkers.",
                ),
                click.option(
                    "--n",
                    type=click.IntRange(min=1),
                    default=n,
                    show_default=True,
                    help="Most problems answered.",
                ),
                click.option(
                    "--seed",
                    type=click.IntRange(min=0),
                    default=0,
                    show_default=True,
                    help="Seed of generated problems, and of what else is drawn.",
                ),
                click.option(
                    "--allow-exec",
                    is_flag=True,
                    help="Run code that the models write (HumanEval), in a sandbox.",
                ),
            ],
        )

    return decorate
