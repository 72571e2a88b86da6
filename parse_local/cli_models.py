"""`parse-local models`: list, pull, info, path, rm."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table

from parse_local import hub
from parse_local.catalog import Catalog, HubSource, Model, Pair, load_catalog
from parse_local.cli_support import INTERRUPTED, Group, confirm, print_table
from parse_local.policy import DEFAULT_PAIR


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    catalog = load_catalog()
    return [
        CompletionItem(name, help=(catalog.pairs.get(name) or catalog.models[name]).description)
        for name in catalog.names
        if name.startswith(incomplete)
    ]


_name = click.argument("name", shell_complete=_complete)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group)
def models() -> None:
    """Fetch, list and remove models.

    NAME is a pair (a draft and a target, such as qwen2.5-coder-1.5b) or a
    single model (such as smollm2-135m). Any two GGUF files of your own work
    without this: give them with --draft and --target.

    \b
    Example:
      parse-local models pull qwen2.5-coder-1.5b
    """


@models.command("list")
@_json
def list_command(as_json: bool) -> None:
    """List the pairs and models of the catalogue, and which are here.

    \b
    Example:
      parse-local models list
    """
    catalog = load_catalog()
    if as_json:
        _print_json(
            {
                "pairs": [_describe_pair(pair) for pair in catalog.pairs.values()],
                "models": [_describe_model(model) for model in catalog.models.values()],
            }
        )
        return
    pairs = _table("Pair", "Draft → target", "Size", "Here", "Tested", "Licence")
    for pair in catalog.pairs.values():
        default = " *" if pair.name == DEFAULT_PAIR else ""
        pairs.add_row(
            f"{pair.name}{default}",
            f"{pair.draft.parameters} → {pair.target.parameters}",
            hub.format_size(sum(model.size for model in pair.models)),
            _state(pair.models),
            "yes" if pair.tested else "no",
            pair.target.licence,
        )
    singles = _table("Model", "Quantisation", "Size", "Here", "Licence")
    for model in catalog.models.values():
        singles.add_row(
            model.name,
            model.quantisation,
            hub.format_size(model.size),
            _state([model]),
            model.licence,
        )
    print_table(pairs)
    click.echo("* what parse-local uses when you name no pair\n")
    print_table(singles)


@models.command("pull")
@_name
def pull_command(name: str) -> None:
    """Download a pair or a single model.

    What is already here is not fetched again, and nothing is asked of the
    network then. An interrupted pull goes on where it stopped.

    \b
    Example:
      parse-local models pull qwen2.5-coder-1.5b
    """
    wanted = load_catalog().resolve(name)
    with _Display() as display:
        try:
            hub.pull(wanted, display)
        except KeyboardInterrupt:
            display.note(
                f"Stopped; what has arrived is kept. `parse-local models pull {name}` goes on."
            )
            raise click.exceptions.Exit(INTERRUPTED) from None


@models.command("info")
@_name
@_json
def info_command(name: str, as_json: bool) -> None:
    """Show a pair's or model's sources, checksum, licence and place.

    \b
    Example:
      parse-local models info qwen2.5-coder-1.5b
    """
    catalog = load_catalog()
    wanted = catalog.resolve(name)
    pair = catalog.pairs.get(name)
    if as_json:
        _print_json(_describe_pair(pair, full=True) if pair else _describe_model(wanted[0]))
        return
    if pair:
        _print_facts(_pair_facts(pair))
    for role, model in zip(("draft", "target") if pair else ("model",), wanted, strict=True):
        if pair:
            click.echo()
        _print_facts([(role, model.name), *_model_facts(model)])


@models.command("path")
@_name
def path_command(name: str) -> None:
    """Print the files of a pair or model, one a line, draft first.

    \b
    Example:
      llama-cli -m "$(parse-local models path smollm2-135m)"
    """
    for path in hub.paths(name, catalog=load_catalog()):
        click.echo(path)


@models.command("rm")
@_name
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rm_command(name: str, yes: bool) -> None:
    """Remove a pair's or model's files from this machine.

    Removing a pair keeps a model that another pair on this machine uses; name
    the model itself to remove it all the same. Files in the Hugging Face cache
    are never removed.

    \b
    Example:
      parse-local models rm qwen2.5-coder-7b
    """
    catalog = load_catalog()
    doomed = []
    for model in catalog.resolve(name):
        user = _other_user(catalog, catalog.pairs[name], model) if name in catalog.pairs else None
        if user:
            _say(f"{model.name} is kept: the pair {user.name} uses it.")
        elif hub.presence(model).shared:
            _say(f"{model.name} is kept: it lies in the Hugging Face cache.")
            doomed += [model] if hub.leftovers(model) else []
        elif hub.leftovers(model):
            doomed.append(model)
        else:
            _say(f"{model.name} is not here.")
    if not doomed or not (yes or _confirm(doomed)):
        return
    for model in doomed:
        _say(f"{model.name} is removed ({hub.format_size(hub.remove(model))} freed).")


def _other_user(catalog: Catalog, pair: Pair, model: Model) -> Pair | None:
    """Another pair that is complete on this machine and needs the model."""
    return next(
        (
            other
            for other in catalog.pairs.values()
            if other != pair and model in other.models and all(map(hub.local_path, other.models))
        ),
        None,
    )


def _confirm(doomed: list[Model]) -> bool:
    names = ", ".join(model.name for model in doomed)
    size = hub.format_size(sum(map(hub.leftovers, doomed)))
    return confirm(f"Remove {names} ({size})?")


def _describe_pair(pair: Pair, *, full: bool = False) -> dict[str, Any]:
    return {
        "name": pair.name,
        "draft": _describe_model(pair.draft) if full else pair.draft.name,
        "target": _describe_model(pair.target) if full else pair.target.name,
        "size": sum(model.size for model in pair.models),
        "present": all(map(hub.local_path, pair.models)),
        "tested": pair.tested,
        "default": pair.name == DEFAULT_PAIR,
        "description": pair.description,
    }


def _describe_model(model: Model) -> dict[str, Any]:
    here = hub.presence(model)
    return {
        "name": model.name,
        "file": model.file,
        "size": model.size,
        "sha256": model.sha256,
        "licence": model.licence,
        "parameters": model.parameters,
        "quantisation": model.quantisation,
        "description": model.description,
        "state": here.state,
        "bytes": here.done,
        "path": str(here.path) if here.path else None,
        "sources": [
            {
                "kind": "hub",
                "repo": source.repo,
                "file": source.file,
                "revision": source.revision,
            }
            if isinstance(source, HubSource)
            else {"kind": "wheels", "wheels": [wheel.requirement for wheel in source.wheels]}
            for source in model.sources
        ],
    }


def _pair_facts(pair: Pair) -> Iterable[tuple[str, str]]:
    yield "pair", pair.name
    yield "use", pair.description
    yield "size", hub.format_size(sum(model.size for model in pair.models))
    yield "tested", "yes" if pair.tested else "no, only its files are known"


def _model_facts(model: Model) -> Iterable[tuple[str, str]]:
    yield "about", f"{model.description}, {model.parameters} parameters, {model.quantisation}"
    yield "file", f"{model.file} ({model.size:,} bytes)"
    yield "sha256", model.sha256 or "as the hub gives it"
    yield "licence", model.licence
    for source in model.sources:
        revision = f" at {source.revision}" if isinstance(source, HubSource) else ""
        yield "source", f"{source}{revision}"
    here = hub.presence(model)
    if here.path:
        yield "path", f"{here.path}{' (in the Hugging Face cache)' if here.shared else ''}"
    else:
        arrived = f" ({hub.format_size(here.done)} from an interrupted pull)" if here.done else ""
        yield "path", f"not here{arrived}"


def _state(wanted: Iterable[Model]) -> str:
    """ "yes", "no", "43%" or "draft only", whichever says most."""
    states = [hub.presence(model) for model in wanted]
    if all(state.path for state in states):
        return "yes"
    if len(states) == 2 and any(state.path for state in states):
        return "draft only" if states[0].path else "target only"
    done, total = sum(s.done for s in states), sum(m.size for m in wanted)
    return f"{max(1, 100 * done // total)}%" if done else "no"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column == "Size" else "left",
            no_wrap=True,
            overflow="fold",
        )
    return table


def _print_facts(facts: Iterable[tuple[str, str]]) -> None:
    for key, value in facts:
        click.echo(f"{click.style(f'{key:<8}', bold=True)} {value}")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    click.echo(text, err=True)


class _Display(hub.Progress):
    """A pull on stderr: a bar in a terminal, a line at every tenth elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._name = ""
        self._total = 0
        self._tenth = 0

    def __enter__(self) -> _Display:
        if self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=None),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def begin(self, task: str, done: int, total: int) -> None:
        self._name, self._total, self._tenth = task, total, 10 * done // total
        if self._bar:
            self._task = self._bar.add_task(task, total=total, completed=done)

    def update(self, done: int) -> None:
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done)
        elif 10 * done // self._total > self._tenth:
            self._tenth = 10 * done // self._total
            self.note(f"{self._name}: {self._tenth * 10}% of {hub.format_size(self._total)}")

    def end(self) -> None:
        if self._bar and self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
