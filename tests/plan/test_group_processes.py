"""Groups whose devices have processes: here over the host and PoCL, as on several GPUs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
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
from gossamer.errors import (
    DeviceError,
    DeviceLostError,
    GossamerWarning,
    InputError,
    OutOfMemoryError,
)
from gossamer.plan import group_processes
from gossamer.plan.batcher import Batcher
from gossamer.plan.group_processes import DeviceProcesses
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import model, save
from tests.plan.small import assert_close, expected, images, small
from tests.processes import SECONDS, runs, until

pytestmark = pytest.mark.skipif(not group_processes.SharedMemory.is_supported(),
                                reason="needs Linux")


HAVE_PROCESSES = group_processes.have_processes


@pytest.fixture(autouse=True)
def with_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_processes, "have_processes", lambda devices: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def made(folder: Path, devices: Any = "host,host") -> PlanGroup:
    return gossamer.compile(str(save(small(), folder)), devices)


def processes(group: PlanGroup) -> DeviceProcesses:
    assert isinstance(group.members, DeviceProcesses)
    return group.members


def pids(group: PlanGroup) -> list[int]:
    """Returns the IDs of the processes that are ready."""
    return [member.pid for member in processes(group).processes
            if member.is_ready and member.pid is not None]


def started(group: PlanGroup) -> PlanGroup:
    """Waits until all devices have their process."""
    begin = group.members.checked(images(1))
    for member in group.members.all:
        member.compute(begin)
    assert len(pids(group)) == len(group.plans)
    return group


def check(batches: list[np.ndarray], results: Any) -> None:
    for x, y in zip(batches, results, strict=True):
        assert_close(y, expected(x))


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


# ends of processes


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(pid))


def test_a_process_is_replaced_once_and_its_batches_are_computed_again(tmp_path: Path) -> None:
    with started(made(tmp_path)) as group:
        first, other = pids(group)
        batches = [images(2, seed) for seed in range(300)]
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for index, y in enumerate(group.stream(batches)):
                results.append(y)
                if index == 50:
                    killed(first)
            check(batches, results)
            # a process that ended while it computed nothing is noticed at its next batch
            until(lambda: list(group.stream(batches[:20])) and len(pids(group)) == 2)
        second, still = pids(group)
        assert still == other and second != first and group.device_names == "host, host"
        results = []
        with pytest.warns(GossamerWarning, match="host is left out, and its work is done on the "
                          "other devices: the process of host was ended by signal 9"):
            for index, y in enumerate(group.stream(batches)):
                results.append(y)
                if index == 50:
                    killed(second)
        check(batches, results)
        assert pids(group) == [other] and group.device_names == "host"
        assert ("host is left out: the process of host was ended by signal 9; is there too little "
                "memory?" in group.report().warnings)
        for _ in range(2):
            killed(until(lambda: pids(group))[0])
            list(group.stream([images(1)] * 3, errors="return"))
        results = list(group.stream([images(1)] * 3, errors="return"))
        assert [str(y).partition(";")[0] for y in results] == [
            f"batch {n}: the process of host was ended by signal 9" for n in range(3)]
        assert all(isinstance(y, DeviceLostError) for y in results)
        for _ in range(2):
            with pytest.raises(DeviceLostError, match="was ended by signal 9"):
                group(images(1))


def test_channels_to_a_process_that_was_replaced(tmp_path: Path) -> None:
    with started(made(tmp_path)) as group:
        first, other = processes(group).processes
        begin = group.members.checked(images(2))
        channels = [first.lanes(1) for _ in range(2)]
        for channel in channels:
            begin(channel)()
        killed(pids(group)[0])
        with pytest.raises(DeviceLostError, match="was ended by signal 9"):
            begin(channels[0])()
        assert_close(begin(channels[0])(), expected(images(2)))
        # the other channels go over to the new process, too
        for channel in (*channels, *channels):
            assert_close(begin(channel)(), expected(images(2)))
        assert_close(first.compute(begin), expected(images(2)))
        assert first.deaths == 1
        # a single device computes again what its process has not
        first.problem = "left out"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            killed(pids(group)[1])
            assert_close(group(images(2)), expected(images(2)))
        assert other.deaths == 1 and not other.problem


FAULTS = '''
import os, sys
if "group_worker" in " ".join(sys.orig_argv):
    from gossamer.errors import DeviceError, DeviceLostError, OutOfMemoryError
    from gossamer.plan import group_worker

    begin = group_worker.Worker.begin
    is_faulty = []

    def taken():
        """Whether this process is the one with the fault."""
        if not is_faulty:
            try:
                os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
                is_faulty.append(True)
            except FileExistsError:
                is_faulty.append(False)
        return is_faulty[0]

    def faulty(self, batch, choices, places):
        FAULT
        return begin(self, batch, choices, places)

    find = group_worker.find

    def opened(name):
        OPENED
        return find(name)

    group_worker.Worker.begin, group_worker.find = faulty, opened
'''


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes processes execute a statement before each batch, and another
    one before they open their device."""
    (tmp_path / "faults").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "faults"))

    def make(fault: str, opened: str = "pass") -> None:
        text = FAULTS
        for name, value in (("MARK", repr(str(tmp_path / "mark"))), ("FAULT", fault),
                            ("OPENED", opened)):
            text = text.replace(name, value)
        (tmp_path / "faults" / "sitecustomize.py").write_text(text)

    return make


def test_a_device_that_fails_is_left_out(faults: Any, tmp_path: Path) -> None:
    faults("if taken(): raise DeviceError('the bus has come off')")
    batches = [images(2, seed) for seed in range(40)]
    with made(tmp_path) as group:
        with pytest.warns(GossamerWarning, match="host is left out, and its work is done on the "
                                                 "other devices: the bus has come off"):
            check(batches, group.stream(batches))
        assert group.device_names == "host"
        assert_close(group(images(1)), expected(images(1)))


def test_what_leaves_no_device_out(faults: Any, tmp_path: Path) -> None:
    """Too little memory on one device, and an error that all devices have, which names the
    batch."""
    faults("if batch == 1: raise DeviceError('the bus has come off')\n"
           "        if taken(): raise OutOfMemoryError('too little')")
    batches = [images(2, seed) for seed in range(40)]
    with made(tmp_path) as group:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(batches, group.stream(batches))
        assert group.device_names == "host, host"
        with pytest.raises(DeviceError, match=r"^batch 0: the bus has come off$"):
            next(group.stream([images(1)]))
        with pytest.raises(DeviceError, match=r"^the bus has come off$"):
            group(images(1))
        assert group.device_names == "host, host"


def test_a_lost_device_gets_another_process(faults: Any, tmp_path: Path) -> None:
    faults("if taken(): raise DeviceLostError('an illegal address')")
    batches = [images(2, seed) for seed in range(40)]
    with made(tmp_path) as group, warnings.catch_warnings():
        warnings.simplefilter("error")
        check(batches, group.stream(batches))
        # the other process may be ready only after the stream's end, and is noticed by the next
        until(lambda: list(group.stream(batches)) and len(pids(group)) == 2)
        assert sorted(member.deaths for member in processes(group).processes) == [0, 1]


def test_a_batch_that_ends_its_processes_fails_alone(faults: Any, tmp_path: Path) -> None:
    faults("if batch == 5: print('out of bounds', file=sys.stderr, flush=True); os._exit(3)")
    batches = [images(5 if seed == 10 else 2, seed) for seed in range(30)]
    with made(tmp_path) as group:
        with pytest.warns(GossamerWarning, match="host is left out"):
            results = list(group.stream(batches, depth=1, errors="return"))
        wrong = results.pop(10)
        assert isinstance(wrong, DeviceLostError)
        assert str(wrong) == "batch 10: the process of host ended with status 3: out of bounds"
        check(batches[:10] + batches[11:], results)


def test_a_process_that_cannot_open_its_device(faults: Any, tmp_path: Path) -> None:
    faults("pass", opened="if taken(): 1 / 0")
    batches = [images(2, seed) for seed in range(20)]
    with (made(tmp_path) as group,
          pytest.warns(GossamerWarning, match="host: ZeroDivisionError: division by zero")):
        check(batches, group.stream(batches))
        until(lambda: len(group.members.usable) == 1)


def test_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with made(tmp_path) as group:
        with pytest.raises(DeviceError, match=r"^no process can be started for host: .*/nowhere"):
            group(images(1))
        with pytest.warns(GossamerWarning, match="host is left out"):
            results = list(group.stream([images(1)] * 3, errors="return"))
        assert [str(y).partition(":")[0] for y in results] == ["batch 0", "batch 1", "batch 2"]


def test_signals_to_all_processes_leave_the_end_to_the_parent(of_processes: PlanGroup) -> None:
    for pid in pids(of_processes):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert_close(of_processes(images(3)), expected(images(3)))
    assert len(pids(of_processes)) == 2


# programs that use groups

HEAD = """
import itertools, os, sys, time
import numpy as np
import gossamer
from gossamer.plan import group_processes

group_processes.have_processes = lambda devices: True
group = gossamer.compile({file!r}, "host,host")
x = group.pinned(2)
x[...] = 1

def pids():
    return [member.pid for member in group.members.processes if member.is_ready]
"""
ENDLESS = """
for y in group.stream(x for _ in itertools.count()):
    if len(pids()) == 2:
        break
# Python ignores an interrupt while a stream is finalised
print(*pids(), flush=True)
for y in group.stream(x for _ in itertools.count()):
    pass
"""


def program(folder: Path, rest: str) -> str:
    return HEAD.format(file=str(save(small(), folder))) + textwrap.dedent(rest)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    shared_files = set(os.listdir("/dev/shm"))
    parent = subprocess.Popen([sys.executable, "-c", program(tmp_path, ENDLESS)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ids = list(map(int, parent.stdout.readline().split()))
    assert len(ids) == 2 and all(map(runs, ids))
    parent.send_signal(number)
    _, errors = parent.communicate(timeout=SECONDS)
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    until(lambda: not any(map(runs, ids)))
    assert set(os.listdir("/dev/shm")) <= shared_files


def test_an_error_in_the_program_leaves_nothing(tmp_path: Path) -> None:
    text = ENDLESS.replace("    pass", "    raise ValueError('a fault of the caller')")
    done = subprocess.run([sys.executable, "-c", program(tmp_path, text)], capture_output=True,
                          text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1 and "ValueError: a fault of the caller" in done.stderr
    assert not any(map(runs, map(int, done.stdout.split())))


WORKS = """
if not group(x).shape == (2, 4): raise SystemExit("wrong")
print("computed by", os.getpid(), flush=True)
"""


def test_programs_without_a_file_or_a_guard(tmp_path: Path) -> None:
    text = program(tmp_path, WORKS)
    script = tmp_path / "script.py"
    script.write_text(text)
    notebook = ("import types, sys\nmain = types.ModuleType('__main__')\n"
                f"sys.modules['__main__'] = main\nexec({text!r}, main.__dict__)\n")
    for arguments, given in (([sys.executable, "-"], text), ([sys.executable, str(script)], ""),
                             ([sys.executable, "-c", notebook], "")):
        done = subprocess.run(arguments, input=given, capture_output=True, text=True,
                              timeout=SECONDS, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        # no process executes the program once more
        assert done.stdout.count("computed by") == 1


def test_a_fork_of_the_program(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", program(
        tmp_path, """
        from gossamer.errors import DeviceError

        group(x)
        child = os.fork()
        if child == 0:
            for use in (group, lambda x: group.pinned(1)):
                try:
                    use(x)
                except DeviceError as error:
                    print(error, flush=True)
            with gossamer.compile(sys.argv[1], "host,host") as own:
                print(own(x).shape, flush=True)
            sys.exit(0)
        print("child:", os.waitpid(child, 0)[1], flush=True)
        print(group(x).shape)
        """), str(save(small(), tmp_path))], capture_output=True, text=True, timeout=SECONDS,
        check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert all("belong to the process from which this one was forked" in line
               for line in lines[:2])
    assert lines[2:] == ["(2, 4)", "child: 0", "(2, 4)"]


def test_a_forked_child_does_not_keep_the_processes_alive(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program(tmp_path, """
        for member in group.members.processes: member.compute(group.members.checked(x))
        ids = pids()
        child = os.fork()
        if child == 0:
            time.sleep(60)
        print(child, *ids, flush=True)
        time.sleep(60)
        """)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, *ids = map(int, parent.stdout.readline().split())
    try:
        parent.kill()
        parent.wait(SECONDS)
        until(lambda: not any(map(runs, ids)))
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


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
