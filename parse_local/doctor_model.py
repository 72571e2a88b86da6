"""What `parse-local doctor --model FILE` reports: which way one file takes, and why."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from parse_local import memory
from parse_local.errors import JudgeError, ModelError, OutOfMemoryError, TemplateError
from parse_local.llama.checkpoints import STRIDE
from parse_local.llama.memory_kind import MemoryKind
from parse_local.llama.model import Model
from parse_local.load_options import LoadOptions
from parse_local.memory import GIB
from parse_local.profile import Profile
from parse_local.room import Room, judge_cells, room_for

_MIB = 1 << 20


@dataclass
class ModelReport:
    """Everything that the command prints; what a refused file does not tell is left out.

    Args:
        path: the file.
        model: architecture, description, size in bytes, trained context and vocabulary in
            tokens, whether there is a chat template.
        memory: "unified", "sliding window", "checkpoints" or "refused", why; the sliding
            window in tokens, bytes of one recurrent state, forks and checkpoints at once.
        roles: whether it can be a target, a draft, and the judge of semantic acceptance.
        needs: bytes at the default context length, as target.
        notes: what it lacks and does not need.
        problems: what keeps it from running, each with its remedy.
    """

    path: str
    model: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, bool] = field(default_factory=dict)
    needs: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The report as a plain object."""
        return dataclasses.asdict(self)


def examine_model(path: Path) -> ModelReport:
    """Look at one GGUF, reading its headers only.

    Raises:
        NativeLibraryError: llama.cpp cannot be loaded.
    """
    report = ModelReport(str(path))
    try:
        model = Model(path, headers_only=True)
    except ModelError as error:
        report.memory = {"path": "refused", "reason": str(error)}
        report.roles = dict.fromkeys(("target", "draft", "judge"), False)
        report.problems.append(str(error))
        return report
    try:
        _describe(model, report)
    finally:
        model.close()
    return report


def _describe(model: Model, report: ModelReport) -> None:
    report.model = {
        "architecture": model.architecture,
        "description": model.description,
        "bytes": model.n_bytes,
        "n_ctx_train": model.n_ctx_train,
        "n_vocab": model.n_vocab,
        "chat_template": model.chat_template is not None,
    }
    if model.chat_template is None:
        report.notes.append(
            "There is no chat template in the file, so ChatML is used: probably a base model, "
            "which completes text rather than answers."
        )
    options = LoadOptions()
    suffix = 0
    try:
        suffix = judge_cells(model, Profile(), options.max_forks)
    except (JudgeError, TemplateError) as error:
        report.notes.append(f"It cannot be asked for verdicts: {error}")
    room = room_for(model, options, suffix)
    report.memory = _memory(model.memory_kind, room)
    report.roles = {"target": True, "draft": True, "judge": suffix > 0}
    report.needs = room.need.total
    try:
        memory.check({"target": room.need}, psutil.virtual_memory().available)
    except OutOfMemoryError as error:
        report.problems.append(str(error))


def _memory(kind: MemoryKind, room: Room) -> dict[str, Any]:
    sequences = room.sequences
    return {
        "path": kind.path,
        "reason": kind.reason,
        "can_cut": kind.can_cut,
        "n_swa": kind.n_swa,
        "state_bytes": room.need.states // sequences.total,
        "max_forks": sequences.forks,
        "max_checkpoints": sequences.checkpoints,
    }


def print_model_report(report: ModelReport) -> None:
    """Print the report for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("file", report.path)
    if report.model:
        for name, text in _rows(report):
            table.add_row(name, text)
    console.print(table, highlight=False)
    for note in report.notes:
        console.print(f"· {note}", highlight=False, soft_wrap=True)
    for problem in report.problems:
        console.print(f"✗ {problem}", style="red", highlight=False, soft_wrap=True)
    if not report.problems:
        console.print("✓ This file can run.", style="green", highlight=False)


def _rows(report: ModelReport) -> list[tuple[str, str]]:
    model, memory_ = report.model, report.memory
    if not memory_["max_forks"]:
        forks = "none, because it cannot be asked for verdicts"
    elif memory_["can_cut"]:
        forks = f"at every position, sharing what lies before; {memory_['max_forks']} at once"
    else:
        forks = (
            f"whole copies, taken while decoding; {memory_['max_forks']} at once and "
            f"{memory_['max_checkpoints']} checkpoints of {memory_['state_bytes'] / _MIB:.2f} MiB"
        )
    rollback = "to every position"
    if not memory_["can_cut"]:
        rollback = (
            f"to the last checkpoint (at boundaries, {STRIDE} tokens apart or more); "
            "what lies between is decoded again"
        )
    roles = [role for role, can in report.roles.items() if can]
    return [
        ("model", f"{model['description']} ({model['architecture']}), {_gib(model['bytes'])}"),
        ("context", f"{model['n_ctx_train']:,} tokens as trained"),
        ("vocabulary", f"{model['n_vocab']:,} tokens"),
        ("chat template", "its own" if model["chat_template"] else "none"),
        ("memory", f"{memory_['path']}: {memory_['reason']}"),
        ("forks", forks),
        ("rollback", rollback),
        ("can be", ", ".join(roles)),
        ("needs", f"{_gib(report.needs)} as target, with {LoadOptions().n_ctx:,} tokens"),
    ]


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f} GiB"
