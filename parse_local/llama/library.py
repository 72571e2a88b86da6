"""The native library: loading it, keeping its log in hand, reporting what it can do."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parse_local.llama._bindings import lib

_LEVEL_WARN, _LEVEL_ERROR, _LEVEL_CONT = 3, 4, 5  # enum ggml_log_level
_LOG_LINES = 64  # that are kept for an error message
_DEVICE_CPU = 0  # enum ggml_backend_dev_type
_DEVICE_TYPES = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}

_SHIM_VERSION = b"2"
_SHIM_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int32}
_SHIM_FUNCTIONS = {  # kinds of the arguments: pointers and 32-bit integers
    "parse_local_score_rows": "piipippppp",
    "parse_local_label_logprobs": "piipiip",
    "parse_local_decode_token": "ppiiip",
    "parse_local_sample_row": "ppipipipipp",
}


class Log:
    """llama.cpp's log: kept back, so that an error can quote it, or let through with `verbose`."""

    def __init__(self) -> None:
        self.verbose = False
        self._level = 0
        self._every_level = False
        self._recent: deque[str] = deque(maxlen=_LOG_LINES)

    def write(self, level: int, text: str) -> None:
        """Take one message, as ggml_log_callback hands it over."""
        if level != _LEVEL_CONT:
            self._level = level
        wanted = self._every_level or self._level in (_LEVEL_WARN, _LEVEL_ERROR)
        if wanted and text.strip():
            self._recent.append(text.strip())
        if self.verbose:
            sys.stderr.write(text)

    @contextmanager
    def capture(self, *, every_level: bool = False) -> Iterator[deque[str]]:
        """Collect what is logged inside the block: warnings and errors, or everything."""
        self._recent = deque(maxlen=None if every_level else _LOG_LINES)
        self._every_level = every_level
        try:
            yield self._recent
        finally:
            self._every_level = False


log = Log()


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log_callback(level: int, text: bytes, _user_data: Any) -> None:
    log.write(level, text.decode("utf-8", "replace"))


@cache
def init() -> None:
    """Start llama.cpp once; every entry point of this package calls it first."""
    # Should an assertion of llama.cpp's ever fail, its message is worth more
    # than a debugger's backtrace of the Python interpreter.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    lib.llama_log_set(_log_callback, ctypes.c_void_p(0))
    lib.llama_backend_init()


@dataclass(frozen=True)
class Device:
    """A backend device; memory in bytes."""

    name: str
    description: str
    type: str
    memory_free: int
    memory_total: int


@dataclass(frozen=True)
class LibraryInfo:
    """What the loaded library is and can do."""

    path: str
    patched: bool
    shim: bool
    gpu_offload: bool
    system_info: str
    devices: tuple[Device, ...]


@cache
def shim() -> ctypes.CDLL | None:
    """Our C functions beside llama.cpp (ggml_patches/src/parse-local.h).

    None where there is only a stock library, or in a checkout whose native part is older
    than its Python code.
    """
    directory = Path(str(lib._lib._name)).parent
    names = ("libparse_local.so", "libparse_local.dylib", "parse_local.dll", "libparse_local.dll")
    for name in names:
        if (directory / name).exists():
            return _declared(ctypes.CDLL(str(directory / name)))
    return None


def _declared(shim: ctypes.CDLL) -> ctypes.CDLL | None:
    shim.parse_local_shim_version.restype = ctypes.c_char_p
    if shim.parse_local_shim_version() != _SHIM_VERSION:
        return None
    for name, kinds in _SHIM_FUNCTIONS.items():
        function = getattr(shim, name)
        function.argtypes = [_SHIM_TYPES[kind] for kind in kinds]
        function.restype = ctypes.c_int32
    return shim


@cache
def llama_functions() -> Any:
    """Pointers to llama.cpp's functions, as those of `shim` take them (parse_local_llama)."""
    names = ("decode", "get_logits_ith", "sampler_reset", "sampler_accept", "sampler_apply")
    functions = [getattr(lib._lib, f"llama_{name}") for name in names]
    return (ctypes.c_void_p * len(names))(
        *(ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    )


@cache
def seq_fork() -> Any | None:
    """The patch's `llama_memory_seq_fork`, or None on a stock library."""
    try:
        function = lib._lib.llama_memory_seq_fork
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
    function.restype = ctypes.c_int32
    return function


def _ggml(name: str, restype: Any, *argtypes: Any) -> Any:
    # ggml's registry lives in a library that libllama links to; dlsym finds it
    # through libllama's handle, Windows needs the handle of the DLL itself.
    handle = lib._lib
    if sys.platform == "win32":
        handle = ctypes.CDLL(str(Path(str(lib._lib._name)).parent / "ggml.dll"))
    function = getattr(handle, name)
    function.restype, function.argtypes = restype, list(argtypes)
    return function


def devices() -> tuple[Device, ...]:
    """All devices that llama.cpp has a backend for (ggml_backend_dev_count)."""
    init()
    count = _ggml("ggml_backend_dev_count", ctypes.c_size_t)
    get = _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    description = _ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    memory = _ggml(
        "ggml_backend_dev_memory",
        None,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    )
    found = []
    for i in range(count()):
        device = get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                name=name(device).decode(),
                description=description(device).decode(),
                type=_DEVICE_TYPES.get(kind(device), "other"),
                memory_free=free.value,
                memory_total=total.value,
            )
        )
    return tuple(found)


def gpus() -> tuple[Device, ...]:
    """The devices that layers can be placed on."""
    if not lib.llama_supports_gpu_offload():
        return ()
    return tuple(d for d in devices() if d.type in ("gpu", "igpu"))


def has_matrix_unit() -> bool:
    """Whether the CPU's backend uses a matrix unit (AMX), which reads a batch in little more time
    than a token."""
    return "AMX_INT8 = 1" in info().system_info


def info() -> LibraryInfo:
    """Describe the loaded library."""
    init()
    return LibraryInfo(
        path=str(lib._lib._name),
        patched=seq_fork() is not None,
        shim=shim() is not None,
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
        system_info=lib.llama_print_system_info().decode("utf-8", "replace").strip(),
        devices=devices(),
    )
