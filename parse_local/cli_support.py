"""What every command shares: an error is one sentence on stderr and an exit status."""

from __future__ import annotations

import errno
import sys
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from parse_local.errors import ParseLocalError, UsageError
from parse_local.hub.storage import storage_error

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""


_PIPE_WIDTH = 200
"""Columns of a table that no terminal limits."""


def print_table(table: Table) -> None:
    """To stdout; a pipe gets whole lines, as no terminal limits them."""
    console = Console(
        width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False
    )
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def confirm(question: str) -> bool:
    """Ask on stderr; no is the default.

    Raises:
        UsageError: nobody is there to ask; `--yes` is the remedy.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        if sys.stdin.isatty():
            raise
        raise UsageError("There is nobody to ask; give --yes to do it without asking.") from None


class Group(click.Group):
    """A click group whose commands never end in a traceback.

    ParseLocalError and errors of the operating system become one sentence,
    Ctrl-C becomes exit status 130. Other exceptions are bugs and pass through.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, translating what it raises."""
        try:
            return super().invoke(ctx)
        except ParseLocalError as error:
            _fail(str(error), error.exit_status)
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # `… | head`: click ends quietly
                raise
            _fail(_sentence(error), 1)


def _fail(message: str, exit_status: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    raise click.exceptions.Exit(exit_status)


def _sentence(error: OSError) -> str:
    if error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return str(storage_error(error))
    return f"The operating system refused: {error.strerror or error}."
