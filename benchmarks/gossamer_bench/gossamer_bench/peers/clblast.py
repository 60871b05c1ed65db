"""CLBlast, a BLAS in OpenCL, as a peer for layers that are only a matrix product. Debian's package
of CLBlast is libclblast1."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from gossamer.bench.work import AbsentError, PeerNetwork
from gossamer.device.base import Device
from gossamer.errors import first_line
from gossamer_bench.contender import Alternative, ReadyContender

if TYPE_CHECKING:
    from gossamer.device.opencl import OpenCLDevice

_LIBRARY = "libclblast.so.1"
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED, _SINGLE = 101, 111, 112, 32
"""Values of CLBlast's enumerations."""
_TUNED = "clblast_xgemm_*_32.json"
"""Pattern of the files that clblast_tuner_xgemm, CLBlast's tuner of its main kernel for products,
writes to the directory in which it runs."""
_AGAIN = "remove the file, or run clblast_tuner_xgemm again"


def clblast(network: PeerNetwork, x: np.ndarray, device: Device,
            precisions: Sequence[str]) -> list[Alternative]:
    """Returns CLBlast's product on an OpenCL device. Where the current directory has results of
    CLBlast's tuner for this device, the product uses the tuner's settings, else CLBlast's default
    settings. Raises AbsentError where CLBlast cannot be measured."""
    if not runs_opencl(device):
        raise AbsentError("runs through OpenCL: --device opencl:N")
    nodes = network.graph.nodes
    if [node.op for node in nodes] != ["gemm"] or len(nodes[0].inputs) > 2:
        raise AbsentError("compared by layers that are a product without bias and activation")
    if "fp32" not in precisions:
        raise AbsentError("compared in fp32 only")
    product = _library().CLBlastSgemm
    tuned = _tuned(device, Path.cwd())
    weight = network.graph.constants[nodes[0].inputs[1]]
    if not nodes[0].attributes["trans_b"]:
        weight = weight.T
    (rows, depth), columns = x.shape, len(weight)

    def make() -> ReadyContender:
        buffers = [*(device.upload(np.ascontiguousarray(array, np.float32), "a matrix")
                     for array in (x, weight)),
                   device.empty(4 * rows * columns, "a product")]

        def work(stream: Any) -> None:
            queue = ctypes.c_void_p(device.queue(stream).int_ptr)
            a, b, c = (ctypes.c_void_p(buffer.handle.int_ptr) for buffer in buffers)
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

        return ReadyContender("clblast", device, work, output, "row",
                              f"{_LIBRARY}, {tuned or 'not tuned here'}")

    return [Alternative("OpenCL", make)]


def runs_opencl(device: Device) -> TypeGuard[OpenCLDevice]:
    """Returns whether a device is an OpenCL device, on whose memory CLBlast can work."""
    try:
        from gossamer.device.opencl import OpenCLDevice
    except ImportError:
        # without PyOpenCL there is no OpenCL device
        return False
    return isinstance(device, OpenCLDevice)


@cache
def _library() -> ctypes.CDLL:
    """Loads CLBlast. Raises AbsentError where it is not installed."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        raise AbsentError("not installed: apt-get install libclblast1") from None


@cache
def _tuned(device: OpenCLDevice, folder: Path) -> str:
    """Passes to CLBlast the fastest settings that its tuner found for the device. Returns these
    settings as text; "" where the folder has no results of the tuner for the device.

    Raises AbsentError for a file that is no result of the tuner, and where CLBlast rejects the
    settings.
    """
    handle = device.queue(None).device
    results = [result for path in sorted(folder.glob(_TUNED))
               if (result := _result(path)).device == handle.name.strip()]
    if not results:
        return ""
    best = min(results, key=lambda result: result.time)
    settings = best.settings
    names = (ctypes.c_char_p * len(settings))(*(name.encode() for name in settings))
    values = (ctypes.c_size_t * len(settings))(*settings.values())
    status = _library().CLBlastOverrideParameters(
        ctypes.c_void_p(handle.int_ptr), best.kernel.encode(), _SINGLE,
        ctypes.c_size_t(len(settings)), names, values)
    if status:
        raise AbsentError(f"CLBlast returned {status} for the settings of its tuner in "
                          f"{best.path}: {_AGAIN}")
    return "tuned: " + " ".join(f"{name}={value}" for name, value in settings.items())


@dataclass(frozen=True)
class _Result:
    """The fastest settings of a kernel and their time, which the tuner found for a device."""

    path: Path
    device: str
    kernel: str
    time: float
    settings: dict[str, int]


def _result(path: Path) -> _Result:
    """Reads a result of the tuner. Raises AbsentError for a file that is no result of the tuner."""
    try:
        found = json.loads(path.read_text())
        pairs = (setting.split("=") for setting in found["best_parameters"].split())
        settings = {name: int(value) for name, value in pairs if name != "PRECISION"}
        return _Result(path, found["device"].strip(), found["best_kernel"],
                       float(found["best_time"]), settings)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AbsentError(f"{path} is no result of CLBlast's tuner ({first_line(error)}): "
                          f"{_AGAIN}") from None
