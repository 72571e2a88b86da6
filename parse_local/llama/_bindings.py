"""Imports llama-cpp-python's low-level module on the right native library.

`lib` is the module `llama_cpp.llama_cpp`: one ctypes declaration for each function of llama.h.

Two installations exist. Normally parse-local brings both halves along: the
library that it built (`parse_local/lib`) and the declarations out of the same
source distribution (`parse_local/_vendor`; docs/building.md says why). Installed
with -DPARSE_LOCAL_NATIVE=OFF it brings neither and uses the user's own
llama-cpp-python.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import parse_local
from parse_local.errors import NativeLibraryError

LLAMA_CPP_PYTHON_VERSION = "0.3.36"

_LIBRARY_NAMES = ("libllama.so", "libllama.dylib", "llama.dll", "libllama.dll")
_REBUILD = "reinstall parse-local (`pip install --force-reinstall --no-deps .` in its checkout)"
_STOCK = f"`pip install llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}`"


def _package_directory(name: str, *any_of: str) -> Path | None:
    # An editable installation has two directories: the checkout, and the one
    # in site-packages that the build has filled.
    for root in parse_local.__path__:
        directory = Path(root) / name
        if any((directory / file).exists() for file in any_of):
            return directory
    return None


def _import_declarations() -> ModuleType:
    vendor = _package_directory("_vendor", "llama_cpp/llama_cpp.py")
    if vendor is None or "llama_cpp" in sys.modules:
        return importlib.import_module("llama_cpp.llama_cpp")
    sys.path.insert(0, str(vendor))
    try:
        return importlib.import_module("llama_cpp.llama_cpp")
    finally:
        sys.path.remove(str(vendor))


SPINS = 3000
"""Turns that a waiting thread of OpenMP spins before it sleeps; libgomp's own default is 300,000.

llama.cpp's threads meet some hundred times a token. While one of them spins for milliseconds,
it holds the core that the awaited one needs wherever other programs run as well
(docs/benchmarks/waiting.md).
"""


def _bound_spinning() -> None:
    # Read by libgomp as it is loaded. Values of the user's own win.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


def _load() -> Any:
    _bound_spinning()
    own = _package_directory("lib", *_LIBRARY_NAMES)
    if own is not None:
        # Read by llama_cpp as it is imported. A value of the user's own wins.
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(own))
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    remedy = _REBUILD if chosen is None or chosen == str(own) else "correct LLAMA_CPP_LIB_PATH"
    try:
        module = _import_declarations()
    except ModuleNotFoundError as error:
        if error.name != "llama_cpp":
            raise
        raise NativeLibraryError(
            f"llama.cpp is not installed: {_REBUILD}, or bring your own with {_STOCK}."
        ) from error
    except FileNotFoundError as error:
        where = chosen or "llama-cpp-python's own directory"
        raise NativeLibraryError(
            f"llama.cpp's shared library is missing from {where}: {remedy}."
        ) from error
    except (OSError, RuntimeError) as error:
        raise NativeLibraryError(
            f"llama.cpp's shared library cannot be loaded ({error}): {remedy}."
        ) from error
    except AttributeError as error:  # a declared function that the library does not have
        raise NativeLibraryError(
            f"llama.cpp's shared library is of another version ({error}): {remedy}."
        ) from error
    version = getattr(sys.modules["llama_cpp"], "__version__", "of unknown version")
    if version != LLAMA_CPP_PYTHON_VERSION:
        # Struct layouts change between releases, and a wrong one corrupts memory.
        raise NativeLibraryError(
            f"llama-cpp-python {version} is loaded but parse-local needs "
            f"{LLAMA_CPP_PYTHON_VERSION}: {_STOCK}, or import parse_local first."
        )
    return module


# Any: the declarations are ctypes, of which a type checker can say nothing useful.
lib: Any = _load()
