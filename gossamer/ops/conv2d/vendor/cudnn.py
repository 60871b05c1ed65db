"""cudnn: convolution by NVIDIA's cuDNN.

Configs are the execution plans that cuDNN's heuristics offer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.errors import DeviceError, first_line
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.cudnn_graph import (
    MOST_PLANS,
    OPERAND,
    WEIGHT,
    CudnnForm,
    CudnnOffer,
    ExecutionPlan,
    X,
    Y,
    built,
    channel_dtype,
    offered,
    pointwise,
    store,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.strided import too_large
from gossamer.ops.vendor.cublas import bias_vector
from gossamer.ops.vendor.libraries import CUDNN, library_on, loaded_version, unavailable
from gossamer.ops.weights import Weights
from gossamer.tensor import pack

_LAYOUTS = ("NHWC", "NCHW")
_FUSED, _SEPARATE, _NONE = "fused", "separate", "none"
_SOONEST_FIRST = tuple(reversed(PRECISIONS))
"""Precisions in ascending order of the time that cuDNN needs to offer plans."""


@dataclass
class _BuiltConvolution:
    """A graph with a built plan.

    graph: cuDNN's graph.
    engine: name of the plan's engine.
    constants: buffers of the weights and channel operands, by the UID of the tensor in the graph.
    inputs: indices of the launch's inputs, by the UID of the tensor in the graph.
    """

    graph: Any = field(repr=False)
    engine: str
    constants: dict[int, Buffer]
    inputs: dict[int, int]


class Cudnn(Algorithm):
    """Convolution by one of cuDNN's execution plans.

    The epilogue is fused into the plan's graph or applied by another kernel after the plan. A
    config has two entries: the rank of a plan in cuDNN's list for one precision and layout, and the
    way to apply the epilogue.
    """

    op = "conv2d"
    name = "cudnn"
    rounds_sums = True
    vendor = CUDNN

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := _reason_not_asked(problem, device)) is not None:
            return reason
        refusals = []
        for epilogue in _epilogues(problem):
            for precision in _SOONEST_FIRST:
                for offer in _offers(problem, device, epilogue, precision).values():
                    if offer.plans:
                        return None
                    refusals.append(offer.refusal)
        return f"cuDNN offers no engine for {problem.describe()}: {refusals[0]}"

    def version(self, device: Device) -> str:
        return loaded_version(CUDNN, device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        return self.variants_in(problem, device, PRECISIONS)

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        epilogues = _epilogues(problem)
        # cuDNN may have plans in strict float32 for only one of the ways to apply the epilogue; if
        # so, this way comes first
        if "fp32" in precisions:
            epilogues.sort(key=lambda epilogue: not any(
                offer.plans for offer in _offers(problem, device, epilogue, "fp32").values()))
        # First come the plans of rank 0, with each way to apply the epilogue. Then come all other
        # plans with the first way, and last all other plans with the second way: a fused epilogue
        # is nearly always faster.
        ranks = [(0, epilogue) for epilogue in epilogues]
        ranks += [(rank, epilogue) for epilogue in epilogues for rank in range(1, MOST_PLANS)]
        for rank, epilogue in ranks:
            for precision in precisions:
                offers = _offers(problem, device, epilogue, precision)
                for form, offer in offers.items():
                    if rank < len(offer.plans):
                        yield _variant(problem, form, rank, epilogue, offer)

    def work_ahead(self, problem: Conv2dProblem, variant: Variant,
                   device: Device) -> Callable[[Device], object]:
        form, plan = _plan(problem, variant, device)
        return functools.partial(store, problem=problem, form=form, plan=plan)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        form, plan = _plan(problem, variant, device)
        try:
            graph = built(device, problem, form, plan)
        except library_on(CUDNN, device).failures as error:
            raise DeviceError(f"{device.name} cannot build cuDNN's {plan.engine}: "
                              f"{first_line(error)}") from error
        spec = form.spec(problem.weight_shapes["weight"])
        weight = weights.packed(f"cudnn weight {spec.layout} {spec.dtype}",
                                lambda arrays: pack(arrays["weight"], spec))
        convolution = _BuiltConvolution(graph, plan.engine, {WEIGHT: weight}, {X: 0})
        if not form.fused:
            launches = epilogue_pass_launches(problem.epilogue, weights, device,
                                              variant.outputs[0], 1)
            return State(problem, variant, device, launches, convolution)
        dtype = channel_dtype(problem.epilogue, form)
        for index, kind in enumerate(problem.epilogue.operands):
            if kind == "tensor":
                convolution.inputs[OPERAND + index] = len(convolution.inputs)
            else:
                convolution.constants[OPERAND + index] = bias_vector(
                    weights, f"operand{index}", problem.out_channels, dtype)
        return State(problem, variant, device, data=convolution)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        convolution: _BuiltConvolution = state.data
        device = state.device
        buffers = {**convolution.constants, Y: outputs[0],
                   **{name: inputs[index] for name, index in convolution.inputs.items()}}
        device.keep(convolution, buffers, workspace)
        library = library_on(CUDNN, device)
        with library.handle_on(stream) as handle:
            try:
                convolution.graph.execute(
                    {name: buffer.address for name, buffer in buffers.items()},
                    None if workspace is None else workspace.address, handle)
            except library.failures as error:
                raise DeviceError(f"{device.name} failed to run cuDNN's {convolution.engine}: "
                                  f"{first_line(error)}") from error
        super().launch(state, inputs, outputs, workspace, stream)


def _reason_not_asked(problem: Conv2dProblem, device: Device) -> str | None:
    """Return why cuDNN is not asked for a problem; None if it is asked."""
    if (reason := unavailable(CUDNN, device) or too_large(problem)) is not None:
        return reason
    if min(spec.size for spec in (*problem.inputs, *problem.outputs)) == 0:
        return "a tensor is empty"
    return None


def _plan(problem: Conv2dProblem, variant: Variant,
          device: Device) -> tuple[CudnnForm, ExecutionPlan]:
    """Return the options of a variant's graph, and its execution plan."""
    form = CudnnForm(variant.precision, variant.outputs[0].layout,
                     variant["epilogue"] != _SEPARATE, problem.sums_integers)
    return form, offered(device, problem, form).plans[variant["rank"]]


def _epilogues(problem: Conv2dProblem) -> list[str]:
    """Return the ways to apply the problem's epilogue, the fastest first."""
    nodes = pointwise(problem.epilogue)
    if nodes is None:
        return [_SEPARATE]
    return [_FUSED, _SEPARATE] if nodes else [_NONE]


def _offers(problem: Conv2dProblem, device: Device, epilogue: str,
            precision: str) -> dict[CudnnForm, CudnnOffer]:
    """Return what cuDNN offers for the problem in each layout."""
    forms = [CudnnForm(precision, layout, epilogue != _SEPARATE, problem.sums_integers)
             for layout in _LAYOUTS]
    return {form: offered(device, problem, form) for form in forms}


def _variant(problem: Conv2dProblem, form: CudnnForm, rank: int, epilogue: str,
             offer: CudnnOffer) -> Variant:
    x, y = form.spec(problem.inputs[0].shape), form.spec(problem.outputs[0].shape)
    return Variant((("rank", rank), ("epilogue", epilogue)),
                   (x, *[y] * problem.epilogue.tensor_count), (y,), form.precision,
                   offer.plans[rank].workspace, builds_long=epilogue == _FUSED)
