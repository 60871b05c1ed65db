"""OpenVINO as a peer for whole networks on the processor."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.bench.peers.calls import onnx_bytes
from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer_bench.contender import Alternative, ReadyContender, check_whole_in_fp32


def openvino(network: PeerNetwork, x: np.ndarray, device: Device,
             precisions: Sequence[str]) -> list[Alternative]:
    """Returns OpenVINO on all cores of the processor, tuned for latency. Raises AbsentError."""
    check_whole_in_fp32(network, precisions)
    if importlib.util.find_spec("openvino") is None:
        raise AbsentError("not installed: pip install openvino")
    import openvino as library

    host = find("host")
    threads = host.limits.compute_units

    def make() -> ReadyContender:
        core = library.Core()
        model = core.read_model(onnx_bytes(network), b"")
        model.reshape(list(x.shape))
        compiled = core.compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
            # without it processors with bfloat16 compute in bfloat16
            "INFERENCE_PRECISION_HINT": "f32"})
        request = compiled.create_infer_request()
        request.set_input_tensor(library.Tensor(x, shared_memory=True))

        def work(stream: Any) -> None:
            request.infer()

        return ReadyContender("openvino", host, work,
                              lambda count: request.get_output_tensor(0).data[:count].copy(),
                              "NCHW" if x.ndim == 4 else "row",
                              f"CPU, {threads} threads, latency, "
                              f"OpenVINO {library.__version__.partition('-')[0]}")

    return [Alternative("CPU", make)]
