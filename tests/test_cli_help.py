"""Every command explains itself, and a wrong call ends with status 2."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from parse_local import __version__
from parse_local.cli import main
from parse_local.policy import DEFAULT_PAIR


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        deeper = isinstance(command, click.Group)
        found += leaves(command, (*path, name)) if deeper else [(*path, name)]  # type: ignore[arg-type]
    return found


COMMANDS = leaves(main)


def test_the_commands_are_these() -> None:
    assert {"run", "chat", "verify", "doctor", "completion", "tune"} <= {c[0] for c in COMMANDS}
    subcommands = {c[1] for c in COMMANDS if c[0] == "models"}
    assert subcommands == {"list", "pull", "info", "path", "rm"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_carries_an_example(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*command, "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
    assert f"parse-local {' '.join(command)}" in done.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_a_usage_error(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*command, "--no-such-option"])
    assert done.exit_code == 2
    assert "No such option" in done.output


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["frobnicate"]).exit_code == 2


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"parse-local, version {__version__}\n"


SCRIPTS = {
    "bash": "complete -o nosort -F _parse_local_completion parse-local",
    "zsh": "#compdef parse-local",
    "fish": "complete --no-files --command parse-local",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert SCRIPTS[shell] in done.output
    assert f"_PARSE_LOCAL_COMPLETE={shell}_complete" in done.output


def test_completion_of_an_unknown_shell_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("parse-local mod", ["models"]),
        ("parse-local models p", ["pull", "path"]),
        ("parse-local run --acc", ["--accept"]),
        ("parse-local run --accept ", ["exact", "loose", "semantic", "fused"]),
        ("parse-local run --pair qwen2.5-coder-1", [DEFAULT_PAIR, "qwen2.5-coder-14b"]),
        ("parse-local models pull smol", ["smollm2-135m"]),
    ],
)
def test_what_completion_offers(typed: str, offered: list[str]) -> None:
    env = {
        "_PARSE_LOCAL_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    done = CliRunner().invoke(main, prog_name="parse-local", env=env)
    assert sorted(done.output.split()) == sorted(f"plain,{word}" for word in offered)
