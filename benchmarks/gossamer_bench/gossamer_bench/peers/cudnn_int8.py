"""cuDNN with 8-bit integers, which hold signs exactly, as a peer of convolutions of signs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gossamer.bench.work import AbsentError
from gossamer.device.base import Buffer, Device
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.vendor.libraries import CUDNN, library_on, unavailable
from gossamer.tensor import Format, TensorSpec, logical_view, pack
from gossamer_bench.contender import Alternative, ReadyContender

_X, _WEIGHT, _BIAS, _Y = 1, 2, 3, 4
_MOST_PLANS = 6
"""The most plans of cuDNN that are timed."""


def cudnn_int8(contender: str, problem: Conv2dProblem, x: np.ndarray,
               arrays: Mapping[str, np.ndarray], device: Device) -> list[Alternative]:
    """Returns cuDNN's plans for a convolution of integers with bias and ReLU. Images are in NHWC,
    sums are int32, and results are saturated to 8 bits.

    arrays: `weight` (M, C, R, S) and `bias` (M,), integers. Raises AbsentError.
    """
    if (reason := unavailable(CUDNN, device)) is not None:
        raise AbsentError(reason)
    library = library_on(CUDNN, device)
    with library.handle() as handle:
        try:
            graph = _graph(library.api, handle, problem)
            graph.validate()
            graph.build_operation_graph()
            modes = library.api.heur_mode
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.check_support()
            count = min(_MOST_PLANS, graph.get_execution_plan_count())
        except library.failures as error:
            raise AbsentError(f"cuDNN has no engine: {str(error).strip().splitlines()[0]}"
                              ) from error
    return [Alternative(f"plan {index}", partial(_ready, contender, problem, x, arrays, device,
                                                 graph, index)) for index in range(count)]


def _ready(contender: str, problem: Conv2dProblem, x: np.ndarray, arrays: Mapping[str, np.ndarray],
           device: Device, graph: Any, index: int) -> ReadyContender:
    """Builds a plan and uploads its tensors."""
    library = library_on(CUDNN, device)
    with library.handle():
        graph.build_plan_at_index(index)
        nbytes = graph.get_workspace_size_plan_at_index(index)
        name = graph.get_plan_name_at_index(index)
    y = _spec(problem.outputs[0].shape)
    buffers = {
        _X: device.upload(pack(x.astype(np.int8), _spec(x.shape)), "a layer's input"),
        _WEIGHT: device.upload(pack(arrays["weight"].astype(np.int8),
                                    _spec(arrays["weight"].shape)), "a layer's weight"),
        _BIAS: device.upload(arrays["bias"].astype(np.float32), "a layer's bias"),
        _Y: device.empty(y.nbytes, "a layer's output")}
    workspace: Buffer | None = device.empty(nbytes, "a layer's workspace") if nbytes else None

    def work(stream: Any) -> None:
        device.keep(graph, buffers, workspace)
        with library.handle_on(stream) as handle:
            graph.execute_plan_at_index(
                {key: buffer.address for key, buffer in buffers.items()},
                0 if workspace is None else workspace.address, index, handle)

    def output(count: int) -> np.ndarray:
        first = y.first(count)
        stored = np.empty(first.stored_shape, np.int8)
        device.read(buffers[_Y], stored)
        return logical_view(stored, first).astype(np.float32)

    return ReadyContender(contender, device, work, output, "NHWC", name, "int8", captured=True)


def _graph(api: Any, handle: Any, problem: Conv2dProblem) -> Any:
    integers, real = api.data_type.INT8, api.data_type.FLOAT
    graph = api.pygraph(io_data_type=integers, intermediate_data_type=real,
                        compute_data_type=real, handle=handle,
                        cuda_graph_retention=api.cuda_graph_retention.NONE)

    def tensor(spec: TensorSpec, name: str, uid: int, dtype: Any) -> Any:
        return graph.tensor(dim=list(spec.shape), stride=list(spec.strides), data_type=dtype,
                            name=name, uid=uid)

    y = _spec(problem.outputs[0].shape)
    top, left, bottom, right = problem.pads
    sums = graph.conv_fprop(
        image=tensor(_spec(problem.inputs[0].shape), "x", _X, integers),
        weight=tensor(_spec(problem.weight_shapes["weight"]), "weight", _WEIGHT, integers),
        pre_padding=[top, left], post_padding=[bottom, right], stride=list(problem.stride),
        dilation=list(problem.dilation), compute_data_type=api.data_type.INT32)
    sums.set_data_type(api.data_type.INT32)
    biased = graph.add(sums, tensor(_spec((1, problem.out_channels, 1, 1)), "bias", _BIAS, real))
    result = graph.relu(biased)
    for value in (sums, biased, result):
        value.set_dim(list(y.shape)).set_stride(list(y.strides))
    result.set_output(True).set_data_type(integers).set_uid(_Y)
    return graph


def _spec(shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(shape, Format("NHWC", "int8"))
