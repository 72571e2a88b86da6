"""Options that several commands share; cli_loading makes arguments of the API of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.shell_completion import CompletionItem

from parse_local.load_options import (
    MAX_FORKS,
    MAX_SPEC,
    MAX_THREADS,
    FlashAttention,
    KVType,
    LoadOptions,
    Spec,
)
from parse_local.policy import (
    DEFAULT_PAIR,
    STRATEGIES,
    AcceptMode,
    AcceptRule,
    AfterReject,
    ConfidenceBy,
    Options,
    Question,
    Strategy,
)

Command = TypeVar("Command", bound=Callable[..., Any])

_LOAD, _ANSWER = LoadOptions(), Options()


def _complete_pair(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from parse_local.catalog import load_catalog

    pairs = load_catalog().pairs.values()
    return [
        CompletionItem(p.name, help=p.description) for p in pairs if p.name.startswith(incomplete)
    ]


def apply_options(command: Command, options: list[Callable[[Command], Command]]) -> Command:
    """Give a command these options; `--help` lists them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def file_options(command: Command) -> Command:
    """Which models."""
    return apply_options(
        command,
        [
            click.option(
                "--pair",
                metavar="NAME",
                shell_complete=_complete_pair,
                help=f"Pair of the catalogue.  [default: {DEFAULT_PAIR}]",
            ),
            click.option(
                "--draft",
                metavar="FILE",
                help="Draft model: a GGUF file, or a model of the catalogue.",
            ),
            click.option(
                "--target",
                metavar="FILE",
                help="Target model: a GGUF file, or a model of the catalogue.",
            ),
        ],
    )


def pair_options(command: Command) -> Command:
    """Which models, and how they are loaded."""
    return apply_options(
        command,
        [
            file_options,
            click.option(
                "--profile",
                type=click.Path(path_type=Path, dir_okay=False),
                metavar="FILE",
                help="TOML file with the pair's thresholds and wording.",
            ),
            click.option(
                "--ctx",
                "n_ctx",
                type=click.IntRange(min=1),
                default=_LOAD.n_ctx,
                show_default=True,
                help="Tokens of context for prompt and answer.",
            ),
            click.option(
                "--threads",
                "n_threads",
                type=click.IntRange(1, MAX_THREADS),
                help="CPU threads.  [default: as tuned, else physical cores]",
            ),
            click.option(
                "--gpu-layers",
                "n_gpu_layers",
                type=click.IntRange(min=-1),
                default=_LOAD.n_gpu_layers,
                help="Layers of each model on the GPU.  [default: as many as fit, the draft first]",
            ),
            click.option(
                "--kv-type",
                type=click.Choice(get_args(KVType)),
                default=_LOAD.kv_type,
                show_default=True,
                help="Type of both KV caches.",
            ),
            click.option(
                "--flash-attn",
                type=click.Choice(get_args(FlashAttention)),
                default=_LOAD.flash_attn,
                show_default=True,
                help="Flash attention; auto is as tuned, else llama.cpp's choice.",
            ),
            click.option(
                "--tuned/--no-tuned",
                default=_LOAD.tuned,
                help="Use what `parse-local tune` has found out.  [default: --tuned]",
            ),
            click.option(
                "--verbose",
                is_flag=True,
                help="Show llama.cpp's log and where the models are placed.",
            ),
        ],
    )


def accept_options(command: Command) -> Command:
    """What makes a draft acceptable."""
    return apply_options(
        command,
        [
            click.option(
                "--accept",
                type=click.Choice(get_args(AcceptMode)),
                help="exact: the target's own text, lossless; loose: also other words where the "
                "target is undecided; semantic: what its verdict calls correct; "
                "fused: verdict and likelihood.  [default: fused with a calibrated profile, "
                "else exact]",
            ),
            click.option(
                "--tau",
                type=click.FloatRange(0, 1),
                metavar="P",
                help="P(Correct) that accepts; of whole answers only, with --tau-prefix.  "
                "[default: the profile's]",
            ),
            click.option(
                "--tau-prefix",
                type=click.FloatRange(0, 1),
                metavar="P",
                help="P(Correct) that accepts an unfinished prefix.  [default: as --tau]",
            ),
            click.option(
                "--loose-entropy",
                type=click.FloatRange(min=0),
                metavar="NATS",
                help="With --accept loose: entropy of the target from which on another word may "
                "pass.  [default: 0.8; --strategy fly: 0.3]",
            ),
            click.option(
                "--loose-window",
                type=click.IntRange(min=0),
                metavar="N",
                help="With --accept loose: tokens behind it that must agree again.  [default: 6]",
            ),
            click.option(
                "--rule",
                type=click.Choice(get_args(AcceptRule)),
                default=_ANSWER.rule,
                show_default=True,
                help="Keep what is before the first failure, or the longest prefix that passes.",
            ),
            click.option(
                "--max-forks",
                type=click.IntRange(1, MAX_FORKS),
                default=_ANSWER.max_forks,
                show_default=True,
                help="Most places judged in one round.",
            ),
            click.option(
                "--delta",
                type=click.IntRange(min=1),
                default=_ANSWER.delta,
                show_default=True,
                help="Tokens between places to judge where the text offers none.",
            ),
        ],
    )


def spec_options(command: Command) -> Command:
    """Who proposes tokens while the target writes."""
    return apply_options(
        command,
        [
            click.option(
                "--spec",
                type=click.Choice(get_args(Spec)),
                default=_LOAD.spec,
                show_default=True,
                help="Who proposes tokens while the target writes (lossless). auto: its MTP heads, "
                "else --spec-model, else n-grams, while it pays.",
            ),
            click.option(
                "--spec-model",
                metavar="FILE",
                help="Draft model, EAGLE-3 or MTP head that proposes.  "
                "[default for --spec draft: the pair's draft]",
            ),
            click.option(
                "--spec-max",
                type=click.IntRange(1, MAX_SPEC),
                default=_LOAD.spec_max,
                show_default=True,
                help="Most tokens proposed at once.",
            ),
        ],
    )


def answer_options(command: Command) -> Command:
    """How an answer is written."""
    return apply_options(
        command,
        [
            spec_options,
            click.option(
                "--strategy",
                type=click.Choice(get_args(Strategy)),
                default=_ANSWER.strategy,
                show_default=True,
                help="; ".join(f"{name}: {text}" for name, text in STRATEGIES.items()) + ".",
            ),
            accept_options,
            click.option(
                "--question",
                type=click.Choice(get_args(Question)),
                help="With specreason and confspec: ask for a mark from 0 to 9, or for P(Correct). "
                " [default: score with specreason, else correct]",
            ),
            click.option(
                "--min-score",
                type=click.FloatRange(0, 10),
                default=_ANSWER.min_score,
                show_default=True,
                help="Mark that accepts a segment.",
            ),
            click.option(
                "--min-confidence",
                type=click.FloatRange(0, 1),
                metavar="P",
                help="Confidence of the draft above which its words need no verdict of the "
                "target.  [default: 0.9 with confspec, else every place is judged]",
            ),
            click.option(
                "--confidence-by",
                type=click.Choice(get_args(ConfidenceBy)),
                default=_ANSWER.confidence_by,
                show_default=True,
                help="Probability of its tokens, or with confspec its own verdict.",
            ),
            click.option(
                "--window",
                type=click.IntRange(min=0),
                metavar="N",
                help="Tokens drafted before each verification, 0 for the whole answer; most tokens "
                "of a segment.  [default: 16 with --accept exact or loose, else 0]",
            ),
            click.option(
                "--after-reject",
                type=click.Choice(get_args(AfterReject)),
                help="Who goes on after a rejected tail.  "
                "[default: redraft with --accept exact or loose, else target]",
            ),
            click.option(
                "--max-tokens",
                type=click.IntRange(min=1),
                default=_ANSWER.max_tokens,
                show_default=True,
                help="Most tokens of the answer.",
            ),
            click.option(
                "--temperature",
                type=click.FloatRange(min=0),
                default=_ANSWER.temperature,
                show_default=True,
                help="0 is greedy.",
            ),
            click.option(
                "--top-k",
                type=click.IntRange(min=0),
                default=_ANSWER.top_k,
                show_default=True,
                help="Keep the K likeliest tokens, 0 for all.",
            ),
            click.option(
                "--top-p",
                type=click.FloatRange(0, 1),
                default=_ANSWER.top_p,
                show_default=True,
                help="Keep the likeliest tokens that make up P.",
            ),
            click.option(
                "--min-p",
                type=click.FloatRange(0, 1),
                default=_ANSWER.min_p,
                show_default=True,
                help="Drop tokens below P times the likeliest.",
            ),
            click.option(
                "--repeat-penalty",
                type=click.FloatRange(min=0.01),
                default=_ANSWER.repeat_penalty,
                show_default=True,
                help="1 is none.",
            ),
            click.option(
                "--seed", type=click.IntRange(min=0), help="Seed of the sampler.  [default: drawn]"
            ),
            click.option(
                "--stop",
                multiple=True,
                metavar="TEXT",
                help="End the answer at TEXT; may be given again.",
            ),
            click.option(
                "--think/--no-think",
                "thinking",
                help="Let the model think before it answers, where it can be told to. "
                "[default: off; models that always think do]",
            ),
        ],
    )


def grammar_options(command: Command) -> Command:
    """What form an answer has to have."""
    return apply_options(
        command,
        [
            click.option(
                "--json-schema",
                metavar="FILE|TEXT",
                help="Answer in JSON that validates against this schema; {} is any JSON.",
            ),
            click.option(
                "--grammar",
                metavar="FILE|TEXT",
                help="Answer as this grammar says (llama.cpp's GBNF).",
            ),
        ],
    )


def plain_option(command: Command) -> Command:
    """How an answer looks on a terminal."""
    return click.option(
        "--plain",
        is_flag=True,
        help="Show answers as they are written, without rendering Markdown.",
    )(command)
