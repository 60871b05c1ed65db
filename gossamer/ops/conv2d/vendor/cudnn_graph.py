"""Convolutions as operation graphs of cuDNN, and the execution plans it offers for them."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from gossamer.device.base import Device
from gossamer.errors import first_line
from gossamer.expression import ExpressionStep
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.vendor.cudnn import CudnnLibrary, library_on
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import TensorSpec

MOST_PLANS = 8
"""Plans listed of one form; heuristics put the quick ones first."""

_SHARE = 32
"""Plans that need more workspace than this part of the device's memory are left out."""

X, WEIGHT, Y, OPERAND = 1, 2, 3, 4
"""Names of tensors in a graph; operand i is OPERAND + i."""

_INEXACT = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
# Winograd loses more digits the larger its tiles are; sums in no fixed order give other bits at
# each execution
_WANTED: dict[str, tuple[str, ...]] = {"fp32": (), "tf32": ("TENSOR_CORE",), "fp16": ()}
_UNWANTED = {
    "fp32": ("TENSOR_CORE", *_INEXACT, "WINOGRAD_TILE_13x13", "NONDETERMINISTIC"),
    "tf32": (*_INEXACT, "WINOGRAD_TILE_13x13", "NONDETERMINISTIC"),
    "fp16": ("REDUCED_PRECISION_REDUCTION", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13",
             "NONDETERMINISTIC"),
}
_PREREQUISITE = re.compile(r"RUNTIME_PREREQUISITE_MISSING; Reason: (.+)")
_WORKSPACE = re.compile(r"^Plan at index (\d+): .*workspace violation\. Requires (\d+)", re.M)


@dataclass(frozen=True)
class CudnnForm:
    """How a convolution is put to cuDNN. fused: with its epilogue."""

    precision: str
    layout: str
    fused: bool

    @property
    def dtype(self) -> str:
        return "float16" if self.precision == "fp16" else "float32"

    def spec(self, shape: tuple[int, ...]) -> TensorSpec:
        return TensorSpec(shape, self.dtype, self.layout)


@dataclass(frozen=True)
class ExecutionPlan:
    """One execution plan that cuDNN offers: its place in cuDNN's list, its engine with the
    settings ("eng12_k2=3"), and its workspace in bytes."""

    index: int
    engine: str
    workspace: int


@dataclass(frozen=True)
class CudnnOffer:
    """The plans for a form, quickest first by cuDNN's own estimate; where there are none, why."""

    plans: tuple[ExecutionPlan, ...]
    refusal: str = ""


@dataclass(frozen=True)
class Pointwise:
    """One element-wise node: a method of cuDNN's graphs, the values it takes (0: the result of
    the convolution, i + 1: operand i, then what earlier nodes give) and its constants."""

    method: str
    arguments: tuple[int, ...]
    constants: tuple[tuple[str, float], ...] = ()


def offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
    """The plans of cuDNN on a device for a form; the same ones at each call, and in each process
    with the same cuDNN. Builds no plan."""
    plain = replace(problem, weights_info=WeightsInfo())
    if not form.fused:
        plain = replace(plain, epilogue=Epilogue())
    return _offered(device, plain, form)


@functools.lru_cache(maxsize=4096)
def _offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
    library = library_on(device)
    with library.handle() as handle:
        try:
            graph = _planned(problem, form, library, handle)
        except library.failures as error:
            return CudnnOffer((), _no_engine(error))
        for note in _WANTED[form.precision]:
            graph.select_numeric_notes([getattr(library.api.numerical_note, note)])
        for note in _UNWANTED[form.precision]:
            graph.deselect_numeric_notes([getattr(library.api.numerical_note, note)])
        # The frontend tells a plan's workspace only once it is built, which can take a second;
        # but it says what each one would need when none may have any.
        graph.deselect_workspace_greater_than(-1)
        try:
            graph.check_support()
            told = "cuDNN does not tell what workspace its engines need"
        except library.failures as error:
            told = str(error) or type(error).__name__
        needs = workspaces(told)
        most = device.limits.memory_bytes // _SHARE
        usable = [(index, needs[entry.cpp_index]) for index, entry in enumerate(graph.plans)
                  if needs.get(entry.cpp_index, most + 1) <= most]
        plans = tuple(ExecutionPlan(index, graph.get_plan_name_at_index(index), need)
                      for index, need in usable[:MOST_PLANS])
    return CudnnOffer(plans, "" if plans else _refusal(told, len(needs)))


def workspaces(told: str) -> dict[int, int]:
    """The bytes that each plan would need, by cuDNN's index, from its message that none has them.
    A plan that is deselected or cannot run is not among them."""
    return {int(index): int(nbytes) for index, nbytes in _WORKSPACE.findall(told)}


def _no_engine(error: BaseException) -> str:
    """One line for why there are no plans for a graph at all."""
    told = str(error)
    if missing := _PREREQUISITE.search(told):
        return f"its engines lack what they need at run time ({missing[1]})"
    if "No valid engine configs" in told:
        return "it has no engine for such a graph"
    return first_line(error)


def _refusal(told: str, too_large: int) -> str:
    """One line for what cuDNN says of plans none of which is usable."""
    if too_large:
        return "its engines need too much workspace"
    reasons = [line.partition(": ")[2] for line in told.splitlines()
               if line.startswith("Plan at index")]
    others = [reason for reason in reasons if reason != "Deselecting execution plan"]
    if reasons and not others:
        return "its engines are of other precisions"
    return others[0] if others else told.strip().splitlines()[0]


def built(device: Device, problem: Conv2dProblem, form: CudnnForm, plan: ExecutionPlan) -> Any:
    """A graph with a plan that was offered for it built and selected. What the frontend and the
    library raise passes through."""
    library = library_on(device)
    with library.handle() as handle:
        graph = _planned(problem, form, library, handle)
        name = graph.get_plan_name_at_index(plan.index)
        if name != plan.engine:
            raise RuntimeError(f"cuDNN offers {name} where it offered {plan.engine}")
        graph.build_plan_at_index(plan.index)
        needed = graph.get_workspace_size()
    if needed > plan.workspace:
        raise RuntimeError(f"{plan.engine} needs {needed} bytes of workspace, cuDNN had said "
                           f"{plan.workspace}")
    return graph


def _planned(problem: Conv2dProblem, form: CudnnForm, library: CudnnLibrary, handle: Any) -> Any:
    """The graph with all plans that cuDNN has for it, none of them built."""
    graph = _graph(problem, form, library.api, handle)
    graph.validate()
    graph.build_operation_graph()
    modes = library.api.heur_mode
    graph.create_execution_plans([modes.A, modes.FALLBACK])
    if form.precision == "fp32":
        # The heuristics know of no wish to do without tensor cores: those of 9.27 list hardly
        # anything else. What they left out follows, with its settings as they come.
        listed = {entry.engine_id for entry in graph.plans}
        for engine in range(graph.get_engine_count()):
            if engine not in listed:
                with contextlib.suppress(*library.failures):
                    graph.create_execution_plan(engine, {})
    return graph


def _graph(problem: Conv2dProblem, form: CudnnForm, api: Any, handle: Any) -> Any:
    real = api.data_type.FLOAT
    stored = api.data_type.HALF if form.dtype == "float16" else real
    # whoever records an execution keeps the plan alive for as long as the record
    graph = api.pygraph(io_data_type=stored, intermediate_data_type=real, compute_data_type=real,
                        handle=handle, cuda_graph_retention=api.cuda_graph_retention.NONE)

    def tensor(spec: TensorSpec, name: str, uid: int, dtype: Any) -> Any:
        return graph.tensor(dim=list(spec.shape), stride=list(spec.strides), data_type=dtype,
                            name=name, uid=uid)

    x, y = form.spec(problem.inputs[0].shape), form.spec(problem.outputs[0].shape)
    top, left, bottom, right = problem.pads
    result = graph.conv_fprop(
        image=tensor(x, "x", X, stored),
        weight=tensor(form.spec(problem.weight_shapes["weight"]), "weight", WEIGHT, stored),
        pre_padding=[top, left], post_padding=[bottom, right], stride=list(problem.stride),
        dilation=list(problem.dilation), compute_data_type=real)
    values = [result]
    nodes = pointwise(problem.epilogue) if form.fused else ()
    assert nodes is not None
    if nodes:
        halves = channel_dtype(problem.epilogue, form) == "float16"
        for index, kind in enumerate(problem.epilogue.operands):
            spec = y if kind == "tensor" else form.spec((1, problem.out_channels, 1, 1))
            values.append(tensor(spec, f"operand{index}", OPERAND + index,
                                 stored if kind == "tensor" or halves else real))
    results = [result]
    for node in nodes:
        value = getattr(graph, node.method)(*[values[each] for each in node.arguments],
                                            **dict(node.constants))
        values.append(value)
        results.append(value)
    for value in results:
        # left alone, the frontend takes the result of a convolution for channels-last
        value.set_dim(list(y.shape)).set_stride(list(y.strides))
    results[-1].set_output(True).set_data_type(stored).set_uid(Y)
    return graph


def channel_dtype(epilogue: Epilogue, form: CudnnForm) -> str:
    """Of the channel operands of a fused epilogue."""
    nodes = pointwise(epilogue) or ()
    # cuDNN's own fused kernels, which add and rectify, take a float16 bias only; what generates
    # code for other epilogues offers more with a float32 one
    plain = all(node.method in ("add", "relu") and not node.constants for node in nodes)
    return form.dtype if plain else "float32"


def pointwise(epilogue: Epilogue) -> tuple[Pointwise, ...] | None:
    """An epilogue as nodes of a cuDNN graph, the last of which gives the output; None where it
    has steps that cuDNN has no node for, or is no chain or tree that ends in its last step."""
    expression = epilogue.expression
    last = expression.inputs + len(expression.steps) - 1
    used = [argument for step in expression.steps for argument in step.arguments]
    if expression.outputs != (last,) or set(used) != set(range(last)):
        return None
    channels = {index + 1 for index, kind in enumerate(epilogue.operands) if kind == "channel"}
    nodes = [_node(step, channels) for step in _tensors_first(epilogue, used)]
    return None if None in nodes else tuple(node for node in nodes if node is not None)


def _tensors_first(epilogue: Epilogue, used: list[int]) -> tuple[ExpressionStep, ...]:
    """The steps, with those among the leading sums first that add tensors: cuDNN's own fused
    kernel adds a residual, then the bias, then applies the activation."""
    expression = epilogue.expression
    current, added = 0, []
    for step in expression.steps:
        operand = next((each for each in step.arguments if each != current), 0)
        if (step.function != "add" or current not in step.arguments or used.count(current) > 1
                or not 0 < operand < expression.inputs):
            break
        added.append(operand)
        current = expression.inputs + len(added) - 1
    added.sort(key=lambda operand: epilogue.operands[operand - 1] == "channel")
    sums, current = [], 0
    for index, operand in enumerate(added):
        sums.append(ExpressionStep("add", (current, operand)))
        current = expression.inputs + index
    return (*sums, *expression.steps[len(added):])


def _node(step: ExpressionStep, channels: set[int]) -> Pointwise | None:
    """One step as a node; None where cuDNN has none."""
    arguments = step.arguments
    if step.function in ("add", "mul"):
        # the value that the other is broadcast to comes first
        first, second = sorted(arguments, key=lambda each: each in channels)
        return None if first in channels else Pointwise(step.function, (first, second))
    if not arguments or arguments[0] in channels:
        return None
    if step.function in ("relu", "sigmoid", "tanh"):
        return Pointwise(step.function, arguments)
    if step.function == "leaky_relu":
        return Pointwise("leaky_relu", arguments, (("negative_slope", step.constants[0]),))
    if step.function == "clip" and step.constants[0] == 0 and step.constants[1] > 0:
        high = step.constants[1]
        return Pointwise("relu", arguments, () if math.isinf(high) else (("upper_clip", high),))
    return None
