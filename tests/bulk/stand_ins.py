"""Streams over stand-ins for GPUs: each copies its batches for real, and then waits as long as a
GPU was measured to compute.

    python -m tests.bulk.stand_ins --devices 8 --batch-us 3200 --images 128

An H200 takes 3.2 ms for 128 images of ResNet-50 in float16. It prints the images a second of one
stand-in and of all, beside linear, and the rate at which as many threads of this machine copy the
same bytes: the less of the two is what can be reached.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gossamer
from gossamer.device.registry import find
from gossamer.plan.plan import Plan
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.device_workers import Members
from gossamer.plan.run.stream import ResultStream
from tests.bulk.stand_in_device import StandInDevice, wait_until


class _Context:
    """A context with the methods that lanes call."""

    def __init__(self, device: StandInDevice, seconds: float, shape: tuple[int, ...]) -> None:
        self._device = device
        self._seconds = seconds
        self._memory = np.empty(shape, np.uint8)
        self.program = SimpleNamespace(batch=len(self._memory))

    def begin(self, arrays: Sequence[np.ndarray],
              computing: Any, results: Any = None) -> Callable[[], Sequence[np.ndarray]]:
        """Copies a batch, and returns the function that waits for its result."""
        np.copyto(self._memory, arrays[0])
        end = self._device.queue(self._seconds)

        def collect() -> Sequence[np.ndarray]:
            wait_until(end)
            return [np.zeros((len(self._memory), 1000), np.float32)]

        return collect


def _rate(plan: Plan, devices: int, batches: int, x: np.ndarray, seconds: float) -> float:
    """Returns the images a second of a stream over so many stand-ins."""

    def of(device: StandInDevice) -> Calls:
        def context_of(batch: int, stream: Any) -> Any:
            return _Context(device, seconds, x.shape)

        return Calls(plan.graph, device, context_of)

    def given() -> Iterator[np.ndarray]:
        for _ in range(batches * devices):
            yield x

    start = time.perf_counter()
    with ResultStream(Members([of(StandInDevice()) for _ in range(devices)]), given(), 3,
                      "raise") as results:
        count = sum(len(y) for y in results)
    return count / (time.perf_counter() - start)


def _copied(threads: int, x: np.ndarray, repeats: int = 400) -> float:
    """Returns how many images a second so many threads copy."""
    targets = [np.empty_like(x) for _ in range(threads)]

    def copy(target: np.ndarray) -> None:
        for _ in range(repeats):
            np.copyto(target, x)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.copyto, targets, [x] * threads))
        start = time.perf_counter()
        list(pool.map(copy, targets))
        return threads * repeats * len(x) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--batch-us", type=float, default=3200.0)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--batches", type=int, default=250)
    arguments = parser.parse_args()
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["N", 224, 224, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 224, 224, 3])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    plan = gossamer.compile(proto, find("host"))
    x = np.ones((arguments.images, 224, 224, 3), np.uint8)
    copied = _copied(arguments.devices, x)
    seconds = arguments.batch_us / 1e6
    one = _rate(plan, 1, arguments.batches, x, seconds)
    many = _rate(plan, arguments.devices, arguments.batches, x, seconds)
    linear = arguments.devices * len(x) / seconds
    print(f"one stand-in: {one:,.0f} images a second, of {len(x) / seconds:,.0f}; "
          f"{arguments.devices}: {many:,.0f}, {many / linear:.2f} of linear; "
          f"{arguments.devices} threads copy {copied:,.0f} a second, {many / copied:.2f} of it")


if __name__ == "__main__":
    main()
