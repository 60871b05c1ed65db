"""The peers of inference: ONNX Runtime, OpenVINO, OpenCV, PyTorch in its modes, JAX, CLBlast, C,
and the libraries of vendors."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.bench.peers.calls import check_torch, onnx_bytes
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.affinity import allowed, bound
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.registry import OPS
from gossamer_bench.contender import (
    SEMI_STRUCTURED,
    Alternative,
    Peer,
    ReadyContender,
    check_cuda_or_processor,
    check_whole_in_fp32,
)
from gossamer_bench.peers.clblast import clblast, runs_opencl
from gossamer_bench.peers.openvino_networks import openvino


def onnxruntime(network: PeerNetwork, x: np.ndarray, device: Device,
                precisions: Sequence[str]) -> list[Alternative]:
    """Returns ONNX Runtime on all cores of the processor. Raises AbsentError."""
    if device.runs_cuda_libraries and network.is_layer:
        raise AbsentError("one layer is compared on the processor only: --device host")
    if "fp32" not in precisions:
        raise AbsentError("compared in fp32 only")
    if importlib.util.find_spec("onnxruntime") is None:
        raise AbsentError("not installed: pip install onnxruntime")
    import onnxruntime as runtime

    host = find("host")
    threads = host.limits.compute_units
    processors = allowed()[:threads]

    def make() -> ReadyContender:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if len(processors) > 1:
            # ONNX Runtime binds its threads in this way by default, but not where the number of
            # threads is given; it counts processors from 1
            options.add_session_config_entry(
                "session.intra_op_thread_affinities",
                ";".join(str(processor + 1) for processor in processors[1:]))
        session = runtime.InferenceSession(onnx_bytes(network), options,
                                           providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input(network.graph.inputs[0].name, x)
        for output in network.graph.outputs:
            binding.bind_output(output.name)

        def work(stream: Any) -> None:
            session.run_with_iobinding(binding)

        return ReadyContender("onnxruntime", host, work,
                              lambda count: binding.copy_outputs_to_cpu()[0][:count],
                              "NCHW" if x.ndim == 4 else "row",
                              f"CPU, {threads} threads, default optimisation",
                              around=lambda: bound(processors[:1]))

    return [Alternative("CPU", make)]


def opencv(network: PeerNetwork, x: np.ndarray, device: Device,
           precisions: Sequence[str]) -> list[Alternative]:
    """Returns OpenCV's dnn on all cores of the processor, for whole networks. Raises AbsentError.
    """
    check_whole_in_fp32(network, precisions)
    if importlib.util.find_spec("cv2") is None:
        raise AbsentError("not installed: pip install 'opencv-python-headless<5'")
    import cv2

    host = find("host")
    names = [info.name for info in network.graph.outputs]

    def make() -> ReadyContender:
        cv2.setNumThreads(host.limits.compute_units)
        reader = cv2.dnn.readNetFromONNX(np.frombuffer(onnx_bytes(network), np.uint8))
        reader.setInput(x)
        results: list[np.ndarray] = []

        def work(stream: Any) -> None:
            results[:] = reader.forward(names)

        return ReadyContender("opencv-dnn", host, work, lambda count: results[0][:count],
                              "NCHW" if x.ndim == 4 else "row",
                              f"CPU, {host.limits.compute_units} threads, OpenCV {cv2.__version__}")

    return [Alternative("CPU", make)]


def jax_jit(network: PeerNetwork, x: np.ndarray, device: Device,
            precisions: Sequence[str]) -> list[Alternative]:
    """Returns JAX, which compiles whole networks, on CUDA devices and on the processor. Raises
    AbsentError."""
    if network.is_layer:
        raise AbsentError("whole networks are compared only")
    check_cuda_or_processor(device)
    if importlib.util.find_spec("jax") is None:
        raise AbsentError("jax is not installed: pip install jax, or 'jax[cuda13]' for GPUs")
    from gossamer_bench.peers import jax_networks

    return jax_networks.alternatives("jax-jit", network, x, device, precisions)


def _torch(name: str) -> Peer:
    """Returns the peer of this name. Its module torch_peers is imported when the peer is first
    used."""
    def peer(network: PeerNetwork, x: np.ndarray, device: Device,
             precisions: Sequence[str]) -> list[Alternative]:
        check_torch(network)
        from gossamer_bench.peers import torch_peers

        return torch_peers.alternatives(name, network, x, device, precisions)

    return peer


def _tables(network: PeerNetwork, x: np.ndarray, device: Device,
            precisions: Sequence[str]) -> list[Alternative]:
    """Returns the peer in C for pruned networks, whose module is imported when it is first used."""
    from gossamer_bench.peers.tables_c import tables

    return tables(network, x, device, precisions)


PEERS: dict[str, Peer] = {
    "torch-eager": _torch("torch-eager"),
    "torch-graph": _torch("torch-graph"),
    "torch-compile": _torch("torch-compile"),
    "torch-compile-graph": _torch("torch-compile-graph"),
    SEMI_STRUCTURED: _torch(SEMI_STRUCTURED),
    "torch-compile:max-autotune": _torch("torch-compile:max-autotune"),
    "jax-jit": jax_jit,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "opencv-dnn": opencv,
    "clblast": clblast,
    "c-tables": _tables,
}


def vendors() -> list[str]:
    """Returns the names of the algorithms that run a vendor's library."""
    return list(dict.fromkeys(algorithm.name for op in OPS.values()
                              for algorithm in op.algorithms if algorithm.vendor))


def defaults(device: Device, layers: bool) -> list[str]:
    """Returns the peers and vendors' algorithms that take part on a device where the user names no
    contenders.

    max-autotune is left out because it searches for many minutes, and c-tables and semi-structured
    weights because few networks suit them. torch.compile is left out for single layers: it takes
    seconds to compile each layer, and then makes the same calls as torch-graph. OpenCV's dnn,
    OpenVINO and JAX take part for whole networks only; JAX does not take part on an OpenCL device,
    nor OpenVINO beside a GPU. CLBlast takes part for layers on an OpenCL device only.

    layers: whether the contenders compute single layers, else whole networks.
    """
    if not device.runs_cuda_libraries:
        on_opencl = ["clblast"] if runs_opencl(device) and layers else []
        on_host = ["jax-jit"] if not (device.compiles or layers) else []
        return ["torch-eager", *on_host, "onnxruntime",
                *([] if layers else ["openvino", "opencv-dnn"]), *on_opencl]
    whole_only = ["torch-compile", "torch-compile-graph", "jax-jit", "opencv-dnn"] if layers else []
    left_out = ("torch-compile:max-autotune", SEMI_STRUCTURED, "openvino", "clblast", "c-tables",
                *whole_only)
    return [*(name for name in PEERS if name not in left_out), *vendors()]
