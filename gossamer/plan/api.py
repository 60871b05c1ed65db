"""From a network to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import with_shapes
from gossamer.ops.algorithm import PRECISIONS
from gossamer.ops.registry import OPS
from gossamer.plan.choose.calibration import Calibration
from gossamer.plan.plan import Plan
from gossamer.plan.tune.tuner import EFFORTS, Tuner


def compile(model: Graph | str, device: str | Device | None = None, *,
            shapes: Mapping[str, Sequence[int]] | None = None, strict: bool = False,
            effort: str | None = None, precision: str = "fp32", calibration: Any = None,
            tolerance: float | None = None, only: str | None = None,
            sparse_threshold: float | None = None) -> Plan:
    """A plan for a network: a graph from `gossamer.load`, or what `load` takes.

    device: "cuda:0", "opencl:1", "host"; None takes CUDA, else an OpenCL GPU, else the host.
    shapes: of inputs whose file leaves dimensions other than the batch open, without the batch.
    strict: a layer that the device cannot run is an error instead of running on the host.
    effort: "quick", "normal" or "max": every batch size's layers are measured when it is first
    used (once: times are kept on disk), and the fastest plan is taken. None: a fixed order.
    precision: "fp32", or "tf32" or "fp16" where layers may be computed in that as well, if it is
    measured to be faster; inputs and outputs of the network stay what they are.
    calibration: inputs like those of `plan(x)`, an array or a tuple of arrays of any number of
    images: report() has the largest normalised error of the outputs on them against float64.
    Where a node mixes the images of a batch, plans are made for as many as these alone.
    tolerance: the most that error may be: where it is more, layers are kept in float32.
    only: the name of an algorithm that is taken wherever it can be, as published forms are
    compared; others elsewhere.
    sparse_threshold: a sparsity between 0 and 1, such as 0.6: the published rule instead of
    comparison. Layers with more zeros than that take an algorithm that skips zeros, the
    others a dense one; with an effort the fastest of those, else the first in a fixed order.
    Raises ModelError or UnsupportedError for the model, DeviceError for the device, InputError
    for the other arguments.
    """
    from gossamer.model.readers.registry import load

    graph = model if isinstance(model, Graph) else load(model)
    graph = with_shapes(graph, shapes or {})
    if effort is not None and effort not in EFFORTS:
        raise InputError(f"effort {effort!r}: expected one of {', '.join(EFFORTS)}")
    if precision not in PRECISIONS:
        raise InputError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if precision != "fp32" and effort is None:
        raise InputError(f"precision {precision!r} goes with an effort, such as "
                         "effort='normal': what is less precise is taken where it measures faster")
    names = {algorithm.name for op in OPS.values() for algorithm in op.algorithms}
    if only is not None and only not in names:
        raise InputError(f"only={only!r}: expected one of {', '.join(sorted(names))}")
    if sparse_threshold is not None:
        if not 0 < sparse_threshold < 1:
            raise InputError(f"sparse_threshold {sparse_threshold:g}: expected a sparsity between "
                             "0 and 1, such as 0.6")
        if only is not None:
            raise InputError("only and sparse_threshold: both say what is taken; give one of them")
    if tolerance is not None and calibration is None:
        raise InputError("tolerance: the error is measured on calibration inputs; give calibration")
    checked = None if calibration is None else Calibration(
        graph, calibration if isinstance(calibration, (tuple, list)) else [calibration], tolerance)
    opened_device = device if isinstance(device, Device) else find(device)
    return Plan(graph, opened_device, strict=strict, only=only, sparse_threshold=sparse_threshold,
                calibration=checked,
                tuner=Tuner(opened_device, effort, precision=precision) if effort else None)
