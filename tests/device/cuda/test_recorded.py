"""Records of CUDA's host side with a driver that is not there: parameters of kernels, limits,
launches, arrays of other libraries, and PTX."""

from __future__ import annotations

import ctypes
import itertools
import pickle
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome

pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)

from gossamer.device.cuda import (
    cubins,
    device,
    dlpack,
    driver,
    graph,
    kernel,
    launch,
    memory,
    nvjitlink,
    nvrtc,
    ptx,
    streams,
)
from gossamer.device.cuda.memory import CudaBuffer

SUCCESS = driver.driver.CUresult.CUDA_SUCCESS
FAILURE = driver.driver.CUresult.CUDA_ERROR_INVALID_VALUE


def kernel_of(parameters: list[tuple[int, int]], *, shared: int = 0,
              most: int = 256) -> kernel.CudaKernel:
    """Returns a kernel that takes these parameters, as if the driver had loaded it."""
    made = object.__new__(kernel.CudaKernel)
    made.name, made.begins_early = "k", False
    made._parameters, made._per_thread = parameters, SimpleNamespace()
    made._device = SimpleNamespace(name="cuda:0", limits=SimpleNamespace(shared_bytes_opt_in=1000))
    made.shared_bytes, made._dynamic_bytes = shared, max(600 - shared, 0)
    made.work_group_size, made.function = most, None
    return made


def test_parameters(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    buffer = CudaBuffer(SimpleNamespace(), 0x1234, 16, None)  # type: ignore[arg-type]
    values = {"none": None, "buffer": buffer, "true": True, "int": 7, "float": 0.5,
              "byte": np.uint8(200), "long": np.int64(-3), "half": np.float16(1.5),
              "double": np.float64(2.5), "text": "a"}
    for names in (*itertools.product(values), *itertools.product(values, repeat=2),
                  (), ("byte", "long", "byte"), ("half", "half", "int", "buffer", "byte")):
        arguments = [values[name] for name in names]
        sizes = {"none": 8, "buffer": 8, "true": 4, "int": 4, "float": 4, "byte": 1, "long": 8,
                 "half": 2, "double": 8, "text": 1}
        offsets, end = [], 0
        for name in names:
            start = -(-end // sizes[name]) * sizes[name]
            offsets.append((start, sizes[name]))
            end = start + sizes[name]
        made = kernel_of(offsets)

        def packed(made: Any = made, arguments: Any = arguments, offsets: Any = offsets,
                   count: int = len(names)) -> str:
            address = made.packed(arguments)
            same = address == made.packed(arguments)
            pointers = (ctypes.c_void_p * max(count, 1)).from_address(address)
            return f"{same} " + " ".join(
                ctypes.string_at(pointer, size).hex()
                for pointer, (_, size) in zip(pointers, offsets, strict=False))

        found[f"packed {names}"] = outcome(packed)
    for parameters, given in itertools.product(
            ([], [(0, 4)], [(0, 8)], [(0, 4), (8, 8)], [(0, 4), (4, 4)]), repeat=2):
        found[f"checked {parameters} {given}"] = outcome(kernel_of(parameters).check_parameters,
                                                         given)
    asked: list[int] = []
    monkeypatch.setattr(kernel.driver, "cuFuncSetAttribute", lambda function, attribute, value: (
        asked.append(value) or (SUCCESS,)))
    for shared, sizes_asked in itertools.product((0, 100, 700), ((0, 599, 600, 601), (601, 600), (
            1000, 1001), (900, 901), (300, 301))):
        made = kernel_of([], shared=shared)
        texts = [outcome(made.allow_dynamic, nbytes) for nbytes in sizes_asked]
        found[f"shared {shared} {sizes_asked}"] = f"{texts} {asked}"
        asked.clear()
    place: Any = SimpleNamespace(name="cuda:0")
    for groups, threads in itertools.product(
            ((1, 1, 1), (2**31 - 1, 65535, 65535), (2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)),
            (1, 256, 257)):
        found[f"fit {groups} {threads}"] = outcome(launch.check_fit, place, kernel_of([]), groups,
                                                   threads)
    recorded("cuda_parameters", found)


def test_launches(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    made = object.__new__(device.CudaDevice)
    notes: list[str] = []
    early = SimpleNamespace(note_early_begin=lambda: notes.append("early"),
                            keep=lambda *objects: notes.append(f"kept {len(objects)}"))
    made._recorder = early
    monkeypatch.setattr(device.CudaDevice, "name", "cuda:0", raising=False)
    monkeypatch.setattr(device.CudaDevice, "current", lambda self: nullcontext())
    monkeypatch.setattr(device.CudaDevice, "stream_handle", lambda self, stream: stream or 0)
    for name in ("cuLaunchKernel", "cuLaunchKernelEx"):
        monkeypatch.setattr(device.driver, name, lambda *values, name=name: (
            notes.append(f"{name} {values[1:-2]}" if name == "cuLaunchKernel" else name)
            or (SUCCESS,)))
    for launches_early, begins_early, groups, size in itertools.product(
            (False, True), (False, True), ((1,), (2, 3), (2, 3, 4), (0, 2), (2**31,)),
            ((64,), (16, 16), (16, 16, 1), (16, 16, 2), (257,))):
        made._launches_early = launches_early
        of = kernel_of([(0, 4)])
        of.begins_early = begins_early
        told = outcome(made.launch, of, groups, size, [7], shared_bytes=5, stream=9)
        found[f"{launches_early} {begins_early} {groups} {size}"] = f"{told} {notes}"
        notes.clear()
    for arguments in ([2**40], [-1], [2**31 - 1], [2**31], [np.uint8(3)], []):
        found[f"arguments {arguments!r}".replace("np.uint8(3)", "3 in a byte")] = outcome(
            made.launch, kernel_of([(0, 4)]), (1,), (1,), arguments).split(": argument")[0]
    recorded("cuda_launches", found)


def test_limits_of_devices(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for capability, cluster in itertools.product(
            ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)), (0, 1)):
        numbers = {"COMPUTE_CAPABILITY_MAJOR": capability[0],
                   "COMPUTE_CAPABILITY_MINOR": capability[1], "CLUSTER_LAUNCH": cluster}

        def attribute(member: Any, of: int, numbers: Any = numbers) -> tuple[Any, int]:
            name = member.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
            return SUCCESS, numbers.get(name, len(name))

        monkeypatch.setattr(driver.driver, "cuDeviceGetAttribute", attribute)
        monkeypatch.setattr(driver.driver, "cuDeviceTotalMem", lambda of: (SUCCESS, 2**33))
        found[f"limits {capability} {cluster}"] = as_text(driver.limits_of(0))
    for version in (11080, 12040, 13000, 13010):
        monkeypatch.setattr(driver.driver, "cuDriverGetVersion", lambda version=version: (
            SUCCESS, version))
        found[f"version {version}"] = driver.driver_version().partition(",")[0]
    for count, status in itertools.product((0, 1, 3), (SUCCESS, FAILURE)):
        monkeypatch.setattr(driver.driver, "cuInit", lambda flags, status=status: (status,))
        monkeypatch.setattr(driver.driver, "cuDeviceGetCount", lambda count=count: (SUCCESS, count))
        monkeypatch.setattr(driver.driver, "cuGetErrorString", lambda code: (SUCCESS, b"wrong"))
        found[f"count {count} {status.name}"] = outcome(driver.count)
    for result in ((SUCCESS,), (SUCCESS, 1), (SUCCESS, 1, 2), (FAILURE, 1)):
        found[f"checked {len(result)} {result[0].name}"] = outcome(driver.check, result)
    for code in driver.driver.CUresult:
        if code.name in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_ILLEGAL_ADDRESS",
                         "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_OUT_OF_MEMORY"):
            error = driver.device_error("work", driver.DriverError(code))
            found[f"error {code.name}"] = f"{type(error).__name__} {error}"
    calls: list[str] = []
    now = [5]
    monkeypatch.setattr(driver.driver, "cuCtxGetCurrent", lambda: (SUCCESS, now[-1]))
    monkeypatch.setattr(driver.driver, "cuCtxPushCurrent", lambda context: (
        calls.append(f"push {context}") or now.append(context) or (SUCCESS,)))
    monkeypatch.setattr(driver.driver, "cuCtxPopCurrent", lambda: calls.append("pop") or now.pop())
    for order in ((5,), (6,), (6, 6), (5, 6), (6, 5, 6), (6, 5, 5)):
        def entered(left: tuple[int, ...]) -> None:
            if left:
                with driver.Current(left[0]):  # type: ignore[arg-type]
                    entered(left[1:])

        entered(order)
        found[f"contexts {order}"] = f"{calls} {now}"
        calls.clear()
    made = itertools.count()
    side = streams.SideStreams(lambda: next(made))
    found["side streams"] = str([side.beside(handle, count) for handle, count in (
        (1, 2), (1, 1), (2, 1), (1, 3), *((index, 1) for index in range(3, 36)), (1, 1), (2, 1))])
    recorded("cuda_limits", found)


class Array:
    """An array of another library on a device."""

    def __init__(self, kind: int, index: int) -> None:
        self._place = kind, index

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place

    def __dlpack__(self, **options: Any) -> None:
        raise AssertionError


def test_arrays_of_other_libraries(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    notes: list[str] = []
    place: Any = SimpleNamespace(
        index=1, name="cuda:1", current=nullcontext, stream_handle=lambda stream: stream or 0,
        is_closed=lambda stream: False,
        wait=lambda first, second: notes.append(f"{first} waits for {second}"),
        wrap=lambda address, nbytes, owner: CudaBuffer(place, address, nbytes, None))
    for shape in ((), (3,), (2, 3), (1, 3), (2, 1, 3), (0, 3), (2, 0)):
        for strides in (None, (1,), (3, 1), (1, 2), (3, 3, 1), (6, 1), (9, 1), (3, 9, 1), (0, 1)):
            if strides is None or len(strides) == len(shape):
                found[f"contiguous {shape} {strides}"] = str(dlpack._is_contiguous(shape, strides))
    monkeypatch.setattr(dlpack, "device_of", lambda address: 1 if address < 100 else 0)
    arrays: dict[str, Any] = {
        "numpy": np.zeros(2), "host": Array(1, 0), "cuda 1": Array(2, 1), "cuda 0": Array(2, 0),
        "managed": Array(13, 1), "other": Array(3, 1), "nothing": object(),
        **{f"interface {address}": SimpleNamespace(__cuda_array_interface__={"data": (address, 0)})
           for address in (0, 50, 100)}}
    for name, array in arrays.items():
        found[f"index {name}"] = outcome(dlpack.cuda_index, array)
        for kind, shape, strides, dtype in itertools.product(
                ("float32", "bool", "complex64", None), ((2, 3),), (None, (3, 1), (1, 2)),
                (None, "float32", "int8")):
            view = SimpleNamespace(shape=shape, strides=strides, ptr=64,
                                   dtype=None if kind is None else np.dtype(kind))
            monkeypatch.setattr(dlpack, "StridedMemoryView", SimpleNamespace(
                from_dlpack=lambda given, stream_ptr, view=view: notes.append(
                    f"dlpack {stream_ptr}") or view,
                from_cuda_array_interface=lambda given, stream_ptr, view=view: notes.append(
                    f"interface {stream_ptr}") or view))
            told = outcome(dlpack.incoming, array, place, 7 if dtype else None, dtype=dtype,
                           text=lambda made: (
                               f"{made.shape} {made.dtype} {made.buffer.nbytes}"))
            found[f"incoming {name} {kind} {strides} {dtype}"] = f"{told} {notes}"
            notes.clear()
    buffer = CudaBuffer(place, 64, 24, None)
    for shape, stream in itertools.product(((2, 3), (0, 3)), (None, 5)):
        made = dlpack.CudaArray(buffer, shape, "float32", stream)
        found[f"array {shape} {stream}"] = (
            f"{made!r} {made.nbytes} {made.__cuda_array_interface__} {made.__dlpack_device__()}")
        for options in ({"dl_device": (2, 0)}, {"copy": True}, {"dl_device": (1, 1)}):
            found[f"exported {shape} {stream} {list(options.items())}"] = outcome(
                made.__dlpack__, **options)
        for dtype in (None, "float32", "int8"):
            found[f"taken again {shape} {stream} {dtype}"] = outcome(
                dlpack.incoming, made, place, 3, dtype=dtype, text=lambda made: repr(made)
            ) + str(notes)
            notes.clear()
    released: list[Any] = []
    monkeypatch.setattr(memory.driver, "cuMemFreeAsync",
                        lambda address, last: released.append(last))
    for handles in ((1,), (5,), (1, 5), (5, 6, 7)):
        memory._release(place, 64, {handle: handle for handle in handles})
        found[f"released {handles}"] = f"{released} {notes}"
        released.clear()
        notes.clear()
    for used in ((None,), (5, 5), (None, 1), (5, "stream")):
        owner = object.__new__(memory.StreamAllocation)
        owner._device, owner._streams = place, {}
        inner = CudaBuffer(place, 0, 8, CudaBuffer(place, 0, 16, owner))
        for stream in used:
            place.stream_handle = lambda stream: 5 if stream == "stream" else stream or 0
            inner.used_on(stream)
        found[f"used {used}"] = str(owner._streams)
    recorded("cuda_arrays", found)


def test_graphs_that_copy(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records when a graph with other targets of its copies is instantiated again."""
    found = {}
    notes: list[str] = []
    for name in ("cuGraphMemcpyNodeSetParams", "cuGraphLaunch"):
        monkeypatch.setattr(graph.driver, name, lambda *values, name=name: (
            notes.append(name) or (SUCCESS,)))
    place: Any = SimpleNamespace(current=nullcontext, checked=lambda what, result: None,
                                 stream_handle=lambda stream: 3)
    monkeypatch.setattr(graph, "CudaGraph", lambda *values: (
        notes.append("made") or SimpleNamespace(
            executable="new", launch=lambda stream: notes.append(f"again on {stream}"))))
    for executable, refused, count in itertools.product((None, "old"), (None, 0, 1), (0, 1, 2)):
        changes = itertools.count()

        def change(*values: Any, refused: int | None = refused, changes: Any = changes) -> Any:
            notes.append(f"changed {values[0]}")
            return (FAILURE if next(changes) == refused else SUCCESS,)

        monkeypatch.setattr(graph.driver, "cuGraphExecMemcpyNodeSetParams", change)
        made = object.__new__(graph.CudaCopyingGraph)
        made._device, made._executable, made._context = place, executable, None
        made._recorded, made._used_objects, made._graph = None, [], None
        made._nodes = [(index, SimpleNamespace()) for index in range(count)]
        made.copy_to(tuple(range(100, 100 + count)))
        found[f"{executable} {refused} {count}"] = (
            f"{notes} {made.addresses} {[node[1].__dict__ for node in made._nodes]}")
        notes.clear()
    recorded("cuda_graphs", found)


def test_ptx(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for by in (1, 2, 3, 4, 5, 7, 8, 10, 64, 96, 100, 1000, 2**16, 2**20 + 1):
        code = ptx.Code()
        code.divided("r9", by)
        found[f"divided by {by}"] = code.text()
    for count, first in itertools.product(range(1, 8), (0, 5)):
        code = ptx.Code()
        code.dispatch("r9", [f"T{index}" for index in range(count)], first)
        found[f"dispatch {count} {first}"] = code.text()
    code = ptx.Code()
    code.emit("mov", code.register("f"), ptx.Bits(0x3F800000), guard="!p1")
    code.emit("ld", ("f1", "f2"), ptx.Address("q1", 8), 5)
    code.jump(code.label(), "p0", uniform=False)
    found["kernel"] = ptx.kernel("name", ["a", "b"], code, 128, 2).text
    entry = cubins.joined(["a", "b", "c"], [b"12", b"", b"345"])
    found["joined"] = f"{entry!r} {cubins.separated(entry)}"
    found["source"] = f"{cubins.source('n').path} {cubins.source('n').function}"
    monkeypatch.setattr(nvjitlink, "version", lambda: "13.0")
    for architecture in ("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120"):
        found[f"key {architecture}"] = as_text(nvjitlink.key(["p"], architecture))
    monkeypatch.setattr(nvjitlink, "link", lambda text, options: (text.encode(), "here"))
    monkeypatch.setattr(nvjitlink, "_link_in_a_process", lambda text, options: (
        text.encode()[::-1], "apart"))
    programs = [ptx.PtxProgram("n", str(index)) for index in range(4)]
    for count, one_here in itertools.product(range(5), (False, True)):
        made = nvjitlink.build_all(programs[:count], "sm_90", one_here=one_here)
        found[f"built {count} {one_here}"] = f"{len(made)} {digest(made)}"
    monkeypatch.undo()
    for code_, output, errors in ((0, ("a", "b"), b""), (0, "text", b""), (1, None, b"x\nlast"),
                                  (1, None, b""), (-9, None, b""), (-9, None, b"killed")):
        run = SimpleNamespace(returncode=code_, stdout=pickle.dumps(output), stderr=errors)
        monkeypatch.setattr(nvjitlink.subprocess, "run", lambda *words, run=run, **more: run)
        found[f"process {code_} {output} {errors!r}"] = outcome(nvjitlink._link_in_a_process, "",
                                                                [])
    for report in ("", "Used 32 registers", "8 bytes spill stores, 12 bytes spill loads",
                   "0 bytes spill stores, 3 bytes spill loads, Used 7 registers"):
        log = f"Function properties for f\n{report}\nFunction properties for g\nUsed 99 registers"
        for function in ("f", "g", "h"):
            found[f"report {report} {function}"] = outcome(
                nvrtc._build_info, log, function, text=lambda info: (
                    f"{info.registers} {info.spill_bytes}"))
    found["options"] = nvrtc.OPTIONS
    recorded("cuda_ptx", found)
