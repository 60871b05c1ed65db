"""How far processors are said to be apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gossamer.bench import processors

BINDS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"),
                           reason="the system does not bind threads to processors")


def caches(folder: Path, processor: int, shared: dict[int, str]) -> None:
    """Writes the caches of a processor by their level as the system lists them."""
    for index, (level, text) in enumerate(shared.items()):
        cache = folder / f"cpu{processor}" / "cache" / f"index{index}"
        cache.mkdir(parents=True)
        (cache / "level").write_text(f"{level}\n")
        (cache / "shared_cpu_list").write_text(f"{text}\n")


def test_the_last_cache_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 2, {1: "2", 2: "2,10", 3: "0-3,8,10-11"})
    assert processors.sharing_cache(2) == {0, 1, 2, 3, 8, 10, 11}
    assert processors.sharing_cache(3) == set()


def test_the_farthest_processor_that_shares_a_cache_counts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 1, {3: "0-3"})
    monkeypatch.setattr(processors, "allowed", lambda: [1, 2, 3, 9])
    times = {1: 22.0, 2: 40.0, 3: 142.0}
    monkeypatch.setattr(processors, "_read_ns", lambda writer, reader: times[writer])
    assert processors.transfer_ns() == 120.0
    times[1] = 150.0
    assert processors.transfer_ns() == 0.0


@pytest.mark.parametrize("allowed", [[], [1], [1, 9]])
def test_a_processor_that_shares_no_cache_is_not_far(
        allowed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_SYSTEM", tmp_path)
    caches(tmp_path, 1, {3: "0-3"})
    monkeypatch.setattr(processors, "allowed", lambda: allowed)
    assert processors.transfer_ns() == 0.0


def test_what_was_far_most_times_is_told_of() -> None:
    for transfers, median in (((), 0), ((80.0,), 80), ((10.0, 81.0, 95.0), 81),
                              ((10.0, 10.0, 99.0), 10)):
        notice = processors.far_notice(transfers)
        assert notice.startswith(f"a cache line takes {median} ns") == (median > processors.FAR_NS)


@BINDS
def test_the_other_processor_writes_and_the_first_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("this process may use one processor")
    bound: list[int] = []
    set_affinity = os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, chosen: (
        bound.extend(chosen if len(chosen) == 1 else ()), set_affinity(thread, chosen)))
    first, second, *_ = sorted(before)
    assert processors._read_ns(second, first) > 0
    assert bound == [second, first]
    assert os.sched_getaffinity(0) == before
