"""What `parse-local doctor` reports."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from typing import Any

import psutil

from parse_local._version import __version__
from parse_local.errors import ParseLocalError
from parse_local.load_options import LoadOptions
from parse_local.memory import GIB
from parse_local.paths import data_dir, models_dir
from parse_local.policy import DEFAULT_PAIR


@dataclass
class Report:
    """Everything that the command prints.

    Args:
        versions: of parse-local, Python and llama-cpp-python.
        library: path, "patched" or "stock", system info; empty if it cannot be loaded.
        devices: backends' devices with their memory in bytes.
        memory: bytes of RAM, total and available.
        directories: where models and data are kept.
        models: names of the catalogue's models that are on this machine.
        placement: how the default pair would be placed, one line a model.
        tuned: the roles for which `parse-local tune` has measured the default pair's files here.
        problems: what would keep the default pair from running, each with its remedy.
    """

    versions: dict[str, str]
    library: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    directories: dict[str, str] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    placement: list[str] = field(default_factory=list)
    tuned: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The report as a plain object."""
        return dataclasses.asdict(self)


def examine() -> Report:
    """Look at this machine and installation; never raises a ParseLocalError."""
    report = Report(
        versions={"parse-local": __version__, "python": platform.python_version()},
        directories={"models": str(models_dir()), "data": str(data_dir())},
    )
    ram = psutil.virtual_memory()
    report.memory = {"total": ram.total, "available": ram.available}
    for look in (_library, _models, _default_pair):
        try:
            look(report)
        except ParseLocalError as error:
            report.problems.append(str(error))
            break  # what follows needs what just failed
    return report


def _library(report: Report) -> None:
    from parse_local.llama import library
    from parse_local.llama._bindings import LLAMA_CPP_PYTHON_VERSION

    info = library.info()
    report.versions["llama-cpp-python"] = LLAMA_CPP_PYTHON_VERSION
    report.library = {
        "path": info.path,
        "llama.cpp": "patched" if info.patched else "stock",
        "shim": info.shim,
        "gpu_offload": info.gpu_offload,
        "system_info": info.system_info,
    }
    report.devices = [dataclasses.asdict(d) for d in info.devices]


def _models(report: Report) -> None:
    from parse_local import hub
    from parse_local.catalog import load_catalog

    catalog = load_catalog()
    report.models = [m.name for m in catalog.models.values() if hub.local_path(m) is not None]
    hub.pair_paths(DEFAULT_PAIR, catalog=catalog)


def _default_pair(report: Report) -> None:
    from parse_local.pair import find_files, plan_pair
    from parse_local.tune.apply import look_up

    report.placement = [str(p) for p in plan_pair(DEFAULT_PAIR)]
    _, paths = find_files(DEFAULT_PAIR, None, None, False)
    report.tuned = list(look_up(paths, LoadOptions()).records)


def print_report(report: Report) -> None:
    """Print the report for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in report.versions.items()))
    if report.library:
        no_shim = ", scores in numpy (libparse_local is missing or of another version)"
        shim = "" if report.library["shim"] else no_shim
        table.add_row("llama.cpp", f"{report.library['llama.cpp']}{shim}")
        table.add_row("library", str(report.library["path"]))
        table.add_row("features", str(report.library["system_info"]))
    for device in report.devices:
        memory = (
            f", {device['memory_free'] / GIB:.1f} of {device['memory_total'] / GIB:.1f} GiB free"
        )
        table.add_row("device", f"{device['name']} ({device['description'].strip()}){memory}")
    ram = report.memory
    table.add_row(
        "memory", f"{ram['available'] / GIB:.1f} of {ram['total'] / GIB:.1f} GiB available"
    )
    table.add_row("models in", report.directories["models"])
    table.add_row("models", ", ".join(report.models) or "none yet")
    for line in report.placement:
        table.add_row(f"{DEFAULT_PAIR}", line)
    if report.placement:
        missing = "no; `parse-local tune` takes two minutes, once"
        table.add_row("tuned", ", ".join(report.tuned) or missing)
    console.print(table, highlight=False)
    for problem in report.problems:
        console.print(f"✗ {problem}", style="red", highlight=False, soft_wrap=True)
    if not report.problems:
        console.print(f"✓ {DEFAULT_PAIR} can run: parse-local chat", style="green", highlight=False)
