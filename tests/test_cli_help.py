"""Every command explains itself, and a wrong call ends with status 2."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from parse_local import __version__
from parse_local.cli import main


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        deeper = isinstance(command, click.Group)
        found += leaves(command, (*path, name)) if deeper else [(*path, name)]  # type: ignore[arg-type]
    return found


COMMANDS = leaves(main)


def test_the_commands_are_these() -> None:
    assert {"run", "chat", "verify", "doctor", "completion"} <= {c[0] for c in COMMANDS}
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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert "_PARSE_LOCAL_COMPLETE" in done.output
