"""What an answer takes from the machine besides time: memory and energy, where it can be read."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

_POWERCAP = Path("/sys/class/powercap")


Counter = tuple[Callable[[], float], float]
"""What reads joules, and the value at which it begins again from 0."""


class PeakMemory:
    """The most memory that a process has held since `start`.

    Linux keeps a high-water mark that can be set back; elsewhere what the process holds at
    the end stands for it, or its peak since it began where that is all there is.
    """

    def start(self, pid: int | None) -> None:
        """Begin anew with this process; None measures nothing."""
        self._pid = pid
        if sys.platform == "linux" and pid is not None:
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
            except OSError:
                return  # not ours to set back: then it is the peak since it began

    def stop(self) -> int | None:
        """Bytes; None where the process has gone or was none."""
        if self._pid is None:
            return None
        try:
            if sys.platform == "linux":
                status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
                line = next(x for x in status.splitlines() if x.startswith("VmHWM:"))
                return int(line.split()[1]) * 1024
            held = psutil.Process(self._pid).memory_info()
            return int(getattr(held, "peak_wset", held.rss))
        except (OSError, StopIteration, psutil.Error):
            return None


class Energy:
    """Joules that processors and GPUs have taken since `start`, whoever made them work.

    From counters in hardware: RAPL of the processor packages (Linux; reading it mostly takes
    root) and NVML of NVIDIA's GPUs.

    Args:
        powercap: the directory of the RAPL counters.
    """

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._counters: list[Counter] = [*_rapl(powercap), *_nvml()]
        self._before: list[float] = []

    @property
    def available(self) -> bool:
        """Whether there is any counter that can be read."""
        return bool(self._counters)

    def start(self) -> None:
        """Begin anew."""
        self._before = [read() for read, _ in self._counters]

    def stop(self) -> float | None:
        """Joules since `start`, None without a counter."""
        if not self._counters:
            return None
        total = 0.0
        for (read, wraps_at), before in zip(self._counters, self._before, strict=True):
            spent = read() - before
            total += spent + wraps_at if spent < 0 else spent
        return total


def _rapl(powercap: Path) -> list[Counter]:
    # One a package; what is inside it (cores, graphics) has names with a second colon.
    found: list[Counter] = []
    for zone in sorted(powercap.glob("*-rapl:*")):
        if zone.name.count(":") > 1:
            continue
        counter = zone / "energy_uj"

        def read(counter: Path = counter) -> float:
            return int(counter.read_text(encoding="ascii")) / 1e6

        try:
            read()
            wraps_at = int((zone / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6
        except (OSError, ValueError):
            continue
        found.append((read, wraps_at))
    return found


def _nvml() -> list[Counter]:
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        nvml = ctypes.CDLL(name)
        n = ctypes.c_uint()
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(n)) != 0:
            return []
    except (OSError, AttributeError):
        return []
    found: list[Counter] = []
    for i in range(n.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)) != 0:
            continue
        millijoules = ctypes.c_ulonglong()
        # Cards before Volta have no such counter.
        if nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)) != 0:
            continue

        def read(device: ctypes.c_void_p = device) -> float:
            value = ctypes.c_ulonglong()
            nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(value))
            return value.value / 1e3

        found.append((read, 0.0))
    return found
