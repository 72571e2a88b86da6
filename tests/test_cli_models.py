"""`parse-local models` as a user meets it: what is printed where, and the exit status."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from hub_server import HubServer, catalog_text, isolate, serve

from parse_local import cli_models
from parse_local.catalog import parse_catalog
from parse_local.cli_support import Group
from parse_local.errors import CatalogError, DownloadError

DRAFT = random.Random(2).randbytes(40_000)
TARGET = random.Random(3).randbytes(90_000)
PAIRS = """
[pairs.two]
draft = "tiny"
target = "big"
tested = true
description = "Two of them"
[pairs.twin]
draft = "tiny"
target = "third"
tested = false
description = "Another with the same draft"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    catalog = parse_catalog(
        catalog_text(DRAFT)
        + catalog_text(TARGET, name="big")
        + catalog_text(b"third", name="third")
        + PAIRS
    )
    monkeypatch.setattr(cli_models, "load_catalog", lambda: catalog)
    return isolate(tmp_path, monkeypatch)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve() as hub_server:
        for name, data in (("tiny", DRAFT), ("big", TARGET), ("third", b"third")):
            hub_server.files[f"org/{name}", f"{name}.gguf"] = data
        monkeypatch.setenv("HF_ENDPOINT", hub_server.endpoint)
        yield hub_server


def run(*args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli_models.models, list(args), input=stdin)
    assert "Traceback" not in result.output
    return result


def put(home: Path, *names: str) -> None:
    (home / "models").mkdir(parents=True, exist_ok=True)
    for name in names:
        data = {"tiny": DRAFT, "big": TARGET, "third": b"third"}[name]
        (home / "models" / f"{name}.gguf").write_bytes(data)


def test_pull_then_path(home: Path, server: HubServer) -> None:
    result = run("pull", "two")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "tiny: 100% of 40 kB" in result.stderr
    assert result.stderr.endswith("big is here, from Hugging Face (org/big), checksum verified.\n")
    result = run("path", "two")
    assert result.stdout.splitlines() == [
        str(home / "models" / "tiny.gguf"),
        str(home / "models" / "big.gguf"),
    ]
    assert result.stderr == ""


def test_path_of_what_is_not_here(home: Path) -> None:
    put(home, "tiny")
    result = run("path", "two")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Error: two is not on this machine (no big.gguf); fetch it with "
        "`parse-local models pull two`.\n"
    )


@pytest.mark.parametrize("command", ["pull", "info", "path", "rm"])
def test_unknown_name_is_a_usage_error(command: str) -> None:
    result = run(command, "twoo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: There is no pair or model named 'twoo' (did you mean two?); "
        "`parse-local models list` shows all.\n"
    )


def test_no_network_is_one_sentence() -> None:
    result = run("pull", "tiny")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "Error: tiny could not be fetched: 127.0.0.1:9 cannot be reached (Connection refused). "
        "Check the network and run `parse-local models pull tiny` again."
    )


def test_offline_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARSE_LOCAL_OFFLINE", "1")
    result = run("pull", "two")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: tiny and big cannot be fetched because PARSE_LOCAL_OFFLINE is set; unset it and "
        "try again, or copy the GGUF files here and name them with --draft and --target.\n"
    )


def test_list_shows_what_is_here(home: Path) -> None:
    put(home, "tiny")
    (home / "models" / "big.gguf.partial").write_bytes(TARGET[:45_000])
    result = run("list")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["two", "1K", "→", "1K", "130", "kB", "draft", "only", "yes", "Apache-2.0"] in rows
    assert ["twin", "1K", "→", "1K", "40", "kB", "draft", "only", "no", "Apache-2.0"] in rows
    assert ["tiny", "F32", "40", "kB", "yes", "Apache-2.0"] in rows
    assert ["big", "F32", "90", "kB", "50%", "Apache-2.0"] in rows
    assert ["third", "F32", "5", "bytes", "no", "Apache-2.0"] in rows
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())


def test_list_as_json(home: Path) -> None:
    put(home, "tiny", "third")
    found = json.loads(run("list", "--json").stdout)
    assert [(p["name"], p["present"], p["tested"]) for p in found["pairs"]] == [
        ("two", False, True),
        ("twin", True, False),
    ]
    assert [(m["name"], m["state"], m["path"]) for m in found["models"]] == [
        ("tiny", "present", str(home / "models" / "tiny.gguf")),
        ("big", "absent", None),
        ("third", "present", str(home / "models" / "third.gguf")),
    ]


def test_info_of_a_pair(home: Path) -> None:
    put(home, "tiny")
    (home / "models" / "big.gguf.partial").write_bytes(TARGET[:45_000])
    out = run("info", "two").stdout
    assert "tested   yes" in out
    assert f"path     {home / 'models' / 'tiny.gguf'}\n" in out
    assert "path     not here (45 kB from an interrupted pull)\n" in out
    assert "source   Hugging Face (org/tiny) at c0ffee0000000000000000000000000000000001\n" in out


def test_info_as_json() -> None:
    found = json.loads(run("info", "two", "--json").stdout)
    assert found["draft"]["sources"][0]["repo"] == "org/tiny"
    assert found["target"]["size"] == 90_000
    assert json.loads(run("info", "big", "--json").stdout) == found["target"]


def test_rm_asks_and_removes(home: Path) -> None:
    put(home, "tiny", "big")
    result = run("rm", "two", stdin="n\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("Remove tiny, big (130 kB)? [y/N]:")
    assert (home / "models" / "tiny.gguf").exists()
    result = run("rm", "two", stdin="y\n")
    assert "big is removed (90 kB freed)." in result.stderr
    assert list((home / "models").glob("*.gguf")) == []


def test_rm_keeps_what_another_pair_uses(home: Path) -> None:
    put(home, "tiny", "big", "third")
    result = run("rm", "two", "--yes")
    assert "tiny is kept: the pair twin uses it." in result.stderr
    assert sorted(p.name for p in (home / "models").glob("*.gguf")) == ["third.gguf", "tiny.gguf"]
    assert "tiny is removed (40 kB freed)." in run("rm", "tiny", "--yes").stderr
    assert "tiny is not here." in run("rm", "tiny", "--yes").stderr


def test_rm_without_an_answer_is_a_usage_error(home: Path) -> None:
    put(home, "tiny")
    result = run("rm", "tiny", stdin="")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "Error: There is nobody to ask; give --yes to do it without asking.\n"
    )
    assert (home / "models" / "tiny.gguf").exists()


def test_every_command_has_an_example() -> None:
    for name, command in cli_models.models.commands.items():
        assert f"parse-local models {name}" in run(name, "--help").stdout
        assert "Example" in (command.help or "")


def test_names_complete_with_their_descriptions() -> None:
    complete = ShellComplete(cli_models.models, {}, "parse-local", "_PARSE_LOCAL_COMPLETE")
    found = [(item.value, item.help) for item in complete.get_completions(["pull"], "tw")]
    assert found == [("two", "Two of them"), ("twin", "Another with the same draft")]


# --- cli_support.Group -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (DownloadError("Nothing came."), 1, "Error: Nothing came.\n"),
        (CatalogError("No such name."), 2, "Error: No such name.\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (click.Abort(), 130, "Interrupted.\n"),
        (click.UsageError("Bad option."), 2, "Error: Bad option.\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/there"),
            1,
            "Error: /there cannot be used (Permission denied); check its permissions, or set "
            "PARSE_LOCAL_HOME to a directory that you can write.\n",
        ),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "larger disk.\n"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            1,
            "Error: The operating system refused: Too many open files.\n",
        ),
    ],
)
def test_errors_become_a_sentence_and_a_status(
    raised: BaseException, status: int, said: str
) -> None:
    @click.group(cls=Group)
    def outer() -> None:
        pass

    @outer.group(cls=Group)
    def inner() -> None:
        pass

    @inner.command()
    def fail() -> None:
        raise raised

    result = CliRunner().invoke(outer, ["inner", "fail"])
    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.endswith(said)
    assert result.stderr.count("Interrupted") <= 1


def test_bugs_are_not_hidden() -> None:
    @click.group(cls=Group)
    def outer() -> None:
        pass

    @outer.command()
    def fail() -> None:
        raise ZeroDivisionError

    assert isinstance(CliRunner().invoke(outer, ["fail"]).exception, ZeroDivisionError)
