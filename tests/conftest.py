"""Fixtures that several test modules share: tiny models, and pairs of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tiny_gguf import write_tiny_gguf

# Tests assert behaviour, not seconds: on a busy machine an example may take any time.
settings.register_profile("parse-local", deadline=None)
settings.load_profile("parse-local")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that writes each distinct tiny GGUF once; arguments as `write_tiny_gguf`."""
    directory = tmp_path_factory.mktemp("tiny")
    written: dict[str, Path] = {}

    def write(**arguments: Any) -> Path:
        inspect.signature(write_tiny_gguf).bind(Path(), **arguments)
        key = repr(sorted(arguments.items(), key=lambda item: item[0]))
        if key not in written:
            path = directory / f"tiny-{len(written)}.gguf"
            written[key] = write_tiny_gguf(path, **arguments)
        return written[key]

    return write


def _loader() -> Iterator[Callable[..., Any]]:
    from parse_local import load_pair

    engines = []

    def load(**arguments: Any) -> Any:
        exact = {"n_ctx": 1024, "n_threads": 1, "kv_type": "f32", "flash_attn": "off"}
        exact["n_gpu_layers"] = 0  # a GPU's kernels round otherwise; tests/test_gpu.py is about it
        exact["spec"] = "none"  # tokens decoded can be counted
        engines.append(load_pair(**{**exact, **arguments}))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


@pytest.fixture
def load() -> Iterator[Callable[..., Any]]:
    """`load_pair` with settings under which results are exact; closed after the test."""
    yield from _loader()


@pytest.fixture(scope="module")
def load_once() -> Iterator[Callable[..., Any]]:
    """As `load`, for fixtures that a whole module shares."""
    yield from _loader()
