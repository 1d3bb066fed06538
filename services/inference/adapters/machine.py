"""Measures the machine's cores and memory, and the load of other processes."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_TOPOLOGY = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def core_count() -> int:
    """Return the number of physical cores that this process may use, limited by its affinity and its cgroup's quota."""
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1
    siblings = {_read(_TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in usable_processors()}
    return max(1, min(len(siblings), int(_quota_cores())))


def free_memory_bytes() -> int:
    """Return the number of bytes that are free without swapping, on the machine and within this process's cgroup.

    The file cache counts as free, because the kernel releases it when memory is needed.
    """
    free = int(psutil.virtual_memory().available)
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if not limit.isdigit() or not used.isdigit():
        return free
    lines = map(str.split, _read(_CGROUP / "memory.stat").splitlines())
    cached = sum(int(count) for name, count in lines if name in ("active_file", "inactive_file"))
    return min(free, int(limit) - int(used) + cached)


def cpu_name() -> str:
    """Return the model of the processor."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@dataclass(frozen=True, slots=True)
class CpuClock:
    """A reading of the processor time used by all processes on this process's processors, and by this process."""

    at_s: float
    all_s: float
    own_s: float

    @classmethod
    def read(cls) -> CpuClock:
        """Return a reading of the current times."""
        usable = usable_processors()
        times = [used for cpu, used in enumerate(psutil.cpu_times(percpu=True)) if cpu in usable]
        return cls(time.monotonic(), sum(map(_used_s, times)), time.process_time())

    def others_cores(self) -> float:
        """Return the average number of cores that other processes have used since this reading."""
        now = CpuClock.read()
        busy_s = (now.all_s - self.all_s) - (now.own_s - self.own_s)
        return max(0.0, busy_s / max(now.at_s - self.at_s, 0.001))


def spare_cores(wanted: int) -> int:
    """Return the number of processors that this process may use beyond `wanted`."""
    return max(0, len(usable_processors()) - wanted)


def usable_processors() -> set[int]:
    """Return the processors that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return set(range(os.cpu_count() or 1))
    return os.sched_getaffinity(0)


def _used_s(times: Any) -> float:
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # User and nice time already include guest time. Stolen time counts as used by other processes.
    return float(sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0) - idle_s)


def _quota_cores() -> float:
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if not quota:  # cgroup v1
        quota, period = _read(_CGROUP / "cpu/cpu.cfs_quota_us"), _read(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(period):
        return int(quota) / int(period)
    return float(os.cpu_count() or 1)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
