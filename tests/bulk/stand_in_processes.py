"""Streams over processes that stand in for GPUs: what one interpreter can feed, and what is left
when processes are killed.

    python -m tests.bulk.stand_in_processes --devices 4 --batch-us 533 --images 64

An H100 takes 533 us for 64 images of MobileNetV2 in bytes. It prints the images a second of one
stand-in and of all, beside linear, from memory that the group hands out and from ordinary arrays,
and the parent's processor time for a batch. Then it kills two processes within 2,000 batches, and
fails unless every result comes once and in order.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import warnings
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, helper

import gossamer
from gossamer.device.registry import find
from gossamer.errors import GossamerWarning
from gossamer.plan import group_processes
from gossamer.plan.plan_group import PlanGroup
from tests.bulk import stand_in_worker
from tests.model.onnx_models import model

_KILLS = {600: 0, 1200: 1}
"""The batches after which a process is killed, and which process."""


def _group(devices: int, side: int) -> PlanGroup:
    """Returns a group of stand-ins for a network that takes images of bytes to 1,000 numbers."""
    proto = model(
        [helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
         helper.make_node("GlobalAveragePool", ["real"], ["mean"]),
         helper.make_node("Flatten", ["mean"], ["flat"]),
         helper.make_node("MatMul", ["flat", "w"], ["y"])], {"x": ["N", 3, side, side]},
        {"y": ["N", 1000]}, {"w": np.ones((3, 1000), np.float32)}, types={"x": TensorProto.UINT8})
    return gossamer.compile(proto, [find("host")] * devices)


def _started(group: PlanGroup, x: np.ndarray) -> None:
    begin = group.members.checked(x)
    for member in group.members.all:
        member.compute(begin)


def _rate(group: PlanGroup, arrays: list[np.ndarray], batches: int) -> tuple[float, float]:
    """Returns images a second, and the microseconds of this process's processors for a batch."""
    def given() -> Iterator[np.ndarray]:
        for index in range(batches):
            yield arrays[index % len(arrays)]

    start, used = time.perf_counter(), time.process_time()
    count = sum(len(y) for y in group.stream(given()))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    return count / seconds, 1e6 * used / batches


def _killed(group: PlanGroup, batches: int) -> None:
    """Kills processes in the middle of a stream, and checks its results."""
    arrays = [group.pinned(1) for _ in range(batches)]
    for index, array in enumerate(arrays):
        array[...] = index % 251
    members = group.members.all
    with warnings.catch_warnings(), group.stream(arrays) as results:
        warnings.simplefilter("error", GossamerWarning)
        for index, y in enumerate(results):
            assert y.shape == (1, 1000) and y[0, 0] == index % 251, f"batch {index} is wrong"
            if index in _KILLS:
                os.kill(members[_KILLS[index]].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        assert index == batches - 1, f"{index + 1} of {batches} results"
    print(f"{batches} batches, {len(_KILLS)} processes killed: every result once, in order")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--batch-us", type=float, default=533.0)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batches", type=int, default=2000)
    arguments = parser.parse_args()
    seconds = arguments.batch_us / 1e6
    os.environ[stand_in_worker.SECONDS] = str(seconds)
    group_processes.WORKER = "tests.bulk.stand_in_worker"
    group_processes.have_processes = lambda devices: True  # type: ignore[assignment]
    for devices in sorted({1, arguments.devices}):
        with _group(devices, arguments.side) as group:
            pinned = [group.pinned(arguments.images) for _ in range(8 * devices)]
            _started(group, pinned[0])
            linear = devices * arguments.images / seconds
            for kind, arrays in (("pinned", pinned), ("ordinary", [x.copy() for x in pinned])):
                _rate(group, arrays, 100)
                rate, used = _rate(group, arrays, arguments.batches)
                print(f"{devices} stand-ins, {kind} arrays: {rate:,.0f} images a second, "
                      f"{rate / linear:.2f} of linear; {used:.0f} us of the parent for a batch")
            if devices > 1:
                _killed(group, arguments.batches)


if __name__ == "__main__":
    main()
