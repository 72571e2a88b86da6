"""Loading a pair: find the files, check that it fits, place it, open both caches."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from parse_local import memory, speculation_setup
from parse_local.engine import Engine
from parse_local.errors import JudgeError, TemplateError
from parse_local.llama import library
from parse_local.llama.cancel import CancelFlag
from parse_local.llama.context import Context
from parse_local.llama.context_params import keeps_in_cache
from parse_local.llama.model import Model
from parse_local.load_options import LoadOptions
from parse_local.policy import DEFAULT_PAIR
from parse_local.profile import Profile, find_profile, for_files, load_profile, profile_name
from parse_local.room import Room, add_cached, judge_cells, need_of, room_for
from parse_local.speculation_setup import SpecPlan
from parse_local.tune.apply import look_up
from parse_local.writer import Writer, template_of

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Placement:
    """Where one model went.

    Args:
        path: the file.
        need: its memory.
        n_gpu_layers: layers on the GPU, the output layer counted.
    """

    path: Path
    need: memory.Need
    n_gpu_layers: int

    def __str__(self) -> str:
        n_layer = self.need.n_layer
        where = f"{min(self.n_gpu_layers, n_layer)} of {n_layer} layers on the GPU"
        return f"{self.path.name}: {self.need.total / memory.GIB:.2f} GiB, {where}"


def load_pair(
    name: str | None = None,
    *,
    draft: PathLike | None = None,
    target: PathLike | None = None,
    profile: PathLike | None = None,
    target_only: bool = False,
    options: LoadOptions | None = None,
    **overrides: Any,
) -> Engine:
    """Load a pair and return an engine for it.

    ```python
    from parse_local import Options, load_pair

    engine = load_pair("qwen2.5-coder-1.5b")  # or load_pair(draft="a.gguf", target="b.gguf")
    result = engine.generate([{"role": "user", "content": "Hello!"}], Options(max_tokens=50))
    print(result.text)
    ```

    Nothing is downloaded; `parse-local models pull NAME` does that.

    Args:
        name: a pair of the catalogue; without it and without files, the default pair.
        draft, target: GGUF files or single models of the catalogue, instead of a pair
            or in place of one of its models. A target alone can run the strategy "target".
        profile: a TOML file with thresholds and wording, instead of the pair's own: the one
            that `parse-local calibrate` wrote, else the shipped one.
        target_only: leave the draft out.
        options: how to load; see `LoadOptions`.
        overrides: single fields of `LoadOptions`, for example `n_ctx=8192`.

    Raises:
        CatalogError: an unknown name.
        DownloadError: the pair's files are not on this machine.
        ModelError, PairError, OutOfMemoryError, UsageError: what the message says.
    """
    options = replace(options or LoadOptions(), **overrides)
    library.log.verbose = options.verbose
    pair_name, paths = find_files(name, draft, target, target_only)
    tuned = look_up(paths, options)
    # A pair's profile belongs to its target; with another draft it holds but for the guarantee.
    own = _profile("" if target else name or DEFAULT_PAIR, paths, profile)
    known, calibration_note = for_files(own, tuned.paths)
    plan = plan_files(tuned.paths, options, known)
    n_gpu_layers = {role: p.n_gpu_layers for role, p in plan.placements.items()}
    spec = plan.spec
    cancel = CancelFlag()
    writers: dict[str, Writer] = {}
    try:
        for role, placement in plan.placements.items():
            if role == "spec":  # made last, for a context that exists
                continue
            model = Model(
                placement.path,
                n_gpu_layers=placement.n_gpu_layers,
                mtp_heads=role == "target" and spec is not None and spec.uses_target_heads,
            )
            room = plan.rooms[role]
            n_threads, flash_attn = tuned.settings(role, options, n_gpu_layers[role])
            shared = keeps_in_cache(model, flash_attn)
            context = Context(
                model,
                n_ctx=options.n_ctx,
                n_fork_cells=room.n_fork_cells,
                max_forks=room.sequences.forks,
                n_checkpoints=room.sequences.checkpoints,
                n_cached=room.n_cached if shared else room.n_copies,
                n_cached_cells=room.n_cached_cells,
                copies=not shared,
                n_threads=n_threads,
                kv_type=options.kv_type,
                flash_attn=flash_attn,
                cancel=cancel,
            )
            writers[role] = Writer(model, template_of(model), context)
        speculation, speculator, note = speculation_setup.make(
            spec,
            writers["target"].context,
            draft=writers["draft"].model if "draft" in writers else None,
            options=options,
            n_gpu_layers=n_gpu_layers.get("spec", 0),
        )
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    engine = Engine(
        writers["target"],
        writers.get("draft"),
        profile=known,
        cancel=cancel,
        pair_name=pair_name or writers["target"].model.path.stem,
        placements=tuple(plan.placements.values()),
        n_cache_bytes=sum(p.need.total - p.need.weights for p in plan.placements.values()),
        speculation=speculation,
        speculator=speculator,
        notes=tuple(n for n in (*tuned.notes, note, calibration_note, plan.note) if n),
        costs=tuned.costs(options, n_gpu_layers),
    )
    try:
        engine.time_draft()
    except BaseException:
        engine.close()
        raise
    return engine


def plan_pair(
    name: str | None = None,
    options: LoadOptions | None = None,
    *,
    draft: PathLike | None = None,
    target: PathLike | None = None,
    n_freed: int = 0,
) -> tuple[Placement, ...]:
    """Where the models of a pair would go, without loading them; raises as `load_pair`.

    Args:
        name, options, draft, target: as for `load_pair`.
        n_freed: bytes that something else will have given back by then.
    """
    pair_name, paths = find_files(name, draft, target, False)
    options = options or LoadOptions()
    known = _profile(pair_name, paths, None)
    plan = plan_files(look_up(paths, options).paths, options, known, n_freed)
    return tuple(plan.placements.values())


def find_files(
    name: str | None, draft: PathLike | None, target: PathLike | None, target_only: bool
) -> tuple[str, dict[str, Path]]:
    """The name of a pair, "" for one made of files, and its files by role, the draft first."""
    from parse_local import hub  # huggingface-hub is slow to import
    from parse_local.catalog import load_catalog

    pair_name = name or ("" if target else DEFAULT_PAIR)
    if not (draft or target or target_only):
        return pair_name, dict(zip(("draft", "target"), hub.pair_paths(pair_name), strict=True))
    pair = load_catalog().pair(pair_name) if pair_name else None
    paths: dict[str, Path] = {}
    wanted = {"target": target} if target_only else {"draft": draft, "target": target}
    for role, value in wanted.items():
        if value is not None:
            paths[role] = locate(value)
        elif pair is not None:
            paths[role] = hub.paths(getattr(pair, role).name)[0]
    return ("" if draft or target else pair_name), paths


def locate(value: PathLike) -> Path:
    """A file, or the path of one model of the catalogue by its name.

    Raises:
        DownloadError: the catalogue's model is not on this machine.
    """
    from parse_local import hub
    from parse_local.catalog import load_catalog

    path = Path(value)
    if path.exists() or str(value) not in load_catalog().models:
        return path
    return hub.paths(str(value))[0]


def _profile(pair_name: str, paths: dict[str, Path], path: PathLike | None) -> Profile:
    if path is not None:
        return load_profile(Path(path))
    return find_profile(profile_name(pair_name, paths))


@dataclass(frozen=True)
class Plan:
    """Where the models of a pair go and the room of their contexts, by role; a note, or ""."""

    placements: dict[str, Placement]
    rooms: dict[str, Room]
    spec: SpecPlan | None
    note: str = ""


def plan_files(
    paths: dict[str, Path], options: LoadOptions, profile: Profile, n_freed: int = 0
) -> Plan:
    """Plan the loading of some files, by role, from their headers; raises as `load_pair`."""
    spec: SpecPlan | None = None
    spec_path = None if options.spec_model is None else locate(options.spec_model)
    rooms: dict[str, Room] = {}
    needs: dict[str, memory.Need] = {}
    for role in reversed(paths):  # target and draft do not depend on each other
        headers = Model(paths[role], headers_only=True)
        try:
            suffix = 0
            if role == "target":
                suffix = _suffix_cells(headers, profile, options)
                spec = speculation_setup.plan(
                    options.spec, headers, spec_path=spec_path, draft_path=paths.get("draft")
                )
                if spec is not None and spec.uses_target_heads:
                    needs["spec"] = _head_need(headers, options)
            rooms[role] = room_for(headers, options, suffix)
            needs[role] = rooms[role].need
        finally:
            headers.close()
    if spec is not None and spec.path is not None:
        paths = {"spec": spec.path, **paths}
        headers = Model(spec.path, headers_only=True, is_head=True)
        try:
            needs["spec"] = need_of(headers, options, options.spec_max + 1)
        finally:
            headers.close()
        if spec.shares_draft:
            needs["spec"] = replace(needs["spec"], weights=0)
    gpus = library.gpus()
    # An integrated GPU's memory is the machine's own and would count twice.
    apart = sum(d.memory_free for d in gpus if d.type == "gpu")
    available = psutil.virtual_memory().available + apart + n_freed
    memory.check(needs, available)
    free = sum(d.memory_free for d in gpus)
    taken = sum(need.total for need in needs.values())
    # Cached conversations are no reason to move a layer off the GPU.
    on_gpu_first = gpus and options.n_gpu_layers != 0
    spare = min(available, free) - taken if on_gpu_first else available - taken
    rooms, note = add_cached(rooms, options, spare)
    needs.update({role: room.need for role, room in rooms.items()})
    spec_layers = 0
    if "spec" in needs and needs["spec"].total <= free:
        free -= needs["spec"].total
        spec_layers = needs["spec"].n_layer + 1
    on_gpu = memory.place(free, needs.get("draft"), needs["target"])
    if options.n_gpu_layers >= 0 and gpus:
        on_gpu = (options.n_gpu_layers, options.n_gpu_layers)
        spec_layers = options.n_gpu_layers
    layers = dict(zip(("draft", "target", "spec"), (*on_gpu, spec_layers), strict=True))
    placements = {r: Placement(paths[r], needs[r], layers[r]) for r in paths}
    return Plan(placements, rooms, spec, note)


def _head_need(target: Model, options: LoadOptions) -> memory.Need:
    # MTP heads in the target's file: their weights are among the target's, the rest is one
    # layer's cache and the buffers of a model that is as wide.
    whole = need_of(target, options, options.spec_max + 1)
    return replace(whole, weights=0, kv_cache=whole.kv_cache // max(1, target.n_layer), n_layer=1)


def _suffix_cells(model: Model, profile: Profile, options: LoadOptions) -> int:
    # A model that cannot be asked gets no room for forks; asking it later says why.
    try:
        return judge_cells(model, profile, options.max_forks)
    except (JudgeError, TemplateError):
        return 0
