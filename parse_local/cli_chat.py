"""`parse-local chat`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from parse_local.cli_loading import load, load_options, options_from
from parse_local.cli_options import answer_options, pair_options, plain_option
from parse_local.cli_sessions import complete_session
from parse_local.errors import SessionError, UsageError
from parse_local.paths import sessions_file
from parse_local.policy import DEFAULT_PAIR, Options
from parse_local.sessions import Session, SessionStore, open_store
from parse_local.sessions.record import models_to_json, options_from_json
from parse_local.terminal.context_limit import CONTEXT_FULL, ContextFull

_MODELS = ("pair", "draft", "target")


@click.command()
@click.argument("message", metavar="[QUESTION]", required=False)
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--quiet", is_flag=True, help="No greeting, no statistics.")
@plain_option
@click.option(
    "--resume",
    is_flag=False,
    flag_value="",
    metavar="[ID]",
    shell_complete=complete_session,
    help="Go on with an earlier session, the latest one without ID.",
)
@click.option(
    "--no-history", is_flag=True, help="Keep nothing: no session, and nothing of what is typed."
)
@click.option(
    "--context-full",
    type=click.Choice(CONTEXT_FULL),
    help="Where the conversation no longer fits: ask, drop the oldest turns (the system prompt "
    "stays), or stop.  [default: ask at a terminal, else stop]",
)
@pair_options
@answer_options
@click.pass_context
def chat(
    ctx: click.Context,
    /,
    message: str | None,
    system: str | None,
    quiet: bool,
    plain: bool,
    resume: str | None,
    no_history: bool,
    context_full: ContextFull | None,
    **values: Any,
) -> None:
    """Chat at the terminal, beginning with QUESTION if there is one.

    The draft appears dim, turns normal once it is accepted, and a rejected tail is
    struck through and goes as the target writes on. Ctrl-C stops the answer, Ctrl-D
    leaves, /help helps.

    Where stdin is no terminal, what comes there and QUESTION behind it are one
    message, answered once.

    \b
    Examples:
      parse-local chat
      parse-local chat "Why is the sky blue?"
      parse-local chat --pair qwen3-8b --system "Answer in French."
      parse-local chat --resume
      parse-local chat --resume "And in one line?"
      cat notes.txt | parse-local chat "Which of these are done?"
    """
    from parse_local.terminal.chat import run_chat

    if resume and message is None and any(c.isspace() for c in resume.strip()):
        resume, message = "", resume  # no ID is a sentence
    if no_history and resume is not None:
        raise UsageError("--resume needs the history that --no-history leaves out; drop one.")
    store = None if no_history else _open(required=resume is not None)
    session = None
    options = options_from(values)
    if store is not None and resume is not None:
        session = store.find(resume or None)
        options = _resumed(ctx, values, session, options)
    values.pop("strategy")  # the chat can switch strategies: load both models
    engine = load(values)
    status = run_chat(
        engine,
        options,
        question=message,
        system=system,
        quiet=quiet,
        store=store,
        resume=session,
        models=_named(values),
        context_full=context_full,
        loader=PairLoader(values),
        remember=not no_history,
        markdown=not plain,
    )
    raise click.exceptions.Exit(status)


def _open(*, required: bool) -> SessionStore | None:
    try:
        store, note = open_store(sessions_file())
    except SessionError as error:
        if required:
            raise
        store, note = None, f"{error} This chat is not kept."
    if note:
        click.echo(f"Note: {note}", err=True)
    return store


def _resumed(
    ctx: click.Context, values: dict[str, Any], session: Session, options: Options
) -> Options:
    """Put the session's models into `values`, and its options under those given now."""
    given = {
        name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if not given & set(_MODELS):
        values.update({name: session.models.get(name) for name in _MODELS})
    if given & {"tau", "tau_prefix"}:
        given |= {"tau_full", "tau_prefix"}
    fields = given & set(Options.__dataclass_fields__)
    merged, note = options_from_json(
        session.options, {name: getattr(options, name) for name in fields}
    )
    if note:
        click.echo(f"Note: {note}", err=True)
    return merged


def _named(values: Mapping[str, Any]) -> dict[str, str]:
    """The models that the values name; the default pair where they name none."""
    pair, draft, target = (values[name] for name in _MODELS)
    return models_to_json(pair or (None if target else DEFAULT_PAIR), draft, target)


class PairLoader:
    """Loads other models with the settings of a command.

    Args:
        values: all values of a command that carries `pair_options`. Its profile belongs to its
            own models alone.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {**values, **dict.fromkeys((*_MODELS, "profile"))}
        self._own = _named(values), values["profile"]

    def plan(self, models: Mapping[str, str], replaced: Any) -> None:
        """Check that models would fit once others are closed; raises as `load_pair`."""
        from parse_local.pair import plan_pair

        plan_pair(
            models.get("pair"),
            load_options(self._values),
            draft=models.get("draft"),
            target=models.get("target"),
            n_freed=replaced.n_cache_bytes,
        )

    def load(self, models: Mapping[str, str]) -> Any:
        """Load models; raises as `load_pair`."""
        own, profile = self._own
        return load({**self._values, **models, "profile": profile if models == own else None})
