"""The native library: what it says about itself, and its log."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from parse_local.llama import _bindings, library
from parse_local.llama._bindings import lib


def test_info_describes_the_loaded_library() -> None:
    info = library.info()
    directory = Path(info.path).parent
    assert directory.samefile(Path(lib._lib._name).parent)
    assert info.shim == any(directory.glob("*parse_local.*"))
    assert info.patched == hasattr(lib._lib, "llama_memory_seq_fork")
    assert "CPU" in info.system_info
    cpu = [d for d in info.devices if d.type == "cpu"]
    assert len(cpu) == 1
    assert cpu[0].memory_total == pytest.approx(psutil.virtual_memory().total, rel=0.01)


def test_a_library_without_gpu_offload_has_no_gpu() -> None:
    assert bool(library.gpus()) <= bool(lib.llama_supports_gpu_offload())
    assert all(d.type in ("gpu", "igpu") for d in library.gpus())


def test_the_log_keeps_warnings_and_errors_with_their_continuations() -> None:
    log = library.Log()
    with log.capture() as kept:
        log.write(2, "info\n")
        log.write(3, "warning: a\n")
        log.write(5, "continued\n")
        log.write(2, "info again\n")
        log.write(5, "continued info\n")
        log.write(4, "error\n")
    assert list(kept) == ["warning: a", "continued", "error"]


def test_the_log_is_silent_unless_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    log = library.Log()
    log.write(4, "kept back\n")
    assert capsys.readouterr().err == ""
    log.verbose = True
    log.write(2, "let through\n")
    assert capsys.readouterr().err == "let through\n"


def test_a_shim_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a checkout, Python code may be newer than what was compiled.
    if library.shim() is None:
        pytest.skip("libparse_local is not beside this llama.cpp")
    monkeypatch.setattr(library, "_SHIM_VERSION", b"999")
    assert library.shim.__wrapped__() is None


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "3000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_waiting_threads_do_not_spin_for_long_unless_asked_to(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spins: str | None
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    _bindings._bound_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
