"""Records of what a CUDA device asks of a driver that is not there, also where calls fail."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.tensor import Format, TensorSpec
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome

pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)

from gossamer.device.cuda import device, memory, streams
from tests.device.cuda.fake_driver import (
    FAILURE,
    LOST,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
    FakeDriver,
    fake_device,
)


def nothing(value: Any) -> str:
    """The text of a result that is not recorded."""
    return "made"


def closed(handle: int) -> Any:
    return SimpleNamespace(handle=handle, is_closed=True, ptr=handle)


def test_opening(recorded: Recorded, fake: FakeDriver) -> None:
    found = {}

    def opened(index: int) -> str:
        with fake_device(index) as made:
            maker = made.build_only
            return (f"{made.name} {made.description} {made.driver.partition(', driver')[0]} "
                    f"{made.chip} {made._launches_early} {made.architecture} "
                    f"{maker.index} {maker.architecture} {maker.chip} "
                    f"{made.builds_side_by_side} {made.assembles_ptx} {made.runs_cuda_libraries} "
                    f"{made.locks_pages}")

    for index, capability in itertools.product((0, 3), ((8, 9), (9, 0), (9, 1), (10, 0), (8, 0))):
        fake.numbers = {"COMPUTE_CAPABILITY_MAJOR": capability[0],
                        "COMPUTE_CAPABILITY_MINOR": capability[1]}
        found[f"opened {index} {capability}"] = outcome(opened, index) + fake.taken()
    for name in ("cuDeviceGet", "cuDeviceGetName", "cuDevicePrimaryCtxRetain", "cuDeviceTotalMem",
                 "cuDeviceGetAttribute", "cuDriverGetVersion", "cuStreamCreate"):
        fake.failing = {name: [FAILURE]}
        found[f"failing {name}"] = outcome(opened, 1) + fake.taken()
    recorded("cuda_opening", found)


def test_memory(recorded: Recorded, fake: FakeDriver, made: Any,
                monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    own = streams.CudaStream(made)
    fake.taken()
    for nbytes, (word, stream), status in itertools.product(
            (0, 1, 16), {"none": None, "default": 0, "number": 7, "own": own}.items(),
            (SUCCESS, OUT_OF_MEMORY, FAILURE)):
        fake.failing = {name: [status] for name in ("cuMemAlloc", "cuMemAllocFromPoolAsync")}
        text = outcome(made.empty, nbytes, "a test", stream, text=lambda buffer: str(
            buffer.nbytes))
        found[f"empty {nbytes} {word} {status.name}"] = text + fake.taken()
    for name in ("cuMemPoolCreate", "cuMemPoolSetAttribute"):
        made._pool = memory.MemoryPool(made)
        fake.failing = {name: [FAILURE]}
        found[f"failing {name}"] = outcome(made.empty, 4, "a test", 7, text=nothing) + fake.taken()
    buffer, other = made.empty(16, "a test"), made.empty(12, "a test")
    nobody = made.wrap(64, 0, None)
    fake.taken()
    arrays = {"bytes": np.zeros(16, np.uint8), "short": np.zeros(3, np.float32),
              "long": np.zeros(17, np.uint8), "turned": np.zeros((2, 2), np.float32).T}
    for (word, array), stream, statuses in itertools.product(
            arrays.items(), (None, 7), ([], [FAILURE], [FAILURE] * 2, [LOST] * 2)):
        for call in (made.write, made.read, made.queue_write, made.queue_read):
            fake.failing = {"cuMemcpyHtoDAsync": list(statuses), "cuMemcpyDtoHAsync":
                            list(statuses), "cuStreamSynchronize": list(statuses[1:])}
            found[f"{call.__name__} {word} {stream} {len(statuses)} {statuses == [LOST] * 2}"] = (
                outcome(call, buffer, array, stream) + fake.taken())
    for call in (made.write, made.read):
        found[f"{call.__name__} nothing"] = outcome(call, nobody, np.zeros(0)) + fake.taken()
    for array in (np.zeros(0), np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32).T):
        for status in (SUCCESS, OUT_OF_MEMORY):
            fake.failing = {"cuMemAlloc": [status]}
            found[f"upload {array.shape} {status.name}"] = outcome(
                made.upload, array, "a test", text=lambda made: str(made.nbytes)) + fake.taken()
    for nbytes, stream, status in itertools.product((0, 1, 12, 13, 16, 17), (None, 7),
                                                    (SUCCESS, FAILURE)):
        fake.failing = {"cuMemcpyDtoDAsync": [status]}
        found[f"copy {nbytes} {stream} {status.name}"] = outcome(
            made.copy, buffer, other, nbytes, stream) + fake.taken()
    block = (ctypes.c_uint8 * 8)()
    fake_host = ctypes.addressof(block)
    for nbytes, status in itertools.product((0, 1, 8), (SUCCESS, OUT_OF_MEMORY)):
        monkeypatch.setattr(device.driver, "cuMemHostAlloc", lambda size, flags, status=status: (
            fake.calls.append(f"MemHostAlloc {size} {flags}") or (status, fake_host)))
        found[f"locked {nbytes} {status.name}"] = outcome(
            made.page_locked, nbytes, text=lambda array: str(array.shape)) + fake.taken()
    for shape, kind in itertools.product(((), (3,), (2, 3), (0, 3)), ("float32", "int8")):
        array = made.empty_array(TensorSpec(shape, Format(dtype=kind)), "a test", 7)
        found[f"array {shape} {kind}"] = (
            f"{array!r} {array.buffer.nbytes} {array.stream}" + fake.taken())
        for asked, copy in itertools.product((None, "float64"), (None, True, False)):
            found[f"numpy {shape} {kind} {asked} {copy}"] = outcome(
                array.__array__, asked, copy,
                text=lambda taken: f"{taken.dtype} {taken.shape}") + fake.taken()
    recorded("cuda_memory", found)


def test_streams(recorded: Recorded, fake: FakeDriver, made: Any) -> None:
    found = {}
    own, second = streams.CudaStream(made), streams.CudaStream(made)
    fake.taken()
    kinds: dict[str, Any] = {
        "none": None, "default": 0, "one": 1, "seven": 7, "own": own, "second": second,
        "protocol": SimpleNamespace(__cuda_stream__=lambda: (0, 21)),
        "tuple": SimpleNamespace(__cuda_stream__=(0, 22)), "torch": SimpleNamespace(cuda_stream=23),
        "cupy": SimpleNamespace(ptr=24), "closed": closed(25), "nothing": object()}
    for word, stream in kinds.items():
        found[f"handle {word}"] = outcome(made.stream_handle, stream, text=lambda handle: str(
            handle if handle < 1000 else "own")) + fake.taken()
        for status in (SUCCESS, FAILURE, NOT_READY):
            fake.failing = {"cuStreamQuery": [status]}
            found[f"idle {word} {status.name}"] = outcome(made.is_idle, stream) + fake.taken()
        for statuses in ([], [FAILURE], [FAILURE] * 2, [LOST] * 2):
            fake.failing = {"cuStreamSynchronize": list(statuses)}
            found[f"synchronize {word} {len(statuses)} {statuses[:1] == [LOST]}"] = outcome(
                made.synchronize, stream) + fake.taken()
        for count in (0, 1, 2, 1):
            found[f"beside {word} {count}"] = outcome(
                made.side_streams, stream, count, text=lambda found: str(len(found))) + fake.taken()
        for other in kinds:
            found[f"wait {word} {other}"] = outcome(made.wait, stream, kinds[other]) + fake.taken()
    for name in ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuCtxSynchronize"):
        for statuses in ([FAILURE], [FAILURE] * 2):
            fake.failing = {name: list(statuses)}
            found[f"failing {name} {len(statuses)}"] = outcome(
                made.wait, 7, closed(8) if "Ctx" in name else 8) + fake.taken()
    fake.contexts = [3]
    for statuses in ([], [FAILURE], [FAILURE] * 2):
        fake.failing = {"cuStreamSynchronize": list(statuses)}
        found[f"other context {len(statuses)}"] = outcome(made.synchronize, 7) + fake.taken()
    recorded("cuda_streams", found)


def test_timing_and_graphs(recorded: Recorded, fake: FakeDriver, made: Any) -> None:
    found = {}
    buffer = made.empty(512, "a test")
    fake.taken()

    def work(stream: Any) -> None:
        fake.calls.append("work")
        made.copy(buffer.view(0, 8), buffer.view(256, 8), 8, stream)

    def early(stream: Any) -> None:
        fake.calls.append("early")
        made._recorder.note_early_begin()

    def broken(stream: Any) -> None:
        raise ValueError("broken")

    def copying(count: int, failing: int = 0) -> Any:
        graph = made.capture_copying(work, [(buffer, 4 + index) for index in range(count)])
        fake.calls.append("recorded")
        graph.copy_to(tuple(range(2, 2 + count)))
        replay = graph.on(7)
        replay()
        graph.copy_to(tuple(range(5, 5 + count)))
        fake.failing["cuGraphLaunch"] = [FAILURE] * failing
        replay()
        return graph.addresses, [
            (int(node[1].srcDevice) - buffer.address, int(node[1].dstDevice), node[1].WidthInBytes,
             node[1].Height, node[1].Depth) for node in graph._nodes], graph._used_objects[2:] == []

    for stream, name, count in itertools.product(
            (None, 7), ("", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
                        "cuEventElapsedTime"), (1, 2)):
        made._of_thread.__dict__.clear()
        fake.taken()
        fake.failing = {name: [SUCCESS] * (count - 1) + [FAILURE]}
        found[f"timed {stream} {name} {count}"] = " ".join(
            outcome(made.time, work, stream) for _ in range(2)) + fake.taken()
    found["timed broken"] = outcome(made.time, broken) + fake.taken()
    for each, repeats, stream in itertools.product((work, early, broken), (1, 2, 3, 4, 5, 9),
                                                   (None, 7)):
        def replay(each: Any = each, repeats: int = repeats, stream: Any = stream) -> None:
            graph = made.capture(each, stream, repeats)
            fake.calls.append("recorded")
            graph()
            graph(8)
            made.replayed(graph, 9)()
            made.replayed(graph, None)()

        found[f"graph {each.__name__} {repeats} {stream}"] = outcome(replay) + fake.taken()
    for each, repeats, as_in_plan in itertools.product(
            (work, early), (1, 2, 9, 10, 11, 20, 23, 45), (False, True)):
        found[f"timed graph {each.__name__} {repeats} {as_in_plan}"] = outcome(
            lambda each=each, repeats=repeats, as_in_plan=as_in_plan: made.timed_graph(
                each, repeats, as_in_plan=as_in_plan)()) + fake.taken()
    for name, count in itertools.product(
            ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphCreate", "cuGraphInstantiate",
             "cuGraphAddChildGraphNode", "cuGraphAddEventRecordNode", "cuGraphLaunch",
             "cuEventCreate", "cuGraphAddMemcpyNode", "cuGraphMemcpyNodeSetParams"), (1, 2)):
        for word, call in (
                ("capture", lambda: made.capture(early, 7, 5)()),
                ("replayed", lambda: made.replayed(made.capture(work, 7), 9)()),
                ("timed", lambda: made.timed_graph(early, 12, as_in_plan=True)()),
                ("copying", lambda: copying(2))):
            made._recorder._of_thread.__dict__.clear()
            fake.taken()
            fake.failing = {name: [SUCCESS] * (count - 1) + [FAILURE]}
            found[f"failing {name} {count} {word}"] = outcome(call, text=nothing) + fake.taken()

    for count, failing in itertools.product((0, 1, 2), (0, 1, 2)):
        found[f"copying {count} {failing}"] = outcome(copying, count, failing, text=str
                                                      ) + fake.taken()
    made.keep("outside")
    found["outside"] = f"{made._recorder._capture} {made._recorder.side_streams} " + fake.taken()
    for keeps in (0, 1, 2):
        graph = made.capture(lambda stream, keeps=keeps: made.keep(*"ab"[:keeps]))
        found[f"kept {keeps}"] = str(graph._used_objects)
    recorded("cuda_work", found)
