"""Records of what an OpenCL device asks of a driver that is not there, also where calls fail."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome

pytest.importorskip("pyopencl")

import pyopencl as cl

from gossamer.device import opencl, opencl_kernel, opencl_platforms, registry
from gossamer.device.source import KernelSource
from gossamer.errors import DeviceError
from tests import conftest
from tests.device.fake_opencl import Error, FakeOpenCL, handle

KINDS = cl.device_type
STATUS = cl.status_code
HANDLES = {"gpu": ("Made", KINDS.GPU), "nvidia": ("NVIDIA CUDA", KINDS.GPU),
           "cpu": ("Portable Computing Language", KINDS.CPU), "oclgrind": ("Oclgrind", KINDS.GPU),
           "all kinds": ("Made", KINDS.GPU | KINDS.CPU), "other": ("Made", KINDS.ACCELERATOR)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeOpenCL:
    # kernels of these tests are no code that a GPU could run
    monkeypatch.setattr(conftest, "COMPILED", {})
    return FakeOpenCL(monkeypatch)


def opened(fake: FakeOpenCL, word: str, **facts: Any) -> Any:
    made = opencl.OpenCLDevice(handle(*HANDLES[word], **facts), 2)
    fake.taken()
    return made


def source_of(folder: Path, function: str = "f", **options: Any) -> KernelSource:
    path = folder / "k.cl"
    path.write_text("kernel void f() {}\n")
    return KernelSource.of(path, function, **options)


def test_opening(recorded: Recorded, fake: FakeOpenCL, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT

    def told(device: Any) -> str:
        return (f"{device.name} {device.description} {device.driver} {device.alignment} "
                f"{device._options} {device._is_gpu} {device.chip} {device.on_processors} "
                f"{device.is_simulator} {device.queued_us} {device.limits.subgroup_size} "
                f"{device._calls is opencl_platforms._NVIDIA_CALLS}")

    for (word, place), facts in itertools.product(HANDLES.items(), (
            {}, {"mem_base_addr_align": 0}, {"mem_base_addr_align": 511},
            {"mem_base_addr_align": 512}, {"mem_base_addr_align": 520},
            {"single_fp_config": exact}, {"single_fp_config": 1},
            {"single_fp_config": exact | 1})):
        found[f"opened {word} {list(facts.items())}"] = outcome(
            opencl.OpenCLDevice, handle(*place, **facts), 2, text=told) + fake.taken()
    for extensions, size, double in itertools.product(
            ("", "cl_nv_device_attribute_query", "x cl_amd_device_attribute_query",
             "cl_nv_device_attribute_query cl_amd_device_attribute_query",
             "not_cl_nv_device_attribute_query"), (1, 255, 256, 257), (0, 3)):
        found[f"limits {extensions!r} {size} {double}"] = as_text(opencl_platforms.limits_of(handle(
            extensions=extensions, max_work_group_size=size, double_fp_config=double)))
    every = [handle(platform, kind, name=word) for word, (platform, kind) in HANDLES.items()]
    for order in (every, every[::-1], every[3:4], []):
        fake.platforms = [
            SimpleNamespace(name=" first ", get_devices=lambda order=order: order[:4]),
            SimpleNamespace(name="second", get_devices=lambda order=order: order[4:])]
        for error in (None, Error(-1001)):
            fake.failing = {"get_platforms": [error] * 2}
            handles = [each.name for each in opencl_platforms.handles()]
            found[f"handles {[each.name for each in order]} {error}"] = (
                f"{handles} {opencl_platforms.drivers()}")
            fake.failing = {"get_platforms": [error] * 2}
            found[f"probes {[each.name for each in order]} {error}"] = str([
                (probe.name, probe.description, probe.preferred, probe.info().problem)
                for probe in registry._opencl()])
    fake.taken()
    cuda: Any = pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)
    monkeypatch.setattr(cuda, "CudaDevice", lambda index: SimpleNamespace(
        compiles=False, description=f"{index}", driver="", limits=SimpleNamespace(
            compute_units=1, memory_bytes=2)))
    for count in (0, 1, 3, DeviceError("no driver")):
        def counted(count: Any = count) -> int:
            if isinstance(count, Exception):
                raise count
            return int(count)

        monkeypatch.setattr(cuda, "count", counted)
        found[f"probes of cuda {count}"] = str([
            (probe.name, probe.description, probe.preferred, probe.info().problem,
             probe.info().description) for probe in registry._cuda()])
    recorded("opencl_opening", found)


def test_memory(recorded: Recorded, fake: FakeOpenCL) -> None:
    found = {}
    made = opened(fake, "gpu")
    codes = {name: getattr(STATUS, name) for name in (
        "MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES",
        "INVALID_BUFFER_SIZE", "INVALID_VALUE")}
    for nbytes, call in itertools.product((0, 1, 300), ("Buffer", "migrate")):
        for name, error in ({name: Error(code) for name, code in codes.items()} | {
                "none": None, "memory": MemoryError("none")}).items():
            fake.failing = {call: [error]}
            found[f"empty {nbytes} {call} {name}"] = outcome(
                made.empty, nbytes, "a test", text=lambda buffer: f"{buffer.nbytes}") + fake.taken()
    buffer, other = made.empty(600, "a test"), made.empty(500, "a test")
    fake.taken()
    for offset, nbytes in itertools.product((0, 128, 256, 512, 600), (0, 1, 88, 128, 400, 600)):
        def viewed(offset: int = offset, nbytes: int = nbytes) -> str:
            view = buffer.view(offset, nbytes)
            inner = view.view(0, nbytes)
            return f"{view.offset} {view.nbytes} {inner.handle is view.handle} {view.handle.label}"

        found[f"view {offset} {nbytes}"] = outcome(viewed) + fake.taken()
    nobody, queue = made.empty(0, "a test"), made.create_stream()
    fake.taken()
    for word, array in {"full": np.zeros(150, np.float32), "part": np.zeros(10, np.uint8),
                        "long": np.zeros(601, np.uint8), "none": np.zeros(0),
                        "turned": np.zeros((2, 3)).T}.items():
        for stream, error in itertools.product((None, queue), (None, Error(-5), TypeError("odd"))):
            for call in (made.write, made.read):
                fake.failing = {"copy": [error]}
                found[f"{call.__name__} {word} {stream is queue} {error!r}"] = outcome(
                    call, buffer, array, stream) + fake.taken()
        found[f"upload {word}"] = outcome(made.upload, array, "a test", text=lambda buffer: (
            f"{buffer.nbytes}")) + fake.taken()
    found["nothing"] = outcome(made.write, nobody, np.zeros(0)) + fake.taken()
    for nbytes, stream, error in itertools.product((0, 1, 500, 501), (None, queue),
                                                   (None, Error(-5), OverflowError("odd"))):
        fake.failing = {"copy": [error]}
        found[f"copy {nbytes} {stream is queue} {error!r}"] = outcome(
            made.copy, buffer, other, nbytes, stream) + fake.taken()
    for stream, error in itertools.product((None, queue), (None, Error(-5))):
        fake.failing = {"finish": [error]}
        found[f"synchronize {stream is queue} {error}"] = outcome(made.synchronize, stream
                                                                  ) + fake.taken()
        found[f"queue {stream is queue}"] = str(made.queue(stream) is queue)
    recorded("opencl_memory", found)


def test_kernels(recorded: Recorded, fake: FakeOpenCL, tmp_path: Path) -> None:
    found = {}
    numbers = itertools.count()
    made = opened(fake, "gpu")

    def told(kernel: Any) -> str:
        return f"{kernel.work_group_size} {kernel.shared_bytes} {kernel.handle is kernel.handle}"

    for required, size in itertools.product(([0, 0, 0], [8, 8, 1], [2, 3, 4]), (1, 63, 64, 65)):
        fake.required, fake.work_group_size = required, size
        source = source_of(tmp_path, f"f{next(numbers)}")
        texts = [outcome(made.compile, source, text=told) for _ in range(2)]
        found[f"kernel {required} {size}"] = " ".join(texts) + fake.taken()
    for call in ("build", "Kernel"):
        source = source_of(tmp_path, f"f{next(numbers)}")
        fake.failing = {call: [Error(-11)]}
        texts = [outcome(made.compile, source, text=told) for _ in range(2)]
        found[f"failing {call}"] = " ".join(texts) + fake.taken()
    fake.required, fake.work_group_size = [0, 0, 0], 64
    buffer = made.empty(16, "a test")
    for dynamic in (False, True):
        kernel = made.compile(source_of(tmp_path, f"d{dynamic}", dynamic_shared=dynamic))
        assert kernel.handle
        fake.taken()
        for groups, size, shared in itertools.product(
                ((1,), (2, 3), (0, 2), (2, 3, 0)), ((64,), (8, 8), (65,), (13, 5), (8, 8, 1)),
                (0, 1, 899, 900, 901)):
            found[f"launch {dynamic} {groups} {size} {shared}"] = outcome(
                made.launch, kernel, groups, size, (buffer, 3, 0.5, np.float64(2), None),
                shared_bytes=shared) + fake.taken()
    for call, error in itertools.product(("set_args", "launch"), (
            Error(-5), OverflowError("odd"), TypeError("odd"), opencl_kernel.LaunchError("odd"))):
        fake.failing = {call: [error]}
        found[f"failing {call} {error!r}"] = outcome(made.launch, kernel, (1,), (1,), ()
                                                     ) + fake.taken()
    for value in (buffer, 3, True, 0.5, np.float64(0.5), np.float32(0.5), np.int64(3), None):
        kind = opencl._value(value)
        found[f"value {type(value).__name__}"] = type(kind).__name__
    recorded("opencl_kernels", found)


def test_graphs_and_times(recorded: Recorded, fake: FakeOpenCL, tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    clock = [0.0]
    steps: list[float] = []

    def counter() -> float:
        clock[0] += steps.pop(0) if steps else 1e-6
        return clock[0]

    monkeypatch.setattr(opencl, "time", SimpleNamespace(perf_counter=counter))
    statuses: list[int] = []
    launched: list[str] = []

    def enqueue(queue: Any, kernel: Any, dimensions: Any, offset: None, sizes: Any, local: Any,
                count: Any, waited: None, event: None) -> int:
        launched.append(f"{queue.value} {kernel.value} {dimensions.value} {list(sizes)} "
                        f"{list(local)} {count.value}")
        return statuses.pop(0) if statuses else 0

    def record(word: str, function: Any) -> None:
        monkeypatch.setattr(opencl, "ENQUEUE", function)
        monkeypatch.setattr(opencl_kernel, "ENQUEUE", function)
        made = opened(fake, word)
        kernel = made.compile(source_of(tmp_path))
        buffer, other = made.empty(16, "a test"), made.empty(16, "a test")
        queue = made.create_stream()
        assert kernel.handle

        def work(count: int) -> Any:
            def run(stream: Any) -> None:
                for index in range(count):
                    made.launch(kernel, (1 + index, 2), (4, 2), (buffer, index), stream=stream)
                    made.copy(other, buffer, 4 + index, stream)
            return run

        for count, repeats, stream in itertools.product((0, 1, 2), (0, 1, 2, 3), (None, queue)):
            fake.taken()

            def replay(count: int = count, repeats: int = repeats, stream: Any = stream) -> str:
                graph = made.capture(work(count), stream, repeats)
                fake.calls.append("recorded")
                graph()
                graph(made._timing_queue)
                return f"{len(graph._buffers)} {made._is_recording}"

            found[f"graph {word} {function is None} {count} {repeats} {stream is queue}"] = (
                outcome(replay) + fake.taken() + str(launched))
            launched.clear()
        for count, slow in itertools.product((0, 1, 2, 3), ([], [1e-6] * 20 + [0, 4e-5],
                                                            [1e-6] * 20 + [0, 2e-6])):
            vars(made).pop("_waiting_us", None)
            steps[:] = slow
            fake.taken()
            fake._ends = itertools.count(1000, 700)
            found[f"time {word} {function is None} {count} {len(slow)} {slow[-1:]}"] = outcome(
                lambda count=count: round(made.time(work(count), queue), 6)) + fake.taken()
        for count in range(3):
            fake.taken()
            fake._ends = itertools.count(1000, 700)
            found[f"time of another stream {word} {function is None} {count}"] = outcome(
                lambda count=count: round(made.time(lambda stream: work(count)(queue)), 6)
            ) + fake.taken()
        for failing, error in itertools.product(("marker", "copy", "finish", "launch"),
                                                (Error(-5),)):
            vars(made).pop("_waiting_us", None)
            for count in range(3):
                fake.failing = {failing: [None] * count + [error]}
                found[f"failing {word} {function is None} {failing} {count}"] = outcome(
                    lambda: made.time(work(2)) > 0) + fake.taken()
        for each in (made.read, made.write):
            found[f"{each.__name__} recorded {word} {function is None}"] = outcome(
                made.capture, lambda stream, each=each: each(other, np.zeros(4, np.uint8), stream)
            ) + f"{made._is_recording}" + fake.taken()
        for status in (0, -5, -9999):
            statuses[:] = [status]
            found[f"status {word} {function is None} {status}"] = outcome(
                lambda: made.capture(work(1))()) + fake.taken()
        launched.clear()

    for word, function in itertools.product(HANDLES, (None, enqueue)):
        record(word, function)
    recorded("opencl_work", found)
