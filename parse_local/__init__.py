"""parse-local: local chat, sped up by parallel prefix verification.

A small draft model writes, the large target model judges all prefixes of the
draft in one batch, keeps the longest valid one and writes only the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parse_local._version import __version__
from parse_local.errors import ParseLocalError
from parse_local.events import Result
from parse_local.load_options import LoadOptions
from parse_local.policy import Options

if TYPE_CHECKING:
    from parse_local.engine import Engine
    from parse_local.pair import load_pair

__all__ = [
    "Engine",
    "LoadOptions",
    "Options",
    "ParseLocalError",
    "Result",
    "__version__",
    "load_pair",
]


def __getattr__(name: str) -> Any:
    # Loading llama.cpp takes a second; `parse-local --help` and completion do without.
    if name == "load_pair":
        from parse_local.pair import load_pair

        return load_pair
    if name == "Engine":
        from parse_local.engine import Engine

        return Engine
    raise AttributeError(f"module 'parse_local' has no attribute {name!r}")
