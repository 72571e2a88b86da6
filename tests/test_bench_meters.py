"""Memory and energy of an answer."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from parse_local.bench.meters import Energy, PeakMemory


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no high-water mark")
def test_the_peak_is_that_of_the_time_between() -> None:
    memory = PeakMemory()
    size = 200_000_000
    memory.start(os.getpid())
    # A mapping of its own: the heap may still hold as much that was freed and stayed resident.
    with mmap.mmap(-1, size) as hog:
        for page in range(0, size, mmap.PAGESIZE):
            hog[page] = 1
    first = memory.stop()
    memory.start(os.getpid())
    second = memory.stop()
    assert first is not None
    assert second is not None
    assert first - second > 0.9 * size  # the second measurement knows nothing of it


def test_no_process_has_no_memory() -> None:
    memory = PeakMemory()
    memory.start(None)
    assert memory.stop() is None


def rapl(directory: Path, name: str, joules: float) -> Path:
    zone = directory / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{round(joules * 1e6)}\n")
    (zone / "max_energy_range_uj").write_text(f"{1000 * 10**6}\n")
    return zone


def test_energy_is_the_sum_of_packages_and_survives_a_counter_that_wraps(tmp_path: Path) -> None:
    rapl(tmp_path, "intel-rapl:0", 100)
    rapl(tmp_path, "intel-rapl:1", 990)
    rapl(tmp_path, "intel-rapl:0:0", 50)  # the cores of package 0, counted with it
    energy = Energy(tmp_path)
    nothing = Energy(tmp_path / "absent")
    energy.start()
    rapl(tmp_path, "intel-rapl:0", 103)
    rapl(tmp_path, "intel-rapl:1", 5)
    rapl(tmp_path, "intel-rapl:0:0", 77)
    found = energy.stop()
    if nothing.available:
        pytest.skip("a GPU counts too")
    assert found == pytest.approx(3 + 15)
    nothing.start()
    assert nothing.stop() is None
