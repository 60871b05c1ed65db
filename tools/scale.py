"""Measures how the images a second of a stream grow with the number of GPUs.

    python tools/scale.py mobilenet_v2 --devices cuda:0,cuda:1 --batch 64 --output rows.jsonl
    python tools/scale.py resnet50.plan --devices cuda:all

Groups of 1, 2, ... of the devices compute batches from memory that the group hands out
(`group.pinned`) and from ordinary arrays, in turn, and the medians of the rounds are printed beside
as many times the rate of one device. With --kill, processes are killed in the middle of the last
group's stream, and every result is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import numpy as np

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find_several
from gossamer.errors import GossamerWarning
from gossamer.plan import group_processes
from gossamer.plan.group_processes import DeviceProcesses
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.version import PACKAGE_VERSION

_ARRAYS = 8
"""Number of arrays for each device, in turn; the batches in flight do not share any."""
_KILLS = (0.3, 0.6)
"""The shares of a stream after which a process is killed."""

Streamed = Plan | PlanGroup


def made(arguments: argparse.Namespace, devices: Sequence[Device]) -> Streamed:
    """Return a plan, or a group for several devices."""
    where: Any = devices[0] if len(devices) == 1 else list(devices)
    if arguments.model.endswith(".plan"):
        return (Plan.load(arguments.model, where) if len(devices) == 1
                else PlanGroup.load(arguments.model, where))
    return gossamer.compile(
        arguments.model, where, effort=arguments.effort, precision=arguments.precision,
        inputs=None if arguments.floats else "photos")


def filled(arrays: Any, seed: int) -> tuple[np.ndarray, ...]:
    """Fill the inputs of a batch with random numbers."""
    several = arrays if isinstance(arrays, tuple) else (arrays,)
    for array in several:
        random = np.random.default_rng(seed)
        array[...] = (random.integers(0, 256, array.shape, np.uint8) if array.dtype == np.uint8
                      else random.standard_normal(array.shape, np.float32))
    return several


def rate(plan: Streamed, arrays: Sequence[Any], batch: int,
         seconds: float) -> tuple[float, float]:
    """Return the images a second of a stream that takes so many seconds.

    Also returns the microseconds of this process's processors for a batch.
    """
    end = time.perf_counter() + seconds

    def given() -> Iterator[Any]:
        index = 0
        while time.perf_counter() < end:
            yield arrays[index % len(arrays)]
            index += 1

    start, used, count = time.perf_counter(), time.process_time(), 0
    with plan.stream(given()) as results:
        for _ in results:
            count += batch
    return (count / (time.perf_counter() - start),
            1e6 * batch * (time.process_time() - used) / max(count, 1))


def killed(group: PlanGroup, arrays: Sequence[Any], batches: int) -> None:
    """Kill processes in the middle of a stream, and check every result."""
    members = group.members
    assert isinstance(members, DeviceProcesses)
    right = [group(*each) for each in arrays]
    kills = {int(batches * share): index for index, share in enumerate(_KILLS)}
    given = (arrays[index % len(arrays)] for index in range(batches))
    count = 0
    with warnings.catch_warnings(), group.stream(given) as results:
        warnings.simplefilter("error", GossamerWarning)
        for index, result in enumerate(results):
            np.testing.assert_allclose(result, right[index % len(right)], rtol=1e-3, atol=1e-4,
                                       err_msg=f"batch {index}")
            count += 1
            if index in kills:
                pid = members.processes[kills[index] % len(members.processes)].pid
                assert pid is not None
                print(f"batch {index}: killing process {pid}", flush=True)
                os.kill(pid, signal.SIGKILL)
    assert count == batches, f"{count} results of {batches} batches"
    print(f"{batches} batches, {len(kills)} processes killed: all results right, in order, once")


def started(group: Streamed, arrays: Sequence[Any]) -> None:
    """Wait until all devices of a group compute."""
    if isinstance(group, PlanGroup):
        begin = group.members.checked(arrays[0])
        for member in group.members.all:
            member.compute(begin)


def measured(arguments: argparse.Namespace,
             devices: Sequence[Device]) -> dict[str, tuple[float, float]]:
    """Return the medians of `rate` of a plan or group, by the kind of the arrays."""
    with made(arguments, devices) as plan:
        count = max(_ARRAYS, _ARRAYS * len(devices))
        pinned = [filled(plan.pinned(arguments.batch), seed) for seed in range(count)]
        ordinary = [tuple(array.copy() for array in each) for each in pinned]
        start = time.perf_counter()
        started(plan, pinned)
        print(f"{len(devices)} devices: ready in {time.perf_counter() - start:.1f} s; {plan!r}",
              flush=True)
        kinds = {"pinned": pinned, "ordinary": ordinary}
        rates: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for arrays in kinds.values():
            rate(plan, arrays, arguments.batch, 1.0)
        for _ in range(arguments.rounds):
            for kind, arrays in kinds.items():
                rates[kind].append(rate(plan, arrays, arguments.batch, arguments.seconds))
        if arguments.kill and isinstance(plan, PlanGroup) and len(devices) == arguments.most:
            killed(plan, pinned, arguments.kill)
        return {kind: (statistics.median(each[0] for each in values),
                       statistics.median(each[1] for each in values))
                for kind, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--devices", default="cuda:all")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--effort", choices=["quick", "normal", "max"])
    parser.add_argument("--precision", choices=["fp32", "tf32", "fp16"])
    parser.add_argument("--floats", action="store_true", help="take the inputs of the file")
    parser.add_argument("--processes", action="store_true",
                        help="also for devices that would share one process, such as host,host")
    parser.add_argument("--kill", type=int, default=0, metavar="N",
                        help="kill processes within N batches of all devices")
    parser.add_argument("--output", help="file of rows, which are appended")
    arguments = parser.parse_args()
    devices = find_several(arguments.devices)
    arguments.most = len(devices)
    if arguments.processes:
        group_processes.have_processes = lambda devices: len(devices) > 1  # type: ignore[assignment]
    linear = 0.0
    for count in (2**power for power in range(len(devices).bit_length())):
        rates = measured(arguments, devices[:count])
        linear = linear or rates["pinned"][0]
        for kind, (value, used) in rates.items():
            print(f"{count} devices, {kind} arrays: {value:,.0f} images a second, "
                  f"{value / (count * linear):.3f} of {count} times one with pinned arrays; "
                  f"{used:.0f} us of this process for a batch", flush=True)
            if arguments.output:
                with open(arguments.output, "a") as file:
                    file.write(json.dumps({
                        "suite": "scale", "case": f"{arguments.model}/{count}", "contender":
                        "gossamer", "device": "cuda", "precision": arguments.precision or "fp32",
                        "config": kind, "batch": arguments.batch,
                        "median_us": 1e6 * arguments.batch / value, "images_a_second": value,
                        "of_linear": value / (count * linear), "process_us": used,
                        "machine": devices[0].chip, "versions": {"gossamer": PACKAGE_VERSION},
                        "date": str(date.today())}) + "\n")


if __name__ == "__main__":
    main()
