"""The peer jax-jit: whole networks that JAX compiles; needs jax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from gossamer.bench.work import PeerNetwork
from gossamer.device.base import Device
from gossamer_bench.contender import Alternative, ReadyContender, processor_precisions
from gossamer_bench.peers import jax_devices
from gossamer_bench.peers.graph_jax import LAYOUTS, GraphFunction

_WARM_UP = 2
"""Calls before the call whose time is measured: the first call compiles, and the second call may
record a CUDA graph."""
_WAIT_US, _MOST_CALLS = 20_000.0, 100
"""On a GPU, the timed work queues several calls and waits once for the last result, so that the
time of the wait is negligible. The calls together take about _WAIT_US microseconds, and are at most
_MOST_CALLS."""


def alternatives(name: str, network: PeerNetwork, x: np.ndarray, device: Device,
                 precisions: Sequence[str]) -> list[Alternative]:
    """Returns the ways to run jax-jit in these precisions. Raises AbsentError."""
    if device.runs_cuda_libraries:
        jax_device = jax_devices.gpu(device)
    else:
        jax_device = jax_devices.processor()
        precisions = processor_precisions(precisions)
    # a network without images is the same in both layouts
    layouts = tuple(LAYOUTS) if x.ndim == 4 else ("NCHW",)
    return [Alternative(f"{precision}, {layout if x.ndim == 4 else 'row'}", partial(
                _contender, name, network, x, device, jax_device, precision, layout))
            for precision in precisions for layout in layouts]


def _contender(name: str, network: PeerNetwork, x: np.ndarray, device: Device, jax_device: Any,
               precision: str, layout: str) -> ReadyContender:
    """Returns the network in one layout and precision, ready to be timed. The weights are arguments
    of the function, as users of JAX pass them, and their axes have the order in which convolutions
    read them."""
    function = GraphFunction(network.graph, len(x), layout, precision,
                             on_processor=not device.runs_cuda_libraries)
    weights, source = jax.device_put((function.weights, function.stored(x)), jax_device)
    call = jax.jit(function)
    results: list[Any] = []

    def queue(calls: int, stream: Any) -> None:
        """Queues calls and waits for the last one, because the device's events are on another
        stream than JAX's work."""
        for _ in range(calls):
            # before a call the previous result is dropped, so that the new result may take its
            # memory, and XLA need not write new addresses into the CUDA graphs that it recorded
            results.clear()
            results.extend(call(weights, source))
        jax.block_until_ready(results)

    for _ in range(_WARM_UP):
        queue(1, None)
    calls = 1
    # on the processor JAX computes queued calls at the same time, which no other contender does
    if device.runs_cuda_libraries:
        call_us = device.time(partial(queue, 1))
        calls = max(1, min(_MOST_CALLS, round(_WAIT_US / max(call_us, 1.0))))
    return ReadyContender(
        name, device, partial(queue, calls),
        lambda count: function.in_graph(np.asarray(results[0]))[:count],
        layout if x.ndim == 4 else "row",
        "jit, batch norm folded" + (f", {calls} calls queued" if calls > 1 else ""),
        precision, calls)
