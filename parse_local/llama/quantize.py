"""Writing a GGUF again with other tensor types, by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parse_local.errors import ModelError
from parse_local.hub.storage import storage_errors
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.model import Model

_FTYPES = {"q4_0": 2, "q8_0": 7}  # enum llama_ftype
_TYPES = {"q4_0": 2, "q8_0": 8}  # enum ggml_type
_BITS = {"q4_0": 4.5, "q8_0": 8.5}  # of one weight, scales included
_SLACK = 32 << 20  # bytes left free on the disk


@dataclass(frozen=True)
class Recipe:
    """Which types the tensors get.

    Args:
        name: for people, and in file names.
        body: type of all matrices, None to keep each as it is (those that the file's
            own mixture would choose; others are converted to it).
        output: type of the output matrix, and of the embeddings that may stand in for it;
            None for the body's.
    """

    name: str
    body: str | None
    output: str | None = None

    def estimate(self, model: Model) -> int:
        """Bytes of the file that it makes, roughly.

        Args:
            model: the original; headers are enough.
        """
        tables = model.n_vocab * model.n_embd
        rest = max(0, model.n_parameters - tables)
        if self.body is None:  # the tables have had four bits at least
            return model.n_bytes + int(tables * (_BITS[self.output or "q8_0"] - _BITS["q4_0"]) / 8)
        body = _BITS[self.body]
        return int((rest * body + tables * (_BITS[self.output] if self.output else body)) / 8)


def requantise(model: Model, to: Path, recipe: Recipe, *, n_threads: int) -> None:
    """Write a model's file again with other tensor types.

    Nothing is left behind unless the file is complete.

    Args:
        model: the original; headers are enough. Its tensors may be quantised already.
        to: where to; an existing file is replaced.
        recipe: the types.
        n_threads: CPU threads.

    Raises:
        StorageError: there is no room on the disk, or the directory cannot be written.
        ModelError: llama.cpp cannot quantise this model so.

    Source: llama_model_quantize.
    """
    params = lib.llama_model_quantize_default_params()
    params.nthread = n_threads
    params.allow_requantize = True
    if recipe.body is None:
        params.ftype = int(model.metadata("general.file_type") or 0)
    else:
        params.ftype = _FTYPES[recipe.body]
        params.pure = True
    if recipe.output is not None:
        params.output_tensor_type = params.token_embedding_type = _TYPES[recipe.output]
    part = to.with_name(f"{to.name}.{os.getpid()}.part")
    with storage_errors():
        to.parent.mkdir(parents=True, exist_ok=True)
        # It would stop with half a file, and not always say so.
        if shutil.disk_usage(to.parent).free < recipe.estimate(model) + _SLACK:
            raise _no_room(to)
        try:
            with part.open("wb"):  # says plainly what llama.cpp would not
                pass
            _quantise(model, part, recipe, params)
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)


def _quantise(model: Model, part: Path, recipe: Recipe, params: Any) -> None:
    with library.log.capture() as log:
        status = lib.llama_model_quantize(
            str(model.path).encode(), str(part).encode(), ctypes.byref(params)
        )
        reason = next((line for line in log if "failed to quantize" in line), "")
    if status != 0 and "iostream" not in reason:
        raise ModelError(
            f"llama.cpp cannot requantise {model.path.name} to {recipe.name} "
            f"({reason.split('failed to quantize: ')[-1] or 'it gives no reason'})."
        )
    if status != 0 or not _complete(part):
        raise _no_room(part)


def _complete(path: Path) -> bool:
    # llama.cpp's stream does not report every failed write.
    try:
        Model(path, headers_only=True).close()
    except ModelError:
        return False
    return True


def _no_room(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
