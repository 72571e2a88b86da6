"""Which results of `tune` hold for a pair that is being loaded, and what they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from parse_local.costs import PairCosts
from parse_local.load_options import FlashAttention, LoadOptions
from parse_local.tune import store
from parse_local.tune.check import Role
from parse_local.tune.store import BrokenResultError, Record

ROLES: tuple[Role, ...] = ("draft", "target")


@dataclass(frozen=True)
class Tuned:
    """Results for the files of a pair.

    Args:
        paths: the files to load, by role; requantised ones in place of their originals.
        records: what is known, by role.
        notes: for the user.
    """

    paths: dict[str, Path]
    records: Mapping[str, Record] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def settings(
        self, role: str, options: LoadOptions, n_gpu_layers: int
    ) -> tuple[int | None, FlashAttention]:
        """Threads and flash attention of one model: the user's own choice first.

        Args:
            role: "draft" or "target".
            options: as the user gave them.
            n_gpu_layers: where the model is placed; results of another placement say nothing.
        """
        record = self.records.get(role)
        if record is None or record.n_gpu_layers != n_gpu_layers:
            return options.n_threads, options.flash_attn
        measured_cache = options.kv_type == "f16"
        chosen = record.flash_attn if measured_cache else options.flash_attn
        return (
            options.n_threads or record.n_threads,
            chosen if options.flash_attn == "auto" else options.flash_attn,
        )

    def costs(self, options: LoadOptions, n_gpu_layers: Mapping[str, int]) -> PairCosts | None:
        """The cost curves, None unless both models run just as they were measured.

        Args:
            options: as the user gave them.
            n_gpu_layers: by role, where the models are placed.
        """
        if options.kv_type != "f16":
            return None
        for role in ROLES:
            record = self.records.get(role)
            if record is None or n_gpu_layers.get(role) != record.n_gpu_layers:
                return None
            used = self.settings(role, options, record.n_gpu_layers)
            if used != (record.n_threads, record.flash_attn):
                return None
        draft, target = (self.records[role] for role in ROLES)
        assert target.rows is not None
        return PairCosts(draft.bare, target.rows, target.bare)


def look_up(paths: dict[str, Path], options: LoadOptions) -> Tuned:
    """What `parse-local tune` has found out about some files on this machine.

    Args:
        paths: by role.
        options: `tuned` False looks nothing up.
    """
    if not options.tuned:
        return Tuned(paths)
    found: dict[str, Record] = {}
    notes: list[str] = []
    used = dict(paths)
    replaced: list[str] = []
    outdated: list[str] = []
    for role in ROLES:
        if role not in paths:
            continue
        try:
            record = store.find(role, paths[role])
        except BrokenResultError as error:
            notes[:] = [str(error)]  # one remedy for all
            continue
        if record is None:
            if store.is_outdated(role, paths[role]):
                outdated.append(role)
            continue
        found[role] = record
        if record.requantised is not None:
            used[role] = record.requantised.path
            lossy = ", which changes the answers" if role == "target" else ""
            replaced.append(f"the {role} runs as {record.requantised.recipe}{lossy}")
    if replaced:
        notes.append(
            f"Tuned for this machine: {' and '.join(replaced)}; --no-tuned leaves it as it was."
        )
    if outdated:
        notes.append(
            f"What was tuned for the {' and the '.join(outdated)} holds for another machine or "
            "build of llama.cpp; `parse-local tune` measures this one."
        )
    return Tuned(used, found, tuple(notes))
