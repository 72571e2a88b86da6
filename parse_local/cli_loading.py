"""What the shared options of the commands become: a loaded pair, and options of an answer."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import click

from parse_local.errors import UsageError
from parse_local.load_options import LoadOptions
from parse_local.policy import Options
from parse_local.text_input import file_or_text

_LOAD_NAMES = (
    "n_ctx",
    "n_threads",
    "n_gpu_layers",
    "kv_type",
    "flash_attn",
    "max_forks",
    "n_cached",
    "spec",
    "spec_model",
    "spec_max",
    "tuned",
    "verbose",
)


def load_options(values: dict[str, Any]) -> LoadOptions:
    """How to load, from all values of a command that carries `pair_options`."""
    return LoadOptions(**{name: values[name] for name in _LOAD_NAMES if name in values})


def load(values: dict[str, Any]) -> Any:
    """Load the pair that the options name.

    Args:
        values: all values of a command that carries `pair_options`.

    Returns:
        An Engine.
    """
    from rich.console import Console

    from parse_local.pair import load_pair

    # Commands that generate carry `spec_options`; a model alone, token by token, needs none.
    if "spec" not in values or values.get("strategy") in ("target", "draft"):
        values = {**values, "spec": "none", "spec_model": None, "spec_max": LoadOptions().spec_max}

    # On a terminal only: a spinner in a log file helps nobody.
    waiting = Console(stderr=True).status("Loading…") if sys.stderr.isatty() else nullcontext()
    with nullcontext() if values["verbose"] else waiting:
        engine = load_pair(
            values["pair"],
            draft=values["draft"],
            target=values["target"],
            profile=values["profile"],
            target_only=_target_only(values),
            options=load_options(values),
        )
    if values["verbose"]:
        for placement in engine.placements:
            click.echo(placement, err=True)
    for note in engine.notes:
        click.echo(f"Note: {note}", err=True)
    return engine


def _target_only(values: dict[str, Any]) -> bool:
    if values.get("target_only"):
        return True
    strategy = values.get("strategy")
    needs_draft = values["spec"] == "draft" and values["spec_model"] is None
    return strategy == "target" or (strategy == "speculative" and not needs_draft)


def options_from(values: dict[str, Any]) -> Options:
    """Options of an answer, from all values of a command that carries the options above."""
    tau, tau_prefix = values["tau"], values["tau_prefix"]
    names = Options.__dataclass_fields__
    chosen = {name: value for name, value in values.items() if name in names}
    chosen["tau_full"] = tau
    chosen["tau_prefix"] = tau if tau_prefix is None else tau_prefix
    chosen["grammar"] = _grammar(values.get("json_schema"), values.get("grammar"))
    return Options(**chosen)


def _grammar(json_schema: str | None, grammar: str | None) -> str | None:
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema is a grammar already; leave out one of the two.")
    if json_schema is None:
        return grammar and file_or_text(grammar, is_text="::=" in grammar)
    from parse_local.grammar import schema_grammar

    is_text = json_schema.lstrip()[:1] == "{"
    return schema_grammar(file_or_text(json_schema, is_text=is_text))
