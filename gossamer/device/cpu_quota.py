"""Reads how many processors a container or a scheduler leaves to this process (Linux)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def cpu_quota() -> float:
    """Return the number of processors that the control groups of this process allow it, such as
    1.5; infinite where no limit is set or known."""
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += [_version_2(folder) for folder in _folders(_ROOT, path)]
        elif "cpu" in controllers.split(","):
            limits += [_version_1(folder) for folder in _folders(_ROOT / "cpu", path)]
    return min(limits)


def _folders(root: Path, path: str) -> Iterator[Path]:
    """Yield the folder of a control group, and the folders of the groups that contain it."""
    # in a container the path may begin with "..": the group lies above the mounted folder
    names = [name for name in PurePosixPath(path).parts if name not in ("/", "..")]
    for count in range(len(names) + 1):
        yield root.joinpath(*names[:count])


def _version_2(folder: Path) -> float:
    """Return the limit of a control group of version 2. Its file holds the quota and the period:
    'max 100000' (no limit) or '150000 100000'."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def _version_1(folder: Path) -> float:
    """Return the limit of a control group of version 1. One of its files holds the quota (-1 for
    no limit), and another file holds the period."""
    try:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text())
                         for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
