"""CLBlast, a BLAS in OpenCL, for layers that are a product alone; Debian has it as libclblast1."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from gossamer.bench.contender import AbsentError, Alternative, PeerNetwork, ReadyContender
from gossamer.device.base import Device

_LIBRARY = "libclblast.so.1"
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112
"""Values of CLBlast's enumerations."""


def clblast(network: PeerNetwork, x: np.ndarray, device: Device,
            precisions: Sequence[str]) -> list[Alternative]:
    """Returns CLBlast's product on an OpenCL device, with the settings that CLBlast has for it.
    Raises AbsentError."""
    if not device.runs_opencl_libraries:
        raise AbsentError("runs through OpenCL: --device opencl:N")
    nodes = network.graph.nodes
    if [node.op for node in nodes] != ["gemm"] or len(nodes[0].inputs) > 2:
        raise AbsentError("compared by layers that are a product without bias and activation")
    if "fp32" not in precisions:
        raise AbsentError("compared in fp32 only")
    product = _product()
    weight = network.graph.constants[nodes[0].inputs[1]]
    if not nodes[0].attributes["trans_b"]:
        weight = weight.T
    (rows, depth), columns = x.shape, len(weight)

    def make() -> ReadyContender:
        buffers = [*(device.upload(np.ascontiguousarray(array, np.float32), "a matrix")
                     for array in (x, weight)),
                   device.empty(4 * rows * columns, "a product")]

        def work(stream: Any) -> None:
            queue = ctypes.c_void_p(device.opencl_queue(stream))
            a, b, c = (ctypes.c_void_p(device.opencl_memory(buffer)) for buffer in buffers)
            status = product(_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED, *map(
                ctypes.c_size_t, (rows, columns, depth)), ctypes.c_float(1), a,
                *map(ctypes.c_size_t, (0, depth)), b, *map(ctypes.c_size_t, (0, depth)),
                ctypes.c_float(0), c, *map(ctypes.c_size_t, (0, columns)),
                ctypes.byref(queue), None)
            if status:
                raise RuntimeError(f"CLBlast returned {status}")

        def output(count: int) -> np.ndarray:
            result = np.empty((rows, columns), np.float32)
            device.read(buffers[2], result)
            return result[:count]

        return ReadyContender("clblast", device, work, output, "row", _LIBRARY)

    return [Alternative("OpenCL", make)]


@cache
def _product() -> Any:
    """CLBlast's function for products of float32. Raises AbsentError where it is not installed."""
    try:
        return ctypes.CDLL(_LIBRARY).CLBlastSgemm
    except OSError:
        raise AbsentError("not installed: apt-get install libclblast1") from None
