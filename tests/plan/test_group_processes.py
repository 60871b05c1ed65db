"""Groups whose devices have processes: here over the host and PoCL, as on several GPUs."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gossamer
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning, InputError, OutOfMemoryError
from gossamer.plan import group_processes
from gossamer.plan.batcher import Batcher
from gossamer.plan.group_processes import DeviceProcesses
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import model, save
from tests.plan.groups_of_processes import OF_PROCESSES, check, made, pids, processes, started
from tests.plan.small import assert_close, expected, images
from tests.processes import SECONDS, runs, until

pytestmark = OF_PROCESSES
HAVE_PROCESSES = group_processes.have_processes


# what comes back


def test_devices_that_compile_kernels(pocl: Any, tmp_path: Path) -> None:
    with made(tmp_path, [pocl.name, "host", pocl.name]) as group:
        batches = [images(size % 4 + 1, size) for size in range(40)]
        check(batches, group.stream(batches))
        assert len({member.plan for member in processes(group).processes}) == 2


def test_large_arrays_are_copied_in_parts(tmp_path: Path) -> None:
    proto = model([helper.make_node("Neg", ["x"], ["y"], "minus")], {"x": ["N", 1000, 1000]},
                  {"y": 3})
    with gossamer.compile(str(save(proto, tmp_path)), "host,host") as group:
        x = np.arange(3_000_000, dtype=np.float32).reshape(3, 1000, 1000)
        for y in group.stream([x, x[:1], x[:, ::-1], x.transpose(0, 2, 1)[:2]]):
            assert y[0, 0, 1] in (-x[0, 0, 1], -x[0, -1, 1], -x[0, 1, 0])
        np.testing.assert_array_equal(group(x), -x)


def test_arrays_of_other_libraries(of_processes: PlanGroup) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    x = images(2)
    y = next(of_processes.stream([torch.from_numpy(x)]))
    assert isinstance(y, torch.Tensor)
    assert_close(y.numpy(), expected(x))


def test_calls_from_threads(of_processes: PlanGroup) -> None:
    batches = [images(2, seed) for seed in range(24)]
    with ThreadPoolExecutor(8) as pool:
        check(batches, pool.map(of_processes, batches))
    assert of_processes.plans[0].contexts == 4
    assert not of_processes.plans[0]._calls.contexts.all(), "this process computes nothing"


# memory that callers get


def test_pinned_arrays_are_computed_where_they_lie(of_processes: PlanGroup,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [of_processes.pinned(4) for _ in range(6)]
    assert all(array.shape == (4, 3, 6, 5) and not array.any() for array in arrays)
    for seed, array in enumerate(arrays):
        array[...] = images(4, seed)

    def copied(*_: Any) -> None:
        raise AssertionError("a pinned array was copied")

    monkeypatch.setattr(processes(of_processes).arrays, "_copied", copied)
    check(arrays, of_processes.stream(arrays))
    for array in arrays:
        array[...] *= -1
    check(arrays * 2, of_processes.stream(arrays * 2))
    check([array[1:3] for array in arrays], of_processes.stream(array[1:3] for array in arrays))
    assert_close(of_processes(arrays[0]), expected(arrays[0]))


def test_pinned_arrays_outlive_the_group(of_processes: PlanGroup, tmp_path: Path) -> None:
    with made(tmp_path) as group:
        array = group.pinned(2)
        array[...] = images(2)
        y = group(array)
    del group
    gc.collect()
    for result in (y, of_processes(array)):
        assert_close(result, expected(array))


def test_pinned_arrays_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    group = made(tmp_path)
    assert not isinstance(group.members, DeviceProcesses)
    x = group.pinned(3)
    x[...] = images(3)
    assert_close(group(x), expected(x))
    for batch in (0, -1, 1.5, None):
        with pytest.raises(InputError, match=f"batch is {batch}, expected 1 or more"):
            group.pinned(batch)  # type: ignore[arg-type]


def test_memory_and_files_do_not_grow_with_the_batches(of_processes: PlanGroup) -> None:
    sizes = [*range(1, 9), 1, 8, 7, 1, 2]
    list(of_processes.stream(images(size, size) for size in [*sizes, *[6] * 100]))
    memory = processes(of_processes).arrays.memory
    before = memory._end, len(os.listdir("/proc/self/fd"))
    list(of_processes.stream(images(size, size) for size in [*sizes, *[6] * 200]))
    assert memory._end <= before[0] + 12 * 4 * 4096
    assert len(os.listdir("/proc/self/fd")) <= before[1]


def test_times_are_those_of_the_member(of_processes: PlanGroup,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = processes(of_processes).processes

    def compute(begin: Any) -> Any:
        raise AssertionError("another device was asked")

    monkeypatch.setattr(first, "compute", compute)
    assert 0 < second.seconds(2) < SECONDS


# bounds and errors


def test_an_error_of_the_network_is_the_batch_s_own(tmp_path: Path) -> None:
    proto = model([helper.make_node("Gather", ["table", "x"], ["y"], "pick")],
                  {"x": ["N"]}, {"y": 2},
                  {"table": np.float32([[1, 2], [3, 4]])})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    with gossamer.compile(str(save(proto, tmp_path)), "host,host") as group:
        batches = [np.int64([0, 1]), np.int64([5]), np.int64([1])]
        first, wrong, last = group.stream(batches, errors="return")
        assert first.tolist() == [[1, 2], [3, 4]] and last.tolist() == [[3, 4]]
        assert isinstance(wrong, InputError) and str(wrong).startswith("batch 1: ")
        assert group.device_names == "host, host"


def test_a_group_that_is_dropped_or_left_in_the_middle_ends(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    group = started(made(tmp_path))
    ids = pids(group)

    def endless() -> Iterator[np.ndarray]:
        while True:
            yield images(2)

    for y in group.stream(endless()):
        assert_close(y, expected(images(2)))
        break
    gc.collect()
    assert_close(group(images(2)), expected(images(2)))
    stream = group.stream(endless())
    next(stream)
    del group
    gc.collect()
    # the stream needs the group
    assert_close(next(stream), expected(images(2)))
    assert all(map(runs, ids))
    del stream
    gc.collect()
    until(lambda: not any(map(runs, ids)))
    # threads that end last leave cycles of references
    until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= before + 2)


def test_a_closed_group_computes_nothing(tmp_path: Path) -> None:
    """Requests fail as calls do."""
    group = started(made(tmp_path))
    ids = pids(group)
    stream = group.stream([images(1)] * 100)
    next(stream)
    with Batcher(group, most=2) as batcher:
        assert_close(batcher.submit(images(1)).result(), expected(images(1)))
        group.close()
        group.close()
        with pytest.raises(InputError, match="closed"):
            batcher.submit(images(1)).result(SECONDS)
    assert not any(map(runs, ids))
    with pytest.raises(InputError, match="the group is closed"):
        list(stream)
    for use in (group, lambda x: group.stream([x]), lambda x: group.pinned(1)):
        with pytest.raises(InputError, match="is closed"):
            use(images(1))


def test_a_callback_can_call_the_group(of_processes: PlanGroup) -> None:
    with Batcher(of_processes, most=2) as batcher:
        results: list[Any] = []
        batcher.submit(images(1)).add_done_callback(
            lambda _: results.append(of_processes(images(2))))
        assert_close(until(lambda: results)[0], expected(images(2)))


def test_a_deep_stream_does_not_wait_for_itself(of_processes: PlanGroup) -> None:
    given = [images(1, seed % 7) for seed in range(900)]
    check(given, of_processes.stream(given, depth=400))


def test_a_group_that_was_never_used_has_no_process(tmp_path: Path) -> None:
    with made(tmp_path) as group:
        assert "host" in repr(group) and group.report().rows
        assert all(member.pid is None for member in processes(group).processes)


def test_reports_and_profiles_leave_no_memory_on_the_device(of_processes: PlanGroup) -> None:
    of_processes(images(2))
    assert "shared by 2 workers: host, host" in of_processes.report().notes
    assert of_processes.profile(2).end_to_end_us
    assert of_processes.plans[0].memory["activations"] == 0


# requests


def test_a_batcher_over_processes(of_processes: PlanGroup) -> None:
    with Batcher(of_processes, most=8) as batcher:
        assert batcher.times
        batches = [images(1 + seed % 3, seed) for seed in range(60)]
        with ThreadPoolExecutor(16) as pool:
            check(batches, pool.map(batcher, batches))
        large = images(21)
        waiting = batcher.submit(large)
        assert_close(waiting.result(SECONDS), expected(large))
        futures = [batcher.submit(x) for x in batches]
    check(batches, [future.result(0) for future in futures])


# which groups have processes


def test_distinct_devices_that_need_a_process_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (SimpleNamespace(needs_own_process=True) for _ in range(2))
    assert HAVE_PROCESSES([first, second])  # type: ignore[list-item]
    for others in ([first], [first, first], [first, second, first], [first, find("host")]):
        assert not HAVE_PROCESSES(others)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "executable", "")
    assert not HAVE_PROCESSES([first, second])  # type: ignore[list-item]


def test_memory_that_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(group_processes, "GroupArrays", lambda plans: refused())
    with pytest.warns(GossamerWarning, match="the devices share one process, because memory "
                                             "cannot be shared with others: not permitted"):
        group = made(tmp_path)
    assert_close(group(images(1)), expected(images(1)))


def test_shared_memory_that_runs_out(of_processes: PlanGroup,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(processes(of_processes).arrays.memory, "empty", full)
        with pytest.raises(OutOfMemoryError, match="there is too little memory to share with the "
                                                   "processes of the devices: Cannot allocate"):
            of_processes(images(2))
    assert_close(of_processes(images(2)), expected(images(2)))


@pytest.mark.parametrize("devices", ["cuda:all", "cuda:0,cuda:0"])
def test_gpus_in_processes(cuda: Any, devices: str, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU of this host, which have processes by themselves, and one that is named twice."""
    if devices == "cuda:all":
        monkeypatch.undo()
    with made(tmp_path, devices) as group:
        if len(group.plans) < 2:
            pytest.skip("there is one GPU here")
        batches = [images(16, seed) for seed in range(40)]
        pinned = [group.pinned(16) for _ in range(4)]
        for array, x in zip(pinned, batches, strict=False):
            array[...] = x
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(batches, group.stream(batches))
            check(pinned * 8, group.stream(pinned * 8))
            check(pinned, map(group, pinned))
        assert isinstance(group.members, DeviceProcesses)
