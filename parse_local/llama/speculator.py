"""Proposals for the target's next tokens: llama.cpp's common/speculative, through our C ABI.

A speculator only proposes. Whether a token stays is decided by the target's own
output rows (`parse_local.speculation`), so that nothing here can change a text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parse_local.errors import (
    ModelError,
    OutOfMemoryError,
    PairError,
    ParseLocalError,
    SpeculatorError,
    UsageError,
    VocabularyError,
)
from parse_local.llama import library
from parse_local.llama._bindings import lib
from parse_local.llama.context import Context
from parse_local.llama.context_params import FLASH_ATTN, KV_TYPES
from parse_local.llama.conversations import n_common
from parse_local.llama.model import Model, check_file

NGRAM_SIZE = 3
"""Tokens that have to agree before an n-gram speculator proposes what followed them."""
P_MIN = 0.5
"""A draft model or head stops before a token that it gives less than this."""

_VOCABULARY, _MEMORY, _FILE = -3, -4, -7  # parse-local-speculative.h

_NAMES = (
    "libparse_local_speculative.so",
    "libparse_local_speculative.dylib",
    "parse_local_speculative.dll",
    "libparse_local_speculative.dll",
)


class _Params(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("ctx_tgt", ctypes.c_void_p),
        ("model_dft", ctypes.c_void_p),
        ("path_dft", ctypes.c_char_p),
        ("n_max", ctypes.c_int32),
        ("n_ctx", ctypes.c_int32),
        ("n_threads", ctypes.c_int32),
        ("ngram_size", ctypes.c_int32),
        ("p_min", ctypes.c_float),
        ("type_kv", ctypes.c_int32),
        ("flash_attn", ctypes.c_int32),
        ("heads_loaded", ctypes.c_bool),
        ("abort", ctypes.c_void_p),
        ("abort_data", ctypes.c_void_p),
    )


@cache
def _library() -> Any | None:
    library.init()
    directory = Path(str(lib._lib._name)).parent
    path = next((directory / name for name in _NAMES if (directory / name).exists()), None)
    if path is None:
        return None
    shim = ctypes.CDLL(str(path))
    spec, tokens, n = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
    text, size = ctypes.c_char_p, ctypes.c_size_t
    for name, restype, *argtypes in (
        ("speculative_log", None, ctypes.c_bool),
        ("speculative_type", n, text, text, size, text, size),
        ("speculator_init", spec, ctypes.POINTER(_Params), ctypes.POINTER(n), text, size),
        ("speculator_free", None, spec),
        ("speculator_error", text, spec),
        ("speculator_follows", ctypes.c_bool, spec),
        ("speculator_process", n, spec, tokens, n, n),
        ("speculator_truncate", None, spec, n),
        ("speculator_begin", n, spec, tokens, n),
        ("speculator_propose", n, spec, n, tokens),
        ("speculator_accept", n, spec, tokens, n),
    ):
        function = getattr(shim, f"parse_local_{name}")
        function.restype, function.argtypes = restype, argtypes
    shim.parse_local_speculative_log(library.log.verbose)
    return shim


def available() -> bool:
    """Whether the library is there: not with a stock llama-cpp-python."""
    return _library() is not None


def require() -> Any:
    """The library, or a UsageError that says why there is none."""
    shim = _library()
    if shim is None:
        raise UsageError(
            "This installation has no speculators (it uses a stock llama-cpp-python): "
            "reinstall parse-local with its own llama.cpp, or use --spec none."
        )
    return shim


def type_of(path: Path) -> str:
    """What a GGUF file can serve as.

    Returns:
        "draft-eagle3", "draft-dflash" or "draft-dspark" for such heads, "draft-mtp"
        for a model with usable MTP heads, "draft-simple" for any other model.

    Raises:
        UsageError: this installation has no speculators.
        ModelError: the file cannot be read, or holds a head of an unsupported kind.
    """
    check_file(path)
    kind, error = ctypes.create_string_buffer(64), ctypes.create_string_buffer(512)
    with library.log.capture():
        status = require().parse_local_speculative_type(
            str(path).encode(), kind, len(kind), error, len(error)
        )
    if status:
        raise ModelError(
            f"{path} cannot speculate ({error.value.decode('utf-8', 'replace')}); "
            "give another --spec-model."
        )
    return kind.value.decode()


def _failure(
    status: int, kind: str, model: Model | None, target: Model, text: str
) -> ParseLocalError:
    name = model.path.name if model else f"--spec {kind.split('-')[0]}"
    if status == _VOCABULARY:
        return VocabularyError(
            f"{name} has another vocabulary than {target.path.name}, which token-level "
            "speculation cannot bridge; give another --spec-model, or use --spec ngram."
        )
    if status == _MEMORY:
        return OutOfMemoryError(
            f"llama.cpp could not create the speculator's context for {name} ({text}); "
            "lower --ctx, or use --spec ngram."
        )
    return PairError(
        f"{name} cannot speculate for {target.path.name} ({text}); "
        "give another --spec-model, or use --spec ngram."
    )


class Speculator:
    """Proposes the next tokens of a context's main sequence.

    Speculators that read the target's hidden states attach themselves to the
    context (`Context.follower`) and see every batch of its main sequence; judge
    batches never reach them.

    Args:
        kind: a type of common/speculative, for example "draft-simple" or "ngram-simple".
        context: the target's, which has to outlive the speculator.
        model: draft model or head; None for n-grams and for MTP heads in the target's own file.
        n_max: most tokens of one proposal.
        ngram_size: see NGRAM_SIZE.
        p_min: see P_MIN.
        kv_type, flash_attn: of the speculator's own KV cache, as `Context`.
        owns_model: close the model together with the speculator.

    Raises:
        UsageError: this installation has no speculators.
        VocabularyError, PairError: model and target do not fit together.
        OutOfMemoryError: its KV cache could not be allocated.

    Source: common_speculative_init.
    """

    def __init__(
        self,
        kind: str,
        context: Context,
        model: Model | None = None,
        *,
        n_max: int,
        ngram_size: int = NGRAM_SIZE,
        p_min: float = P_MIN,
        kv_type: str = "f16",
        flash_attn: str = "auto",
        owns_model: bool = False,
    ) -> None:
        self._handle: Any = None
        self._shim = require()
        self._context = context
        self._model = model if owns_model else None
        self.kind = kind
        self.n_max = n_max
        self._out = np.empty(n_max, np.int32)
        # What was last begun with, as a list and as llama.cpp takes it.
        self._begun: list[int] = []
        self._begun_array = np.empty(0, np.int32)
        params = _Params(
            type=kind.encode(),
            ctx_tgt=ctypes.cast(context.handle, ctypes.c_void_p),
            model_dft=ctypes.cast(model.handle, ctypes.c_void_p) if model else None,
            path_dft=str(model.path).encode() if model else None,
            n_max=n_max,
            n_ctx=context.n_ctx,
            n_threads=context.n_threads,
            ngram_size=ngram_size,
            p_min=p_min,
            type_kv=KV_TYPES[kv_type],
            flash_attn=FLASH_ATTN[flash_attn],
            heads_loaded=(model or context.model).has_mtp_heads,
            abort=ctypes.cast(context.abort_callback, ctypes.c_void_p),
            abort_data=ctypes.cast(ctypes.byref(context.cancel.value), ctypes.c_void_p),
        )
        status, error = ctypes.c_int32(), ctypes.create_string_buffer(512)
        with library.log.capture():
            self._handle = self._shim.parse_local_speculator_init(
                ctypes.byref(params), ctypes.byref(status), error, len(error)
            )
        if not self._handle:
            text = error.value.decode("utf-8", "replace")
            raise _failure(status.value, kind, model, context.model, text)
        if self._shim.parse_local_speculator_follows(self._handle):
            context.clear()  # what is in there has not been seen
            context.follower = self

    def begin(self, sequence: Sequence[int]) -> None:
        """Start a continuation of `sequence`, whose last token is not decoded yet.

        Whoever drafts asks for n-grams behind every drafted token: only what is new of a long
        context is converted.
        """
        n, known = len(sequence), n_common(self._begun, sequence)
        if n > len(self._begun_array):
            self._begun_array = np.resize(self._begun_array, 2 * n)
        self._begun[known:] = sequence[known:]
        self._begun_array[known:n] = self._begun[known:]
        self._call("begin", self._begun_array[:n])

    def propose(self, n_max: int) -> list[int]:
        """At most `n_max` tokens that may follow; empty where it has no idea.

        Raises:
            SpeculatorError: its model failed, or was asked to stop.
        """
        n_max = min(n_max, self.n_max)
        with library.log.capture():
            n = self._shim.parse_local_speculator_propose(
                self._handle, n_max, self._out.ctypes.data
            )
        self._check(n)
        proposal: list[int] = self._out[:n].tolist()
        return proposal

    def process(self, tokens: Sequence[int], position: int) -> None:
        """See a batch that the target has just decoded from `position` on.

        Never raises: the target's decode has succeeded. A speculator that could not keep
        up proposes nothing until the sequence begins anew.
        """
        array = np.asarray(tokens, np.int32)
        with library.log.capture():
            self._shim.parse_local_speculator_process(
                self._handle, array.ctypes.data, len(array), position
            )

    def truncate(self, n: int) -> None:
        """The target's main sequence has been cut to `n` tokens."""
        self._shim.parse_local_speculator_truncate(self._handle, n)

    def accept(self, tokens: Sequence[int]) -> None:
        """The sequence goes on with `tokens`: accepted proposals, and one of the target's own."""
        self._call("accept", tokens)

    def _call(self, name: str, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        array = np.asarray(tokens, np.int32)
        function = getattr(self._shim, f"parse_local_speculator_{name}")
        self._check(function(self._handle, array.ctypes.data, len(array)))

    def _check(self, status: int) -> None:
        if status < 0:
            text = self._shim.parse_local_speculator_error(self._handle).decode("utf-8", "replace")
            raise SpeculatorError(f"Speculation ({self.kind}) failed: {text}.")

    def close(self) -> None:
        """Free it; the context is left as it would be without."""
        if self._handle:
            if self._context.follower is self:
                self._context.follower = None
            self._shim.parse_local_speculator_free(self._handle)
            self._handle = None
        if self._model is not None:
            self._model.close()
            self._model = None
