"""Benchmark cases of calls: latency and throughput.

`latency` measures the time from a call to its result, and `throughput` measures the time of many
batches with their transfers. Peers are called as their users call them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import Call, Load
from gossamer.bench.networks import input_of, plans_of, precision_of, whole_network
from gossamer.bench.peers.calls import CALLED_PEERS
from gossamer.bench.work import (
    ARRAYS,
    BYTE_SCALE,
    BYTES,
    OWN,
    TENSORS,
    AbsentError,
    CalledContender,
    PeerNetwork,
    Setting,
    normalised,
)
from gossamer.device.base import Device
from gossamer.errors import installing
from gossamer.io.text import duration_text
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.model.input_format import InputFormat
from gossamer.plan.plan import Plan

LATENCY, THROUGHPUT = "latency", "throughput"
BOUND, ONE_BY_ONE, PINNED = f"{OWN}:bound", f"{OWN}:one-by-one", f"{OWN}:page-locked"
"""Contenders besides the plain call of a plan and the plain stream.

BOUND calls a plan that is bound to its input. ONE_BY_ONE makes consecutive calls instead of using a
stream. PINNED streams arrays that are in page-locked memory.
"""
_SAMPLE_US, _MOST_BATCHES = 1e6, 4096
"""Target duration in microseconds, and maximum number of batches, of a throughput sample.

The start-up time of a stream, 64 ms on the host of an H100, is a small share of such a sample.
"""
_COPIED_BYTES, _COPIES = 2**26, 5
"""Size in bytes and number of the copies that measure the bandwidth of the bus."""

NetworkMaker = Callable[[int], PeerNetwork]
"""Function from a batch size to a network with its torch module."""


def case_name(name: str, kind: str, load: Load) -> str:
    parts = [name, kind]
    if load.threads > 1:
        parts.append(f"{load.threads}-threads")
    if load.rate is not None:
        parts.append(f"{load.rate:g}-a-second")
    return "/".join(parts)


def latency_case(make: NetworkMaker, batch: int, kind: str, load: Load,
                 setting: Setting) -> CallCase:
    """Create the case that times single calls with one kind of input.

    Raises AbsentError if calls on this device do not support such inputs.
    """
    if kind == TENSORS and not setting.device.runs_cuda_libraries:
        raise AbsentError(f"{setting.device.name} does not support torch tensors")
    if kind == TENSORS and find_spec("torch") is None:
        raise AbsentError(f"torch is not installed: {installing('bench')}")
    network = make(batch)
    x = _input(network, batch, kind)
    plans = plans_of(_graph(network, kind), batch, setting)
    called: dict[str, Callable[[], CalledContender]] = {}
    for plan in plans:
        precision = precision_of(plan.program(batch))
        for name, bound in ((OWN, False), (BOUND, True)):
            called[f"{name} {precision}"] = partial(_own_call, name, plan, x, kind, bound, load)
    _add_peers(called, network, x, kind, load.threads, setting)
    return call_case(LATENCY, case_name(network.name, kind, load), network, x, plans, called, load)


def throughput_case(make: NetworkMaker, batch: int, kind: str, load: Load,
                    setting: Setting) -> CallCase:
    """Create the case that times many batches of the same array, including transfers."""
    network = make(batch)
    x = _input(network, batch, kind)
    plans = plans_of(_graph(network, kind), batch, setting)
    bus = copy_rate(setting.device)
    called: dict[str, Callable[[], CalledContender]] = {}
    batches = 1
    for plan in plans:
        precision, kernels_us = precision_of(plan.program(batch)), plan.end_to_end(batch).median_us
        batches = round(min(max(_SAMPLE_US / kernels_us, 2), _MOST_BATCHES))
        arrays = {OWN: x, ONE_BY_ONE: x}
        if setting.device.locks_pages:
            locked = setting.device.page_locked(x.nbytes).view(x.dtype).reshape(x.shape)
            locked[...] = x
            arrays[PINNED] = locked
        shares = Shares(batch, x.nbytes, kernels_us, bus)
        for name, array in arrays.items():
            called[f"{name} {precision}"] = partial(
                _own_stream, name, plan, array, batches, shares, precision)
    _add_peers(called, network, x, kind, 1, setting,
               lambda contender: _repeated(contender, batches, batch))
    return call_case(THROUGHPUT, f"{network.name}/{kind}", network, x, plans, called, load)


def call_case(suite: str, name: str, network: PeerNetwork, x: np.ndarray, plans: Sequence[Plan],
          called: dict[str, Callable[[], CalledContender]], load: Load) -> CallCase:
    values = x if x.dtype == np.float32 else normalised(x)
    case = whole_network(suite, name, network.graph, values, plans[0].layers(len(x)))
    return CallCase(**vars(case), called=called, load=load)


def _input(network: PeerNetwork, batch: int, kind: str) -> np.ndarray:
    """Return a random input: normally distributed, or bytes in NHWC.

    Bytes represent decoded pictures.
    """
    x = input_of(network, batch)
    if kind != BYTES:
        return x
    shape = x.transpose(0, 2, 3, 1).shape if x.ndim == 4 else x.shape
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def _graph(network: PeerNetwork, kind: str) -> Graph:
    """Return the network, modified to accept inputs of this kind."""
    if kind != BYTES:
        return network.graph
    given = InputFormat("uint8", "NHWC" if len(network.graph.inputs[0].shape) == 4 else "NCHW",
                        scale=BYTE_SCALE)
    return with_formats(network.graph, given, None)


def _layout(x: np.ndarray, kind: str) -> str:
    return "row" if x.ndim != 4 else "NHWC" if kind == BYTES else "NCHW"


def _add_peers(called: dict[str, Callable[[], CalledContender]], network: PeerNetwork,
               x: np.ndarray, kind: str, threads: int, setting: Setting,
               changed: Callable[[CalledContender], CalledContender] = lambda peer: peer) -> None:
    """Add the peers in each precision.

    changed: function that takes a prepared peer and returns the contender to add.
    """
    def peer(name: str, precision: str) -> CalledContender:
        return changed(CALLED_PEERS[name](network, x, setting.device, precision, kind, threads))

    for name, precision in itertools.product(setting.against, setting.precisions):
        label = name if len(setting.precisions) == 1 else f"{name} {precision}"
        called[label] = partial(peer, name, precision)


def _own_call(name: str, plan: Plan, x: np.ndarray, kind: str, bound: bool,
              load: Load) -> CalledContender:
    """Return the contender that calls a plan.

    A call ends when its result is complete.

    bound: whether the plan is bound to its input.
    """
    plan.contexts = max(plan.contexts, load.threads)
    precision = precision_of(plan.program(len(x)))
    layout = _layout(x, kind)
    if kind != TENSORS:
        def new_call() -> Call:
            return plan.bind(x) if bound else lambda: plan(x)

        return CalledContender(name, plan.device, new_call, _first, layout, "", precision)
    import torch

    place = torch.device("cuda", plan.device.index)
    source = torch.from_numpy(x).to(place)

    def new_tensor_call() -> Call:
        call = plan.bind(source) if bound else lambda: plan(source)
        stream = torch.cuda.current_stream(place)

        def complete() -> object:
            result = call()
            stream.synchronize()
            return result

        return complete

    return CalledContender(name, plan.device, new_tensor_call,
                           lambda value: _first(value).cpu().numpy(), layout, "", precision)


@dataclass(frozen=True)
class Shares:
    """Two lower bounds of the time per batch: the kernels alone, and the copies alone.

    batch, nbytes: images and bytes per batch.
    kernels_us: microseconds of the kernels alone, per batch.
    bus: bandwidth of copies to the device, in bytes per microsecond.
    more: text to append to the description; "" for none.
    """

    batch: int
    nbytes: int
    kernels_us: float
    bus: float
    more: str = ""

    def text(self, us: float) -> str:
        """Describe a throughput of one batch per `us` microseconds.

        The text contains the images per second, and the shares of kernels and copies in the time.
        """
        copies_us = self.nbytes / self.bus
        text = (f"{_a_second(self.batch, us)}; kernels alone {duration_text(self.kernels_us)} a "
                f"batch ({self.kernels_us / us:.0%}), copies alone {duration_text(copies_us)} at "
                f"{self.bus / 1e3:.3g} GB/s ({copies_us / us:.0%})")
        return f"{text}; {self.more}" if self.more else text


def _a_second(batch: int, us: float) -> str:
    return f"{batch / us * 1e6:,.0f} images a second"


def _own_stream(name: str, plan: Plan, x: np.ndarray, batches: int, shares: Shares,
                precision: str) -> CalledContender:
    kind = BYTES if x.dtype == np.uint8 else ARRAYS
    if name != ONE_BY_ONE:
        return streamed(name, plan, lambda: itertools.repeat(x, batches), batches, shares,
                        precision, _layout(x, kind))
    single = CalledContender(name, plan.device, lambda: lambda: plan(x), _first, _layout(x, kind),
                             "plan(x) in a loop", precision)
    return replace(_repeated(single, batches, len(x)), described=shares.text)


def streamed(name: str, plan: Plan, batches: Callable[[], Any], runs: float, shares: Shares,
             precision: str, layout: str = "NHWC") -> CalledContender:
    """Return a contender that streams several batches per call.

    The output of the call is the result of the first batch.
    """
    def call() -> object:
        first = None
        for result in plan.stream(batches()):
            first = result if first is None else first
        return first

    return CalledContender(name, plan.device, lambda: call, _first, layout,
                           f"stream of {math.ceil(runs)} batches", precision, runs, shares.text)


def _repeated(contender: CalledContender, batches: int, batch: int) -> CalledContender:
    """Return a contender that calls another one for several batches."""
    def new_call() -> Call:
        single = contender.new_call()

        def call() -> object:
            for _ in range(batches):
                result = single()
            return result

        return call

    return replace(contender, new_call=new_call, runs=batches,
                   described=lambda us: _a_second(batch, us))


def copy_rate(device: Device) -> float:
    """Return the bandwidth of copies to the device in bytes per microsecond.

    The host memory is page-locked if the device supports it."""
    source = device.page_locked(_COPIED_BYTES)
    source[...] = 1
    target = device.empty(_COPIED_BYTES, "copies that are timed")
    best = math.inf
    for _ in range(_COPIES):
        device.synchronize()
        start = time.perf_counter()
        device.queue_write(target, source)
        device.synchronize()
        best = min(best, time.perf_counter() - start)
    return _COPIED_BYTES / best / 1e6


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value
