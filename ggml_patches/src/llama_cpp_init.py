"""Low-level declarations of llama-cpp-python 0.3.36, brought along by parse-local.

Stands in for the package's own `__init__`, which imports everything at once: 0.15 s
that parse-local has no use for. What that one exports is still here, on first use.
"""

from importlib import import_module
from typing import Any

__version__ = "0.3.36"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    for module in (".llama_cpp", ".llama"):
        exported = vars(import_module(module, __name__))
        if name in exported:
            return exported[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
