"""Peers that are called as their users call them."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from gossamer.bench.work import (
    ARRAYS,
    TENSORS,
    AbsentError,
    CalledContender,
    PeerNetwork,
    normalised,
)
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import installing
from gossamer.model.onnx_writer import to_onnx

CalledPeer = Callable[[PeerNetwork, np.ndarray, Device, str, str, int], CalledContender]
"""Function that prepares a peer for calls, or raises AbsentError.

The arguments are a network, an input, a device, a precision, the input's kind and the number of
threads.
"""


def onnxruntime(network: PeerNetwork, x: np.ndarray, device: Device, precision: str, kind: str,
                threads: int) -> CalledContender:
    """Return ONNX Runtime on all CPU cores.

    Raises AbsentError for tensors, for a precision other than fp32, and if ONNX Runtime is not
    installed.
    """
    if kind == TENSORS:
        raise AbsentError("compared only on host arrays, because it does not accept GPU tensors")
    if precision != "fp32":
        raise AbsentError("compared in fp32 only")
    if importlib.util.find_spec("onnxruntime") is None:
        raise AbsentError(f"not installed: {installing('bench')}")
    import onnxruntime as runtime

    host = find("host")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = host.limits.compute_units
    options.log_severity_level = 3
    session = runtime.InferenceSession(onnx_bytes(network), options,
                                       providers=["CPUExecutionProvider"])
    name = network.graph.inputs[0].name

    def call() -> object:
        return session.run(None, {name: x if kind == ARRAYS else normalised(x)})

    return CalledContender("onnxruntime", host, lambda: call, lambda value: value[0],
                           "row" if x.ndim != 4 else "NCHW" if kind == ARRAYS else "NHWC",
                           f"CPU, {host.limits.compute_units} threads")


def check_torch(network: PeerNetwork) -> None:
    """Raise AbsentError if PyTorch cannot run a network on this machine."""
    if network.torch is None:
        raise AbsentError(f"{network.name} has no PyTorch module")
    if importlib.util.find_spec("torch") is None:
        raise AbsentError(f"torch is not installed: {installing('bench')}")


def _torch(name: str, network: PeerNetwork, x: np.ndarray, device: Device, precision: str,
           kind: str, threads: int) -> CalledContender:
    """Return a PyTorch peer; torch_calls is imported only here."""
    check_torch(network)
    from gossamer.bench.peers import torch_calls

    return torch_calls.called(name, network, x, device, precision, kind, threads)


CALLED_PEERS: dict[str, CalledPeer] = {
    **{name: partial(_torch, name) for name in (
        "torch-eager", "torch-compile", "torch-compile:reduce-overhead", "torch-compile-graph")},
    "onnxruntime": onnxruntime}


def onnx_bytes(network: PeerNetwork) -> bytes:
    """Return the content of the network's ONNX file."""
    return (to_onnx(network.graph).SerializeToString() if network.onnx is None
            else network.onnx())


def release() -> None:
    """Free the memory of contenders that are no longer referenced.

    Graphs and modules hold device memory in reference cycles, torch caches freed memory, and JAX
    caches compiled functions.
    """
    if "gossamer.bench.peers.torch_calls" in sys.modules:
        sys.modules["gossamer.bench.peers.torch_calls"].forget()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
