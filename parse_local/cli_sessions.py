"""`parse-local sessions`: list, show, export, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from rich.table import Table
from rich.text import Text

from parse_local.cli_support import confirm, print_table
from parse_local.errors import ParseLocalError, StorageError, UsageError
from parse_local.paths import sessions_file
from parse_local.sessions import Session, SessionStore, open_store
from parse_local.sessions.export import FORMATS, Format, export, local_time, session_to_row


def complete_session(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """IDs of sessions for the shell, with their titles."""
    try:
        with _opened() as store:
            found = store.sessions() if store else []
    except ParseLocalError:  # a shell that completes shows no errors
        return []
    return [CompletionItem(s.id, help=s.title) for s in found if s.id.startswith(incomplete)]


@contextmanager
def _opened() -> Iterator[SessionStore | None]:
    """The store, None where nothing has been kept yet; looking creates no file."""
    path = sessions_file()
    if not path.exists():
        yield None
        return
    store, note = open_store(path)
    if note:
        click.echo(f"Note: {note}", err=True)
    with store:
        yield store


def _required(store: SessionStore | None) -> SessionStore:
    if store is None:
        raise UsageError("There is no session yet; `parse-local chat` begins one.")
    return store


@click.group()
def sessions() -> None:
    """Chats that were kept: list, show, export and delete them.

    An ID may be shortened to a beginning that no other session has.
    `parse-local chat --resume ID` goes on with one.
    """


_id = click.argument("id", shell_complete=complete_session)


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(as_json: bool) -> None:
    """List all sessions, the latest first.

    \b
    Example:
      parse-local sessions list
    """
    with _opened() as store:
        found = store.sessions() if store else []
    if as_json:
        rows = [session_to_row(s) for s in found]
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    elif not found:
        click.echo("There is no session yet; `parse-local chat` begins one.", err=True)
    else:
        print_table(_table(found))


def _table(found: list[Session]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ID", "Last used", "Messages", "Models", "Title"):
        right = column == "Messages"
        # Where room is short, the title and the models give way: an ID is typed as it stands.
        gives_way = column in ("Models", "Title")
        table.add_column(column, justify="right" if right else "left", no_wrap=not gives_way)
    table.columns[0].min_width = max(len(s.id) for s in found)
    for s in found:
        n, pair, title = str(s.n_messages), _one_line(s.pair), _one_line(s.title)
        table.add_row(s.id, local_time(s.updated), n, pair, title)
    return table


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


@sessions.command()
@_id
@click.option("--reasoning", is_flag=True, help="Also what a thinking model wrote before answers.")
def show(id: str, reasoning: bool) -> None:
    """Print a session.

    \b
    Example:
      parse-local sessions show 3f2a
    """
    from rich.console import Console

    from parse_local.terminal.transcript import print_messages

    with _opened() as store:
        session = _required(store).find(id)
        messages = _required(store).messages(session.id)
    console = Console()
    title = f"{session.title}\n{session.pair} · {local_time(session.created)} · {session.id}\n"
    console.print(title, style="dim", highlight=False, markup=False)
    print_messages(messages, console, reasoning=reasoning)


@sessions.command("export")
@_id
@click.option(
    "--format",
    "format",
    type=click.Choice(FORMATS),
    default="markdown",
    show_default=True,
    help="A document for people, or everything that is kept.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to FILE instead of stdout.",
)
def export_command(id: str, format: Format, output: Path | None) -> None:
    """Write a session as Markdown or JSON.

    \b
    Examples:
      parse-local sessions export 3f2a > chat.md
      parse-local sessions export 3f2a --format json --output chat.json
    """
    with _opened() as store:
        session: Session = _required(store).find(id)
        text = export(session, _required(store).messages(session.id), format)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write {output}: {error.strerror}.") from error


@sessions.command()
@click.argument("ids", nargs=-1, metavar="[ID]...", shell_complete=complete_session)
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def delete(ids: tuple[str, ...], everything: bool, yes: bool) -> None:
    """Delete sessions; their text is overwritten on the disk.

    \b
    Examples:
      parse-local sessions delete 3f2a
      parse-local sessions delete --all --yes
    """
    if bool(ids) == everything:
        raise UsageError("Name the sessions to delete, or give --all.")
    with _opened() as store:
        if everything:
            doomed = store.sessions() if store else []
        else:
            doomed = list({s.id: s for s in map(_required(store).find, ids)}.values())
        if not doomed:
            click.echo("There is no session to delete.", err=True)
            return
        one = len(doomed) == 1
        what = f"the session “{doomed[0].title}”" if one else f"{len(doomed)} sessions"
        if not (yes or confirm(f"Delete {what}?")):
            return
        _required(store).delete([s.id for s in doomed])
    click.echo("1 session is deleted." if one else f"{len(doomed)} sessions are deleted.", err=True)
