"""Convolutions and their epilogues as cuDNN graphs, and the execution plans of these graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.device.source import source_hash
from gossamer.errors import first_line
from gossamer.expression import ExpressionStep
from gossamer.facts import REAL
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.canonical import canonical
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.vendor.libraries import (
    CUDNN,
    CudnnLibrary,
    library_on,
    needed_libraries,
)
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import Format, TensorSpec

MOST_PLANS = 8
"""Maximum number of plans of a graph. cuDNN's heuristics list plans in the order of their expected
times, the fastest first."""
_MEMORY_SHARE = 32
"""Plans that need more workspace than the device's memory divided by this number are excluded."""
X, WEIGHT, Y, OPERAND = 1, 2, 3, 4
"""UIDs that identify tensors in a graph; operand i has the UID OPERAND + i."""
_INEXACT = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
_REQUIRED_NOTES: dict[str, tuple[str, ...]] = {"fp32": (), "tf32": ("TENSOR_CORE",), "fp16": ()}
# larger tiles make Winograd's results less accurate; sums without a fixed order differ between
# executions
_EXCLUDED_NOTES = {
    "fp32": ("TENSOR_CORE", *_INEXACT, "WINOGRAD_TILE_13x13", "NONDETERMINISTIC"),
    "tf32": (*_INEXACT, "WINOGRAD_TILE_13x13", "NONDETERMINISTIC"),
    "fp16": ("REDUCED_PRECISION_REDUCTION", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13",
             "NONDETERMINISTIC"),
}
_TRANSFORMS = ("WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6",
               "WINOGRAD_TILE_13x13", "FFT")
_NO_ENGINE = "it has no engine for such a graph"
_TOO_LARGE = "its engines need too much workspace"
_OTHER_PRECISIONS = "its engines compute in other precisions"
_LASTING_REFUSALS = (_NO_ENGINE, _TOO_LARGE, _OTHER_PRECISIONS)
"""Refusals that are permanent for a version of cuDNN and a device. The cause of other refusals may
be removed, for example by installing a library."""
_PREREQUISITE = re.compile(r"RUNTIME_PREREQUISITE_MISSING; Reason: (.+)")
_WORKSPACE = re.compile(r"^Plan at index (\d+): .*workspace violation\. Requires (\d+)", re.M)


@dataclass(frozen=True)
class CudnnForm:
    """The options with which cuDNN's graph of a problem is created.

    precision: "fp32", "tf32" or "fp16".
    layout: layout of all tensors.
    fused: True if the epilogue is part of the graph.
    exact: True if all products and sums are integers, which Winograd and FFT would round.
    """

    precision: str
    layout: str
    fused: bool
    exact: bool = False

    @property
    def dtype(self) -> str:
        """The dtype of the tensors."""
        return "float16" if self.precision == "fp16" else "float32"

    def spec(self, shape: tuple[int, ...]) -> TensorSpec:
        """Return the spec of a tensor of the graph."""
        return TensorSpec(shape, Format(self.layout, self.dtype))


@dataclass(frozen=True)
class ExecutionPlan:
    """An execution plan that cuDNN offers.

    index: index in cuDNN's list.
    engine: name of the plan's engine with its settings ("eng12_k2=3").
    workspace: bytes of workspace that the plan needs.
    """

    index: int
    engine: str
    workspace: int


@dataclass(frozen=True)
class CudnnOffer:
    """The plans that cuDNN offers for a graph.

    plans: the plans, in the order of cuDNN's own estimates of their times.
    refusal: the reason why cuDNN offers no plan; empty if it offers plans.
    """

    plans: tuple[ExecutionPlan, ...]
    refusal: str = ""


def offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
    """Return the plans that cuDNN offers for a problem, without building them.

    The result is the same in every call and in every process with the same version of cuDNN.
    """
    return _offered(device, _plain(problem, form), form)


def _plain(problem: Conv2dProblem, form: CudnnForm) -> Conv2dProblem:
    """Return a problem reduced to the fields that cuDNN's plans depend on.

    Facts about weights and values are removed. An epilogue that is not fused is also removed.
    """
    plain = replace(problem, weights_info=WeightsInfo(), facts=(), result=REAL)
    return plain if form.fused else replace(plain, epilogue=Epilogue())


@functools.lru_cache(maxsize=4096)
def _offered(device: Device, problem: Conv2dProblem, form: CudnnForm) -> CudnnOffer:
    key = _offer_key(device, problem, form)
    data = kernel_cache.stored(key)
    if data is not None:
        answer = json.loads(data)
        return CudnnOffer(tuple(ExecutionPlan(**plan) for plan in answer["plans"]),
                          answer["refusal"])
    offer = _answer(library_on(CUDNN, device), problem, form, _most_workspace(device))
    if offer.plans or offer.refusal in _LASTING_REFUSALS:
        kernel_cache.cached(key, lambda: json.dumps(dataclasses.asdict(offer)).encode())
    return offer


@functools.lru_cache(maxsize=4096)
def _offer_key(device: Device, problem: Conv2dProblem, form: CudnnForm) -> tuple[str, ...]:
    """Return the cache key of cuDNN's offer."""
    return ("cuDNN's offer", source_hash(__name__), *_versions(library_on(CUDNN, device), device),
            str(_most_workspace(device)), json.dumps(canonical(problem), sort_keys=True),
            repr(form))


def _most_workspace(device: Device) -> int:
    """Return the maximum workspace of a plan in bytes."""
    return device.limits.memory_bytes // _MEMORY_SHARE


def _answer(library: CudnnLibrary, problem: Conv2dProblem, form: CudnnForm,
            most: int) -> CudnnOffer:
    """Return the plans that cuDNN offers for a problem.

    most: maximum workspace of a plan in bytes.
    """
    with library.handle() as handle:
        try:
            graph = _planned(problem, form, library, handle)
        except library.failures as error:
            return CudnnOffer((), _no_engine(error))
        for note in _REQUIRED_NOTES[form.precision]:
            graph.select_numeric_notes([getattr(library.api.numerical_note, note)])
        for note in (*_EXCLUDED_NOTES[form.precision], *(_TRANSFORMS if form.exact else ())):
            graph.deselect_numeric_notes([getattr(library.api.numerical_note, note)])
        # The frontend reports the workspace of a plan only after it has built the plan, which can
        # take a second. But if no workspace is allowed, the frontend's error message lists the
        # workspace that each plan needs.
        graph.deselect_workspace_greater_than(-1)
        try:
            graph.check_support()
            message = "cuDNN does not report the workspace of its engines"
        except library.failures as error:
            message = str(error).strip() or type(error).__name__
        needs = workspaces(message)
        usable = [(index, needs[entry.cpp_index]) for index, entry in enumerate(graph.plans)
                  if needs.get(entry.cpp_index, most + 1) <= most]
        plans = tuple(ExecutionPlan(index, graph.get_plan_name_at_index(index), need)
                      for index, need in usable[:MOST_PLANS])
    return CudnnOffer(plans, "" if plans else _refusal(message, len(needs)))


def workspaces(message: str) -> dict[int, int]:
    """Return the bytes of workspace that each plan needs.

    The keys are cuDNN's indices of the plans. Plans that are deselected or cannot run are not
    included.

    message: cuDNN's error message when no workspace is allowed.
    """
    return {int(index): int(nbytes) for index, nbytes in _WORKSPACE.findall(message)}


def _no_engine(error: BaseException) -> str:
    """Return why cuDNN has no plans for a graph, in one line."""
    message = str(error)
    if missing := _PREREQUISITE.search(message):
        return f"its engines lack a library that they need at run time ({missing[1]})"
    if "No valid engine configs" in message:
        return _NO_ENGINE
    return first_line(error)


def _refusal(message: str, too_large: int) -> str:
    """Return why none of the plans is usable, in one line.

    message: cuDNN's message.
    too_large: number of plans that need too much workspace.
    """
    if too_large:
        return _TOO_LARGE
    reasons = [line.partition(": ")[2] for line in message.splitlines()
               if line.startswith("Plan at index")]
    others = [reason for reason in reasons if reason != "Deselecting execution plan"]
    if reasons and not others:
        return _OTHER_PRECISIONS
    return others[0] if others else message.strip().splitlines()[0]


def built(device: Device, problem: Conv2dProblem, form: CudnnForm, plan: ExecutionPlan) -> Any:
    """Return cuDNN's graph of a problem, with an offered plan built.

    Built plans are kept on disk, and the most recently used graphs are kept in memory. Raises
    RuntimeError if cuDNN now offers another plan. Errors of the frontend and of the library are
    passed on.
    """
    return _built(device, _plain(problem, form), form, plan)


def store(device: Device, problem: Conv2dProblem, form: CudnnForm, plan: ExecutionPlan) -> None:
    """Build a plan, check that cuDNN can deserialise it, and store it on disk.

    This function is called in a separate process, because cuDNN may crash the process in which it
    deserialises a plan.
    """
    plain = _plain(problem, form)
    library = library_on(CUDNN, device)
    with library.handle() as handle:
        data = bytes(_build(library, handle, plain, form, plan).serialize(as_bytes=True))
        _read_back(library, handle, data)
    kernel_cache.cached(_key(library, device, plain, form, plan), lambda: data)


@functools.lru_cache(maxsize=512)
def _built(device: Device, problem: Conv2dProblem, form: CudnnForm, plan: ExecutionPlan) -> Any:
    library = library_on(CUDNN, device)
    key = _key(library, device, problem, form, plan)
    with library.handle() as handle:
        data = kernel_cache.stored(key)
        if data is not None:
            try:
                return _read_back(library, handle, data)
            except library.failures:
                kernel_cache.forget(key)
        return _build(library, handle, problem, form, plan)


def _key(library: CudnnLibrary, device: Device, problem: Conv2dProblem, form: CudnnForm,
         plan: ExecutionPlan) -> tuple[str, ...]:
    """Return the cache key of a built plan."""
    return ("cuDNN's execution plan", *_versions(library, device),
            json.dumps(canonical(problem), sort_keys=True), repr(form), repr(plan))


def _versions(library: CudnnLibrary, device: Device) -> tuple[str, ...]:
    """Return strings that identify cuDNN and the device."""
    return (library.version, library.api.__version__, *needed_libraries(), device.description,
            device.driver)


def _read_back(library: CudnnLibrary, handle: Any, data: bytes) -> Any:
    """Return a graph with a built plan, deserialised from `data`."""
    graph = library.api.pygraph(handle=handle,
                                cuda_graph_retention=library.api.cuda_graph_retention.NONE)
    graph.deserialize(handle, data)
    return graph


def _build(library: CudnnLibrary, handle: Any, problem: Conv2dProblem, form: CudnnForm,
           plan: ExecutionPlan) -> Any:
    """Return a graph with a built plan; cuDNN may compile a kernel for the plan."""
    graph = _planned(problem, form, library, handle, plan.index + 1)
    name = graph.get_plan_name_at_index(plan.index)
    if name != plan.engine:
        raise RuntimeError(f"cuDNN now offers {name} in place of {plan.engine}")
    graph.build_plan_at_index(plan.index)
    needed = graph.get_workspace_size()
    if needed > plan.workspace:
        raise RuntimeError(f"cuDNN's {plan.engine} needs {needed} bytes of workspace, more than "
                           f"the {plan.workspace} that cuDNN reported before")
    return graph


def _planned(problem: Conv2dProblem, form: CudnnForm, library: CudnnLibrary, handle: Any,
             count: float = math.inf) -> Any:
    """Return the graph with cuDNN's plans, none of them built.

    count: number of plans at which the search for more engines ends.
    """
    graph = _graph(problem, form, library.api, handle)
    graph.validate()
    graph.build_operation_graph()
    modes = library.api.heur_mode
    graph.create_execution_plans([modes.A, modes.FALLBACK])
    if form.precision == "fp32":
        # Engines without tensor cores cannot be requested from the heuristics, and the heuristics
        # of cuDNN 9.27 list hardly any of them. Therefore, engines that the heuristics omit are
        # added here, with default settings.
        listed = {entry.engine_id for entry in graph.plans}
        for engine in range(graph.get_engine_count()):
            if len(graph.plans) >= count:
                break
            if engine not in listed:
                with contextlib.suppress(*library.failures):
                    graph.create_execution_plan(engine, {})
    return graph


def _graph(problem: Conv2dProblem, form: CudnnForm, api: Any, handle: Any) -> Any:
    real = api.data_type.FLOAT
    stored = api.data_type.HALF if form.dtype == "float16" else real
    # a caller that captures an execution in a CUDA graph must keep the plan alive as long as the
    # CUDA graph
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
        value = getattr(graph, node.method)(*[values[index] for index in node.arguments],
                                            **dict(node.constants))
        values.append(value)
        results.append(value)
    for value in results:
        # without strides the frontend assumes that the result of a convolution is channels-last
        value.set_dim(list(y.shape)).set_stride(list(y.strides))
    results[-1].set_output(True).set_data_type(stored).set_uid(Y)
    return graph


def channel_dtype(epilogue: Epilogue, form: CudnnForm) -> str:
    """Return the dtype of the channel operands of a fused epilogue."""
    nodes = pointwise(epilogue) or ()
    # In float16, cuDNN's prebuilt kernels for a fused bias and relu require a float16 bias. For
    # other epilogues cuDNN's engines generate code, and offer more plans with float32 operands.
    plain = all(node.method in ("add", "relu") and not node.constants for node in nodes)
    return form.dtype if plain else "float32"


@dataclass(frozen=True)
class Pointwise:
    """An element-wise node of a graph.

    method: method of cuDNN's graphs that adds the node.
    arguments: indices of the node's arguments: 0 is the result of the convolution, i + 1 is operand
    i, and the results of earlier nodes follow.
    constants: names and values of the node's constants.
    """

    method: str
    arguments: tuple[int, ...]
    constants: tuple[tuple[str, float], ...] = ()


def pointwise(epilogue: Epilogue) -> tuple[Pointwise, ...] | None:
    """Return an epilogue as nodes of a cuDNN graph; the last node computes the output.

    Return None if cuDNN has no node for a step, if the output is not the result of the last step
    alone, or if a value other than the output is never read.
    """
    expression = epilogue.expression
    last = expression.inputs + len(expression.steps) - 1
    used = [argument for step in expression.steps for argument in step.arguments]
    if expression.outputs != (last,) or set(used) != set(range(last)):
        return None
    channels = {index + 1 for index, kind in enumerate(epilogue.operands) if kind == "channel"}
    nodes = [_node(step, channels) for step in _tensors_first(epilogue, used)]
    return None if None in nodes else tuple(node for node in nodes if node is not None)


def _tensors_first(epilogue: Epilogue, used: list[int]) -> tuple[ExpressionStep, ...]:
    """Return the steps in the order of cuDNN's prebuilt fused kernel: residual, bias, activation.

    Only the additions at the start of the epilogue are reordered: those of tensors come first,
    those of channel operands follow.
    """
    expression = epilogue.expression
    current, added = 0, []
    for step in expression.steps:
        operand = next((argument for argument in step.arguments if argument != current), 0)
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
    """Return one step as a node, or None if cuDNN has no node for the step."""
    arguments = step.arguments
    if step.function in ("add", "mul"):
        # cuDNN broadcasts the second value to the shape of the first
        first, second = sorted(arguments, key=lambda argument: argument in channels)
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
