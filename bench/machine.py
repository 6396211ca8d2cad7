"""Facts about the machine, without which no figure means anything."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)


def file_system(path: Path) -> str:
    """The file system that holds `path`, as "type on device (options)"."""
    where = path.resolve()
    best = ("", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return best[1]
    for line in mounts:
        device, point, kind, options = line.split()[:4]
        point = point.replace("\\040", " ")
        if where.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, f"{kind} on {device} ({options})")
    return best[1]


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def facts(data: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures. `data` is where the logs are written."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": file_system(data),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "commit": _commit(),
        "load_average_at_start": [round(load, 2) for load in os.getloadavg()],
    }


class Others:
    """How much of the processors others used while a run went on: what spoils figures without leaving a trace."""

    def __init__(self) -> None:
        self.start = self._now()

    def _now(self) -> tuple[float, float]:
        """Seconds that all processors were busy, and seconds that all of them had, without what this run used."""
        try:
            fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except OSError:
            return 0.0, 0.0
        tick = os.sysconf("SC_CLK_TCK")
        used = os.times()
        ours = used.user + used.system + used.children_user + used.children_system
        idle = fields[3] + fields[4]
        return (sum(fields) - idle) / tick - ours, sum(fields) / tick

    def share(self) -> float:
        """The share of all processors that others used, 0 to 1."""
        busy, total = (now - then for now, then in zip(self._now(), self.start, strict=True))
        return max(0.0, busy / total) if total else 0.0


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of the packages measured and of SQLite, which several of them are made of."""
    found = {}
    for name in sorted(set(distributions) | {"pyarrow", "Cython"}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "SQLite library": sqlite3.sqlite_version}
