"""Streams of batches: order, errors, bounded memory, ends, and copies beside kernels."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from gossamer import InputFormat
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import DeviceError, InputError, OutOfMemoryError
from gossamer.plan import group_processes
from gossamer.plan.plan import Plan
from tests.fixtures import needed
from tests.model.onnx_models import model, save
from tests.plan.device_stand_ins import LaterDevice
from tests.plan.small import assert_close, compiled, expected, images, small
from tests.processes import until
from tests.tolerances import normalised_error


def _device(name: str) -> Device:
    if name == "host":
        return find("host")
    return needed("pocl") if name == "pocl" else LaterDevice(needed("pocl"))


@pytest.fixture(scope="module", params=["host", "pocl", "later"])
def plan(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return compiled(small(), _device(request.param), tmp_path_factory.mktemp("plan"))


KINDS = ("host", "pocl", "later", "host,host", "processes")


@pytest.fixture(scope="module", params=KINDS)
def streaming(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A plan, or a group of plans that share one process or have several."""
    if request.param == "processes":
        return request.getfixturevalue("of_processes")
    devices = [_device(name) for name in request.param.split(",")]
    return gossamer.compile(str(save(small(), tmp_path_factory.mktemp("streaming"))),
                            devices if devices[1:] else devices[0])


def _threads() -> int:
    return sum(thread.name.startswith("gossamer ") for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("streaming", [*KINDS, "pocl,pocl", "host,pocl,host"], indirect=True)
def test_results_come_in_order_for_batches_of_any_size(streaming: Any, depth: int) -> None:
    sizes = [4, 4, 1, 0, 3, 4, 2, 7, 4, 4, 5, 6, 4]
    results = list(streaming.stream((images(size, seed) for seed, size in enumerate(sizes)), depth))
    assert len(results) == len(sizes)
    for seed, (size, y) in enumerate(zip(sizes, results, strict=True)):
        assert y.shape == (size, 4)
        if size:
            assert_close(y, expected(images(size, seed)))
    assert not _threads()


def test_what_a_caller_holds_is_not_written_again(streaming: Any) -> None:
    results = list(streaming.stream([images(2, seed) for seed in range(8)], 1))
    for seed, y in enumerate(results):
        assert_close(y, expected(images(2, seed)))
        assert y.flags.writeable


@pytest.mark.parametrize("dtype", ["uint8", "float16", ">f4"])
def test_batches_that_convert_without_loss(streaming: Any, dtype: str) -> None:
    batches = [np.abs(images(4, seed) * 20).round().astype(dtype) for seed in range(4)]
    turned = [np.asfortranarray(batch) for batch in batches]
    for x, y in zip(batches * 2, streaming.stream(batches + turned), strict=True):
        assert_close(y, expected(x.astype(np.float32)))


@pytest.mark.parametrize("name", ["host", "pocl"])
def test_batches_in_the_form_that_the_plan_takes(name: str, tmp_path: Path) -> None:
    plan = gossamer.compile(str(save(small(), tmp_path)), _device(name), output_dtype="float16",
                            inputs=InputFormat("uint8", "NHWC", scale=1 / 255, mean=0.5))
    pixels = [np.random.default_rng(seed).integers(0, 256, (2, 6, 5, 3), np.uint8)
              for seed in range(4)]
    turned = [np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in pixels]
    for x, y in zip(pixels * 2, plan.stream([*pixels, *turned, pixels[0][:0]]), strict=False):
        assert y.dtype == np.float16
        right = expected(x.transpose(0, 3, 1, 2) * np.float32(1 / 255) - np.float32(0.5))
        assert normalised_error(y.astype(np.float32), right) < 2e-3
    with pytest.raises(InputError, match="batch 0: input 'x' has dtype float32, expected uint8"):
        next(plan.stream([pixels[0].astype(np.float32)]))


@pytest.mark.parametrize(("devices", "has_processes"), [
    ("host", False), ("host,host", False), ("host,host", True)])
def test_several_inputs_by_position_and_by_name(
        devices: str, has_processes: bool, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_processes, "have_processes", lambda devices: has_processes)
    proto = model([helper.make_node("Sub", ["left", "right"], ["y"], "difference"),
                   helper.make_node("Relu", ["y"], ["z"], "relu")],
                  {"left": ["N", 3], "right": ["N", 3]}, {"y": 2, "z": 2})
    plan = gossamer.compile(str(save(proto, tmp_path)), devices)
    left, right = plan.pinned(1) if devices != "host" else np.zeros((2, 1, 3), np.float32)
    assert not left.any() and not right.any()
    left[...], right[...] = [[1, 2, 3]], [[3, 2, 1]]
    by_name = {"right": right, "left": left}
    for y, z in (*plan.stream([(left, right), [left, right], by_name]), plan(**by_name)):
        assert y.tolist() == [[-2, 0, 2]] and z.tolist() == [[0, 0, 2]]
    plan.close()


def test_a_batch_that_fails_is_named_and_the_others_go_on(streaming: Any) -> None:
    batches = [images(2), images(2)[:, :2], images(2, 1), images(2).astype(np.float64), "x",
               images(3, 2)]
    messages = {1: r"^batch 1: input 'x' has shape 2x2x6x5, expected",
                3: "^batch 3: input 'x' has dtype float64", 4: "^batch 4: input 'x' is a str"}
    stream = streaming.stream(batches)
    for index, batch in enumerate(batches):
        if index in messages:
            with pytest.raises(InputError, match=messages[index]):
                next(stream)
        else:
            assert_close(next(stream), expected(batch))
    with pytest.raises(StopIteration):
        next(stream)
    returned = list(streaming.stream(batches, errors="return"))
    assert [index for index, y in enumerate(returned) if isinstance(y, InputError)] == [1, 3, 4]
    assert str(returned[4]).startswith("batch 4: ")
    assert_close(returned[5], expected(batches[5]))
    with pytest.raises(InputError, match=r"^input 'x' has shape 2x2x6x5"):
        streaming(batches[1])


def test_a_device_that_fails_once_spoils_one_batch(plan: Plan,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [images(2, seed) for seed in range(6)]
    execute, calls = type(plan.context(2)).execute, []

    def failing(self: Any, stream: Any = None) -> None:
        calls.append(None)
        if len(calls) == 3:
            raise DeviceError("a kernel failed")
        execute(self, stream)

    monkeypatch.setattr("gossamer.plan.run.context.Context.execute", failing)
    results = list(plan.stream(batches, errors="return"))
    (failed,) = [index for index, y in enumerate(results) if isinstance(y, Exception)]
    assert str(results[failed]) == f"batch {failed}: a kernel failed"
    assert isinstance(results[failed], DeviceError)
    for index, (x, y) in enumerate(zip(batches, results, strict=True)):
        if index != failed:
            assert_close(y, expected(x))


def test_what_the_iterator_raises_comes_after_the_results_before_it(streaming: Any) -> None:
    def batches() -> Iterator[np.ndarray]:
        yield images(2)
        yield images(2, 1)
        raise OSError("the disk is gone")

    stream = streaming.stream(batches(), errors="return")
    assert_close(next(stream), expected(images(2)))
    assert_close(next(stream), expected(images(2, 1)))
    with pytest.raises(OSError, match=r"^the disk is gone$"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    assert not _threads()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_consumer_bounds_what_is_read(streaming: Any, depth: int) -> None:
    members = len(getattr(streaming, "plans", "1"))
    read = []

    def batches() -> Iterator[np.ndarray]:
        for seed in range(50):
            read.append(seed)
            yield images(1, seed)

    stream = streaming.stream(batches(), depth)
    for taken in range(1, 4):
        assert_close(next(stream), expected(images(1, taken - 1)))
        until(lambda taken=taken: len(read) == 2 * depth * members + taken)
        time.sleep(0.05)
        assert len(read) == 2 * depth * members + taken
    stream.close()


def test_one_thread_reads(streaming: Any) -> None:
    readers = set()

    def batches() -> Iterator[np.ndarray]:
        for seed in range(12):
            readers.add(threading.get_ident())
            yield images(1, seed)

    list(streaming.stream(batches(), 3))
    assert len(readers) == 1 and threading.get_ident() not in readers


def _endless() -> Iterator[np.ndarray]:
    while True:
        yield images(2)


def test_a_closed_stream_ends_its_threads(plan: Plan) -> None:
    stream = plan.stream(_endless())
    next(stream)
    assert _threads()
    stream.close()
    assert not _threads()
    with pytest.raises(StopIteration):
        next(stream)
    with plan.stream(_endless()) as results:
        next(results)
    assert not _threads()


def test_a_stream_that_is_dropped_ends_its_threads(plan: Plan) -> None:
    for y in plan.stream(_endless()):
        assert_close(y, expected(images(2)))
        break
    gc.collect()
    until(lambda: not _threads())


def test_an_iterator_that_never_returns_does_not_hold_the_stream(
        plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.plan.run.stream._JOIN_S", 0.05)
    event = threading.Event()

    def batches() -> Iterator[np.ndarray]:
        yield images(2)
        event.wait()

    stream = plan.stream(batches())
    next(stream)
    stream.close()
    assert _threads() == 1
    event.set()
    until(lambda: not _threads())


def test_streams_and_calls_share_a_plan(streaming: Any) -> None:
    batches = [images(2, seed) for seed in range(10)]
    right = [expected(x) for x in batches]
    for y, other, reference in zip(streaming.stream(batches), streaming.stream(batches), right,
                                   strict=True):
        assert_close(y, reference)
        assert_close(other, reference)
        assert_close(streaming(batches[0]), right[0])


@pytest.mark.parametrize(("arguments", "message"), [
    ((images(2),), "batches is an ndarray, which is one batch; give an iterable"),
    (({"x": images(2)},), "batches is a dict, which is one batch"),
    ((5,), "batches is an int, expected an iterable"),
    (([], 0), "depth 0: expected a whole number of 1 or more"),
    (([], 1.5), "depth 1.5: expected a whole number of 1 or more"),
])
def test_arguments_that_make_no_stream(plan: Plan, arguments: tuple[Any, ...],
                                       message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan.stream(*arguments)
    with pytest.raises(InputError, match="errors 'skip': expected one of raise, return"):
        plan.stream([], errors="skip")


def test_a_stream_of_nothing(plan: Plan) -> None:
    assert list(plan.stream([])) == []


def test_a_closed_plan_makes_no_stream(tmp_path: Path) -> None:
    plan = compiled(small(), find("host"), tmp_path)
    plan.close()
    with pytest.raises(InputError, match="the plan is closed"):
        plan.stream([images(1)])


_INTERRUPTED = """
import itertools, sys
import numpy as np
import gossamer

plan = gossamer.compile(sys.argv[1], device=sys.argv[2])
batches = (np.zeros((2, 3, 6, 5), np.float32) for _ in itertools.count())
try:
    for count, y in enumerate(plan.stream(batches)):
        if count == 3:
            print("running", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
@pytest.mark.parametrize("name", ["host", "opencl:0"])
def test_an_interrupted_stream_ends_its_process(name: str, tmp_path: Path) -> None:
    if name != "host":
        _device("pocl")
    plan = compiled(small(), find("host"), tmp_path)
    path = next(tmp_path.glob("*.onnx"))
    plan.close()
    process = subprocess.Popen([sys.executable, "-c", _INTERRUPTED, path, name],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")


def test_lanes_of_other_batch_sizes_make_room_where_memory_is_short(
        plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def short(batch: int, stream: Any) -> Any:
        made.append(batch)
        if len(made) == 2:
            raise OutOfMemoryError("too little memory")
        return plan.context(batch, stream)

    monkeypatch.setattr(plan._calls, "make_context", short)
    stream = plan.stream([images(2), images(3)], 1)
    assert [y.shape for y in stream] == [(2, 4), (3, 4)]
    assert made == [2, 3, 3]


def test_numpy_arrays_on_cuda(on_cuda: Plan) -> None:
    batches = [images(size, size) for size in (64, 64, 3, 64, 1, 64, 64, 5)]
    for x, y in zip(batches, on_cuda.stream(batches), strict=True):
        assert_close(y, expected(x))


def test_tensors_on_the_device(on_cuda: Plan, torch: Any) -> None:
    own = torch.cuda.Stream()

    def batches() -> Iterator[Any]:
        with torch.cuda.stream(own):
            for seed in range(20):
                # work that is pending on the stream when the batch is read
                x = torch.from_numpy(images(8, seed)).cuda(non_blocking=True)
                for _ in range(10):
                    x = x * 2 / 2
                yield x

    for seed, y in enumerate(on_cuda.stream(batches())):
        assert y.is_cuda
        assert_close(y.cpu().numpy(), expected(images(8, seed)))
