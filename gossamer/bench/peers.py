"""Who does the same work: every contender, made ready to be timed."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.bench.onnx_form import to_onnx
from gossamer.device import find
from gossamer.device.base import Device
from gossamer.measure import Work
from gossamer.model.graph import Graph
from gossamer.plan.plan import Plan

OWN = "gossamer"


class AbsentError(Exception):
    """A contender that cannot take part here; the message says why, and what would help."""


@dataclass(frozen=True)
class Network:
    """One network as each contender takes it.

    torch: from the graph's constants to a torch.nn.Module, None where nobody wrote it down.
    torch_fused: likewise, by a call that computes all at once and that only CUDA has.
    is_layer: it is one layer, so short that a call from Python would count.
    """

    name: str
    graph: Graph
    torch: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    torch_fused: Callable[[Mapping[str, np.ndarray]], Any] | None = None
    is_layer: bool = False


@dataclass(frozen=True)
class Ready:
    """A contender with its input in place. work queues `runs` executions on the stream that
    `device` gives it; output is what an execution computed. captured: work may be recorded in a
    graph."""

    contender: str
    device: Device
    work: Work
    output: Callable[[], np.ndarray]
    layout: str
    config: str
    precision: str = "fp32"
    runs: int = 1
    captured: bool = False


@dataclass(frozen=True)
class Alternative:
    """One way to run a contender; the fastest of its alternatives stands for it."""

    label: str
    make: Callable[[], Ready]


Peer = Callable[[Network, np.ndarray, Device], list[Alternative]]
"""The alternatives for a network and an input on a device. Raises AbsentError."""


def own(plan: Plan, x: np.ndarray) -> Alternative:
    """gossamer itself: one context, whose graph is replayed where the device has graphs."""
    device, batch = plan.device, len(x)

    def make() -> Ready:
        context = plan.context(batch)
        program = plan.program(batch)
        source = context.buffer(program.inputs[plan.inputs[0].name])
        result = program.outputs[plan.outputs[0].name]
        device.write(source, x)

        def output() -> np.ndarray:
            # activations may lie where the input was
            device.write(source, x)
            context.execute()
            array = np.empty(program.specs[result].shape, program.specs[result].stored_dtype)
            device.read(context.buffer(result), array)
            return array

        layouts = Counter(step.variant.outputs[0].layout for step in program.steps
                          if len(step.variant.outputs[0].shape) == 4)
        algorithms = Counter(step.algorithm.name for step in program.steps)
        return Ready(OWN, device, context.execute, output,
                     "+".join(name for name, _ in layouts.most_common()) or "row",
                     ", ".join(f"{name} {count}" for name, count in algorithms.most_common()))

    return Alternative("plan", make)


def onnxruntime(network: Network, x: np.ndarray, device: Device) -> list[Alternative]:
    if device.api == "cuda":
        raise AbsentError("compared on the processor only: --device host")
    if importlib.util.find_spec("onnxruntime") is None:
        raise AbsentError("not installed: pip install onnxruntime")
    import onnxruntime as runtime

    host = find("host")

    def make() -> Ready:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = host.limits.units
        options.log_severity_level = 3
        # its threads must not go on spinning into the next contender's turn
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = runtime.InferenceSession(to_onnx(network.graph).SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input(network.graph.inputs[0].name, x)
        binding.bind_output(network.graph.outputs[0].name)

        def work(stream: Any) -> None:
            session.run_with_iobinding(binding)

        return Ready("onnxruntime", host, work, lambda: binding.copy_outputs_to_cpu()[0], "NCHW",
                     f"CPU, {host.limits.units} threads, default optimisation")

    return [Alternative("CPU", make)]


def release() -> None:
    """Gives back what dropped contenders held: graphs and modules hold device memory in cycles,
    and torch keeps what it freed."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def _torch(name: str) -> Peer:
    def peer(network: Network, x: np.ndarray, device: Device) -> list[Alternative]:
        if network.torch is None:
            raise AbsentError(f"{network.name} is not written down in PyTorch")
        if importlib.util.find_spec("torch") is None:
            raise AbsentError("torch is not installed: pip install torch")
        from gossamer.bench import torch_peers

        return torch_peers.alternatives(name, network, x, device)

    return peer


PEERS: dict[str, Peer] = {
    "torch-eager": _torch("torch-eager"),
    "torch-graph": _torch("torch-graph"),
    "torch-compile": _torch("torch-compile"),
    "torch-compile:max-autotune": _torch("torch-compile:max-autotune"),
    "onnxruntime": onnxruntime,
}
