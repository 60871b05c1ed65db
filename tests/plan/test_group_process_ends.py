"""Groups whose processes, or whose programs, end early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import DeviceError, DeviceLostError, GossamerWarning
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import save
from tests.plan.groups_of_processes import OF_PROCESSES, check, made, pids, processes, started
from tests.plan.small import assert_close, expected, images, small
from tests.processes import SECONDS, runs, until

pytestmark = OF_PROCESSES


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
