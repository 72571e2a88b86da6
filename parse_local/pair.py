"""Loading a pair: find the files, check that it fits, place it, open both caches."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from parse_local import memory
from parse_local.engine import Engine
from parse_local.errors import JudgeError, ModelError, PairError, TemplateError, UsageError
from parse_local.judge import make_judge
from parse_local.llama import library
from parse_local.llama.context import KV_BYTES, N_UBATCH, CancelFlag, Context, max_rows
from parse_local.llama.model import Model
from parse_local.paths import package_models_dir
from parse_local.policy import DEFAULT_PAIR, LoadOptions
from parse_local.profile import Profile, load_profile
from parse_local.writer import Writer, template_of

SUFFIX_SLACK = 16
"""Cells kept free for a fork beyond the suffix seen at load: conversations render it alike, not always equal."""


@dataclass(frozen=True)
class Placement:
    """Where one model went.

    Args:
        path: the file.
        need: its memory.
        n_gpu_layers: layers on the GPU.
        n_layer: layers in all, the output layer not counted.
    """

    path: Path
    need: memory.Need
    n_gpu_layers: int
    n_layer: int

    def __str__(self) -> str:
        where = f"{min(self.n_gpu_layers, self.n_layer)} of {self.n_layer} layers on the GPU"
        return f"{self.path.name}: {self.need.total / memory.GIB:.2f} GiB, {where}"


def load_pair(
    name: str | None = None,
    *,
    draft: str | os.PathLike[str] | None = None,
    target: str | os.PathLike[str] | None = None,
    profile: str | os.PathLike[str] | None = None,
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
        draft, target: GGUF files, instead of a name or in place of one of its models.
            A target alone can run the strategy "target".
        profile: a TOML file with thresholds and wording, instead of the shipped one.
        options: how to load; see `LoadOptions`.
        overrides: single fields of `LoadOptions`, for example `n_ctx=8192`.

    Raises:
        CatalogError: an unknown name.
        DownloadError: the pair's files are not on this machine.
        ModelError, PairError, OutOfMemoryError, UsageError: what the message says.
    """
    options = replace(options or LoadOptions(), **overrides)
    library.log.verbose = options.verbose
    pair_name = name or ("" if target else DEFAULT_PAIR)
    draft_path, target_path = (Path(p) if p else None for p in (draft, target))
    if pair_name:
        from parse_local.hub import pair_paths  # huggingface-hub is slow to import

        catalogued = pair_paths(pair_name)
        draft_path, target_path = draft_path or catalogued[0], target_path or catalogued[1]
    if target_path is None:
        raise UsageError("A draft alone is not a pair; give --target FILE as well, or name a pair.")
    known = _profile(pair_name, profile)
    return _open(draft_path, target_path, options, known, pair_name or target_path.stem)


def _profile(pair_name: str, path: str | os.PathLike[str] | None) -> Profile:
    if path is not None:
        return load_profile(Path(path))
    shipped = package_models_dir() / "profiles" / f"{pair_name}.toml"
    return load_profile(shipped) if pair_name and shipped.exists() else Profile()


def _open(
    draft_path: Path | None, target_path: Path, options: LoadOptions, profile: Profile, name: str
) -> Engine:
    paths = {"draft": draft_path, "target": target_path}
    present = {role: path for role, path in paths.items() if path is not None}
    suffix = 0
    needs: dict[str, memory.Need] = {}
    for role, path in present.items():
        headers = Model(path, headers_only=True)
        try:
            if role == "target":
                suffix = _suffix_cells(headers, profile)
            if len(present) > 1 and not headers.can_rollback:
                raise PairError(
                    f"{path.name} ({headers.architecture}) has recurrent memory, which cannot be "
                    "rolled back to an accepted prefix; run it alone with --strategy target."
                )
            needs[role] = _need(headers, options, suffix * options.max_forks)
        finally:
            headers.close()
    gpus = library.gpus()
    free = sum(d.memory_free for d in gpus)
    memory.check(needs, psutil.virtual_memory().available + sum(d.memory_free for d in gpus if d.type == "gpu"))
    layers = dict(zip(("draft", "target"), memory.place(free, needs.get("draft"), needs["target"]), strict=True))
    cancel = CancelFlag()
    writers: dict[str, Writer] = {}
    placements = []
    try:
        for role, path in present.items():
            n_gpu = options.n_gpu_layers if options.n_gpu_layers >= 0 else layers[role]
            model = Model(path, n_gpu_layers=n_gpu)
            placements.append(Placement(path, needs[role], n_gpu if gpus else 0, model.n_layer))
            forks = options.max_forks if role == "target" and suffix else 0
            context = Context(
                model,
                n_ctx=options.n_ctx,
                n_fork_cells=forks * suffix,
                max_forks=forks,
                n_threads=options.n_threads,
                kv_type=options.kv_type,
                flash_attn=options.flash_attn,
                cancel=cancel,
            )
            writers[role] = Writer(model, template_of(model), context)
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    return Engine(
        writers["target"],
        writers.get("draft"),
        profile=profile,
        cancel=cancel,
        pair_name=name,
        placements=tuple(placements),
    )


def _suffix_cells(model: Model, profile: Profile) -> int:
    # The question depends on the template alone, so one made-up turn shows its
    # length. A model that cannot be asked gets no room for forks; asking it
    # later says why.
    try:
        turn = [{"role": "user", "content": "?"}]
        judge = make_judge(model, template_of(model), turn, profile.wording)
    except (JudgeError, TemplateError):
        return 0
    return max(len(judge.full.suffix), len(judge.prefix.suffix)) + SUFFIX_SLACK


def _need(model: Model, options: LoadOptions, n_fork_cells: int) -> memory.Need:
    return memory.Need(
        weights=model.n_bytes,
        kv_cache=memory.kv_cache_bytes(
            model.kv_elements_per_token(),
            options.n_ctx + n_fork_cells,
            KV_BYTES[options.kv_type],
        ),
        compute=memory.compute_bytes(
            model.n_vocab, model.n_embd, N_UBATCH, max_rows(model.n_vocab)
        ),
        n_layer=model.n_layer,
    )
