"""The processors of a process: limits of containers and schedulers, and threads that are bound."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from gossamer.device import host
from gossamer.device.affinity import bound


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"),
                    reason="the system does not bind threads to processors")
def test_a_bound_thread_is_free_again() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    with pytest.raises(KeyError), bound([first]):
        assert os.sched_getaffinity(0) == {first}
        raise KeyError
    assert os.sched_getaffinity(0) == before
    with bound([]):
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
    ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
    ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
    ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
    ("0::/../elsewhere\n", {"cpu.max": "300000 100000"}, 3.0),
    ("0::/\n", {}, math.inf),
    ("0::/\n", {"cpu.max": "odd"}, math.inf),
    ("0::/\n", {"cpu.max": "1 0"}, math.inf),
    ("4:memory:/x\n3:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "400000",
                                         "cpu/x/cpu.cfs_period_us": "100000"}, 4.0),
    ("3:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
     math.inf),
    ("3:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_period_us": "1"}, math.inf),
    ("3:cpu:/a:b\n", {"cpu/a:b/cpu.cfs_quota_us": "100", "cpu/a:b/cpu.cfs_period_us": "100"}, 1.0),
    (None, {}, math.inf),
])
def test_the_least_limit_of_all_groups_counts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None,
        files: Mapping[str, str], expected: float) -> None:
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "self")
    monkeypatch.setattr(host, "_ROOT", tmp_path / "root")
    if groups is not None:
        (tmp_path / "self").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert host.cpu_quota() == expected


@pytest.mark.parametrize(("quota", "bound", "expected"), [
    (math.inf, 3, 3), (1.5, 64, 2), (0.2, 64, 1), (8.0, 3, 3)])
def test_a_part_of_a_processor_counts_as_one(monkeypatch: pytest.MonkeyPatch, quota: float,
                                             bound: int, expected: int) -> None:
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(bound)), raising=False)
    host._most_processors.cache_clear()
    try:
        assert host.processors() == expected
    finally:
        host._most_processors.cache_clear()
