"""Records of devices: checks of memory, names, quotas, sources, stored kernels and samples."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer import measure
from gossamer.device import cpu_quota, kernel_cache, registry, source
from gossamer.device.checks import check_copy, check_transfer, check_view, out_of_memory
from gossamer.device.host import HostDevice, host_array
from gossamer.errors import DeviceError, DeviceLostError
from gossamer.measure import PreparedTask, Task, Timing
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded


def test_memory_of_the_host(recorded: Recorded) -> None:
    host = HostDevice()
    found = {}
    for nbytes in (0, 1, 63, 64, 65, 200):
        buffer = host.empty(nbytes, "a test")
        # memory of no bytes has no address of its own
        found[f"memory {nbytes}"] = f"{buffer.nbytes} {nbytes and buffer.bytes.ctypes.data % 64}"
    buffer = host.upload(np.arange(50, dtype=np.float32), "a test")
    other = host.upload(np.arange(8, dtype=np.int16), "a test")
    for offset, nbytes in itertools.product((-64, 0, 32, 64, 128, 192, 256),
                                            (-1, 0, 8, 64, 136, 137)):
        found[f"view {offset} {nbytes}"] = outcome(
            buffer.view, offset, nbytes, text=lambda view: f"{view.nbytes} {digest(view.bytes)}")
        found[f"check {offset} {nbytes}"] = outcome(check_view, buffer, offset, nbytes)
    for shape, dtype in itertools.product(((), (0,), (50,), (5, 10), (51,), (2, 25, 1), (100,)),
                                          (None, "float32", "int16", "uint8", "float64")):
        found[f"array {shape} {dtype}"] = outcome(host_array, buffer, shape, dtype)
    for array in (np.arange(50, dtype=np.float32), np.arange(51, dtype=np.float32),
                  np.zeros((5, 10), np.float32).T, np.zeros(0), np.arange(25, dtype=float),
                  np.arange(200, dtype=np.uint8), np.arange(201, dtype=np.uint8)):
        key = f"{array.dtype} {array.shape} {array.flags.c_contiguous}"
        found[f"transfer {key}"] = outcome(check_transfer, buffer, array)
        found[f"read {key}"] = outcome(host.read, buffer, array) + digest(array)
    for nbytes in (0, 1, 15, 16, 17, 200):
        found[f"copy {nbytes}"] = outcome(check_copy, buffer, other, nbytes)
        found[f"copied {nbytes}"] = outcome(host.copy, other, buffer, nbytes) + digest(other.bytes)
    device: Any = SimpleNamespace(name="cuda:0", limits=SimpleNamespace(memory_bytes=99))
    for free in (None, 0, 5):
        found[f"out of memory {free}"] = str(out_of_memory(device, 7, "weights", free))
    recorded("device_memory", found)


def test_quotas(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for index, (groups, files) in enumerate(itertools.product(
            ("0::/", "0::/a/b", "0::/../a", "4:cpu,cpuacct:/a\n0::/", "4:memory:/a", "4:cpu:/",
             ""), (
                {}, {"cpu.max": "max 100000"}, {"a/cpu.max": "150000 100000"},
                {"cpu.max": "400000 100000", "a/cpu.max": "50000 100000",
                 "a/b/cpu.max": "100000 100000"}, {"a/cpu.max": "x"}, {"a/cpu.max": "1 0"},
                {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000",
                 "cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
                {"cpu/a/cpu.cfs_quota_us": "0", "cpu/a/cpu.cfs_period_us": "100000"},
                {"cpu/a/cpu.cfs_quota_us": "1", "cpu/a/cpu.cfs_period_us": "4"}))):
        root = tmp_path / str(index)
        root.mkdir()
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "groups").write_text(groups)
        monkeypatch.setattr(cpu_quota, "_GROUPS", root / "groups")
        monkeypatch.setattr(cpu_quota, "_ROOT", root)
        found[f"{groups!r} {list(files.items())}".replace(": ", " ")] = str(cpu_quota.cpu_quota())
    monkeypatch.setattr(cpu_quota, "_GROUPS", tmp_path / "none")
    found["none"] = str(cpu_quota.cpu_quota())
    recorded("device_quota", found)


def test_sources(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "INCLUDE_ROOTS", (tmp_path / "include",))
    (tmp_path / "include").mkdir()
    files = {"a.h": "#pragma once\nint a;\n", "include/b.h": '#include "../a.h"\nint b;',
             "c.h": '#if X\nint c;\n#endif\n#include "a.h"\n',
             "one.cl": "kernel", "two.cl": '#include "a.h"\n  #  include "b.h"\nend\n',
             "twice.cl": '#include "a.h"\nx\n#include "a.h"\n#include "c.h"\ny',
             "inside.cl": '#ifdef X\n#include "a.h"\n#endif\n', "missing.cl": 'x\n#include "z.h"',
             "behind.cl": '#if A\n#if B\n#endif\n#else\n#endif\n#include "a.h"\n',
             "still.cl": '#if A\n#if B\n#endif\n#include "a.h"\n#endif\n', "empty.cl": "",
             "early.cl": "#pragma once\nx"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {}
    for name in files:
        path = tmp_path / name
        made = source.KernelSource.of(path, "f", {"A": 1, "B": "x\ny"})
        found[f"text of {name}"] = outcome(made.text, hidden=tmp_path)
        found[f"files of {name}"] = outcome(
            source.files_of, path, hidden=tmp_path,
            text=lambda paths: " ".join(each.name for each in paths))
        found[f"early {name}"] = outcome(getattr, made, "begins_early", hidden=tmp_path)
    for architectures, asked in itertools.product(((), ("sm_90a",), ("sm_100a", "sm_90a")),
                                                  ("sm_80", "sm_90", "sm_100")):
        made = source.KernelSource.of(path, "f", architectures=architectures)
        found[f"built {architectures} {asked}"] = made.built_for(asked)
    recorded("device_sources", found)


class FakeDevice(HostDevice):
    """A device of the tests, which works or does not."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.api, _, index = name.partition(":")
        self.index = int(index or 0)
        self.description, self.driver = f"made {name}", "driver 1"


def test_names_of_devices(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}

    def probes(api: str, states: tuple[tuple[bool, bool], ...]) -> Any:
        def find() -> Iterator[Any]:
            for index, (works, preferred) in enumerate(states):
                name = api if api == "host" else f"{api}:{index}"

                def opened(name: str = name, works: bool = works, index: int = index) -> Any:
                    if not works:
                        raise DeviceError(f"{name} is\nbroken") if index % 2 else OSError("gone")
                    return FakeDevice(name)

                yield registry._DeviceProbe(name, f"a {api}", opened, preferred)
        return find

    machines = {"host alone": ((), ()), "gpu": (((True, True),), ()),
                "broken": (((False, True), (True, True)), ((True, False),)),
                "all broken": (((False, True), (False, True)), ((False, False), (True, True))),
                "missing": (((False, False),), ((True, True), (True, True)))}
    for machine, (cuda, opencl) in machines.items():
        for name in (None, "host", "HOST", " host ", "host:0", "host:1", "cuda", "cuda:0", "cuda:1",
                     "cuda:2", "opencl", "opencl:1", "some", "cuda:x", ""):
            monkeypatch.setattr(registry, "_candidates", {})
            monkeypatch.setattr(registry, "_FINDERS", {
                "cuda": probes("cuda", cuda), "opencl": probes("opencl", opencl),
                "host": probes("host", ((True, True),))})
            found[f"{machine} {name!r}"] = " or ".join(
                outcome(find, given, text=lambda device: device.description)
                for find, given in ((registry.find, name),
                                    (registry.find_or_best, name or "cuda:7")))
        for names in ("cuda:all", "opencl:ALL ", "host:all", "some:all", "host,host", "cuda:0,host",
                      "cuda:9,host", [], ["host"], (), ["cuda:all", "host"]):
            found[f"{machine} several {names!r}"] = outcome(
                registry.find_several, names, text=lambda devices: " ".join(
                    device.description for device in devices))
        found[f"{machine} listed"] = " ".join(
            f"{info.name} {info.description} {info.problem}" for info in registry.devices())
    for value in ("cuda", "cuda:all", "CUDA:ALL ", "a,b", ",", "", "all", ["host"], ("a",), None,
                  3):
        found[f"several {value!r}"] = str(registry.names_several(value))
    for drivers in ((), ("Intel",), ("Portable Computing Language",), (
            "Intel", "Portable Computing Language")):
        found[f"drivers {drivers}"] = registry._no_opencl(drivers)
    recorded("device_names", found)


def test_stored_kernels(recorded: Recorded, tmp_path: Path,
                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    found = {}
    kernels = tmp_path / "kernels"
    # together the first files have 32, 65, 99, 134 and 170 bytes
    for most, every in itertools.product((0, 31, 32, 33, 63, 64, 65, 66, 80, 97, 98, 99, 119, 120,
                                          121, 133, 134, 135, 200), (1, 35, 80)):
        monkeypatch.setattr(kernel_cache, "MOST_BYTES", most)
        monkeypatch.setattr(kernel_cache, "_LOOK_EVERY", every)
        monkeypatch.setattr(kernel_cache, "_unseen", 0)
        names = {}
        left = []
        for index in range(5):
            kernel_cache.cached(["k", str(index)], lambda index=index: bytes(index))
            names[kernel_cache._name(["k", str(index)])] = index
            for path in kernels.iterdir():
                # one after another, as files of one moment have no order
                os.utime(path, (names[path.name] + 1, names[path.name] + 1))
            left.append(sorted(names[path.name] for path in kernels.iterdir()))
        found[f"bound {most} {every}"] = f"{left} {kernel_cache._unseen}"
        for path in kernels.iterdir():
            path.unlink()
    monkeypatch.setattr(kernel_cache, "MOST_BYTES", 2**30)
    for change in ("none", "cut", "more", "flip", "gone", "short"):
        kernel_cache.cached(["x"], lambda: b"data")
        path = kernels / kernel_cache._name(["x"])
        content = path.read_bytes()
        path.write_bytes({"cut": content[:-1], "more": content + b"a", "short": content[:20],
                          "flip": content[:-1] + b"b"}.get(change, content))
        if change == "gone":
            kernel_cache.forget(["x"])
        found[f"changed {change}"] = as_text([kernel_cache.stored(["x"])])
        kernel_cache.forget(["x"])
    for most in (0, 3, 6, 9, 10):
        monkeypatch.setattr(kernel_cache, "_MOST_UNWRITTEN", most)
        kernel_cache._unwritten.clear()
        for index in range(4):
            kernel_cache._remember(str(index), bytes(3))
            kernel_cache._unwritten_entry("0")
        found[f"unwritten {most}"] = " ".join(kernel_cache._unwritten)
    kernel_cache._unwritten.clear()
    for variables in ({}, {"XDG_CACHE_HOME": "/x"},
                      {"GOSSAMER_CACHE": "/g", "XDG_CACHE_HOME": "/x"},
                      {"GOSSAMER_CACHE": "", "XDG_CACHE_HOME": ""}):
        for name in ("GOSSAMER_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/home/of")
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found[f"folder {list(variables.items())}"] = str(kernel_cache.cache_folder())
    recorded("device_kernels", found)


class TimedDevice:
    """A device on which each execution takes as long as its work says."""

    def __init__(self, graph: bool = False) -> None:
        self.limits = SimpleNamespace(graph=graph)
        self.on_processors, self.name = False, "made"
        self.notes: list[str] = []

    def time(self, work: Any, stream: Any = None) -> float:
        taken: list[float] = []
        work(taken)
        self.notes.append(f"{sum(taken):g}")
        return sum(taken)

    def timed_graph(self, work: Any, count: int, as_in_plan: bool = False) -> Any:
        def sample() -> float:
            taken: list[float] = []
            for _ in range(count):
                work(taken)
            self.notes.append(f"graph of {count} {as_in_plan} {sum(taken):g}")
            return sum(taken)
        return sample


def test_samples(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for samples in ([3.0], [1.0, 2.0], [1.0, 2.0, 4.0], [5.0, 1.0, 2.0, 9.0], [2.0] * 7):
        found[f"timing {samples}"] = as_text(rounded(vars(Timing.of(samples))))
    for captured, as_in_plan, graph, us, sample_us in itertools.product(
            (True, False), (False, True), (False, True), (0.0, 0.05, 1.0, 30.0, 500.0),
            (0.0, 99.0, 200.0)):
        if as_in_plan and not captured:
            continue
        device: Any = TimedDevice(graph)
        task = Task(device, lambda taken, us=us: taken.append(us), captured=captured,
                    as_in_plan=as_in_plan)
        ready = measure.prepared(task, sample_us)
        ready.sample()
        found[f"{captured} {as_in_plan} {graph} {us} {sample_us}"] = (
            f"{ready.count} {' '.join(device.notes)}")
    rng = random.Random(0)
    for index in range(60):
        made = []
        calls: list[int] = []
        for number in range(rng.randint(1, 3)):
            values = iter([rng.choice([1.0, 2.0, 4.0, -1.0, 8.0]) for _ in range(30)])
            fails_at = rng.choice([None, None, 1, 3])
            lost = rng.random() < 0.1

            def sample(number: int = number, values: Iterator[float] = values,
                       fails_at: int | None = fails_at, lost: bool = lost,
                       calls: list[int] = calls) -> float:
                calls.append(number)
                if calls.count(number) == fails_at:
                    raise DeviceLostError("lost") if lost else ValueError(f"task {number}")
                return next(values)

            made.append(PreparedTask(sample, rng.randint(1, 3)))
        repeats, budget = rng.choice([1, 2, 3, 4, 8]), rng.choice([0.0, 5.0, 12.0, 20.0, 1e6])
        found[f"sampled {index} {repeats} {budget}"] = outcome(
            measure.sampled, made, repeats, budget, text=lambda results: as_text([
                str(each) if isinstance(each, Exception) else rounded(vars(each))
                for each in results])) + f" {''.join(map(str, calls))}"
    monkeypatch.setattr(measure, "SCATTERED", 1.25)
    for low, high in ((1.0, 1.0), (4.0, 5.0), (4.0, 5.01), (0.0, 0.0005), (0.0, 1.0), (2.0, 4.0)):
        timing = Timing(low, low, high, 3)
        for count in (1, 2, 3):
            found[f"scatter {low} {high} {count}"] = measure.scatter_notice(
                [timing] * count + [Timing(1, 1, 1, 1)] * 2, device)
    for step, repeats, budget in itertools.product((0.25, 1.0), (1, 2, 3, 9),
                                                   (0.0, 1e6, 2.5e6, 1e9)):
        times = itertools.count()
        clock = SimpleNamespace(perf_counter=lambda step=step, times=times: step * next(times))
        monkeypatch.setattr(measure, "time", clock)
        found[f"called {step} {repeats} {budget}"] = as_text(rounded(vars(measure.called(
            lambda: None, repeats=repeats, budget_us=budget))))
    recorded("device_samples", found)
