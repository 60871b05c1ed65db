"""Who does the same work: every contender, made ready to be timed."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.measure import Work
from gossamer.model.graph import Graph
from gossamer.model.onnx_writer import to_onnx
from gossamer.ops.registry import OPS

OWN = "gossamer"


class AbsentError(Exception):
    """A contender that cannot take part here; the message says why, and what would help."""


@dataclass(frozen=True)
class PeerNetwork:
    """One network as each contender takes it.

    torch: from the graph's constants to a torch.nn.Module, None where nobody wrote it down.
    torch_fused: likewise, by a call that computes all at once and that only CUDA has.
    onnx: its file's content; None where to_onnx makes it.
    is_layer: it is one layer, so short that a call from Python would count.
    """

    name: str
    graph: Graph
    torch: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    torch_fused: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    onnx: Callable[[], bytes] | None = None
    is_layer: bool = False


@dataclass(frozen=True)
class ReadyContender:
    """A contender with its input in place. work queues `runs` executions on the stream that
    `device` gives it; output(count) is what an execution computed for the first `count` images or
    rows. captured: work may be recorded in a graph."""

    contender: str
    device: Device
    work: Work
    output: Callable[[int], np.ndarray]
    layout: str
    config: str
    precision: str = "fp32"
    runs: int = 1
    captured: bool = False


@dataclass(frozen=True)
class Alternative:
    """One way to run a contender; of each precision the fastest stands for it. make may raise
    AbsentError."""

    label: str
    make: Callable[[], ReadyContender]


Peer = Callable[[PeerNetwork, np.ndarray, Device, Sequence[str]], list[Alternative]]
"""The alternatives for a network and an input on a device in these precisions. Raises
AbsentError."""


def onnxruntime(network: PeerNetwork, x: np.ndarray, device: Device,
                precisions: Sequence[str]) -> list[Alternative]:
    if device.api == "cuda" and network.is_layer:
        raise AbsentError("one layer is compared on the processor only: --device host")
    if "fp32" not in precisions:
        raise AbsentError("compared in fp32 only")
    if importlib.util.find_spec("onnxruntime") is None:
        raise AbsentError("not installed: pip install onnxruntime")
    import onnxruntime as runtime

    host = find("host")

    def make() -> ReadyContender:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = host.limits.compute_units
        options.log_severity_level = 3
        # its threads must not go on spinning into the next contender's turn
        options.add_session_config_entry("session.force_spinning_stop", "1")
        model = (to_onnx(network.graph).SerializeToString() if network.onnx is None
                 else network.onnx())
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input(network.graph.inputs[0].name, x)
        binding.bind_output(network.graph.outputs[0].name)

        def work(stream: Any) -> None:
            session.run_with_iobinding(binding)

        return ReadyContender("onnxruntime", host, work,
                     lambda count: binding.copy_outputs_to_cpu()[0][:count],
                     "NCHW" if x.ndim == 4 else "row",
                     f"CPU, {host.limits.compute_units} threads, default optimisation")

    return [Alternative("CPU", make)]


def release() -> None:
    """Gives back what dropped contenders held: graphs and modules hold device memory in cycles,
    and torch keeps what it freed."""
    if "gossamer.bench.peers.torch_peers" in sys.modules:
        sys.modules["gossamer.bench.peers.torch_peers"].forget()
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def _torch(name: str) -> Peer:
    def peer(network: PeerNetwork, x: np.ndarray, device: Device,
             precisions: Sequence[str]) -> list[Alternative]:
        if network.torch is None:
            raise AbsentError(f"{network.name} is not written down in PyTorch")
        if importlib.util.find_spec("torch") is None:
            raise AbsentError("torch is not installed: pip install torch")
        from gossamer.bench.peers import torch_peers

        return torch_peers.alternatives(name, network, x, device, precisions)

    return peer


PEERS: dict[str, Peer] = {
    "torch-eager": _torch("torch-eager"),
    "torch-graph": _torch("torch-graph"),
    "torch-compile": _torch("torch-compile"),
    "torch-compile:max-autotune": _torch("torch-compile:max-autotune"),
    "onnxruntime": onnxruntime,
}


def vendors() -> list[str]:
    """The algorithms that run a vendor's library."""
    return list(dict.fromkeys(algorithm.name for op in OPS.values()
                              for algorithm in op.algorithms if algorithm.vendor))


def defaults(api: str, layers: bool) -> list[str]:
    """The peers and vendors' algorithms that are compared on a kind of device where none are
    named. max-autotune searches for many minutes. Of single layers torch.compile is left out: it
    takes seconds to compile each, to call what torch-graph calls."""
    if api != "cuda":
        return ["torch-eager", "onnxruntime"]
    slow = ("torch-compile:max-autotune", *(["torch-compile"] if layers else []))
    return [*(name for name in PEERS if name not in slow), *vendors()]
