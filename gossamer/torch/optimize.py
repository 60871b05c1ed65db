"""Optimises a PyTorch module, and compares its outputs with those of the original module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import onnx
import torch
from torch import nn

from gossamer.accuracy import normalised_error
from gossamer.device.base import Device
from gossamer.errors import GossamerError, InputError, ModelError, UnsupportedError, quoted
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.plan.api import with_weights
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.torch.captured import (
    Captured,
    Formats,
    as_array,
    captured,
    check_module,
    is_channels_last,
    plan_device,
)
from gossamer.torch.exported import Exported
from gossamer.torch.optimized_module import OptimizedModule
from gossamer.torch.quantised import QuantisedInFloat64
from gossamer.torch.weights import folded, without_bfloat16

_LEAST_ALLOWED = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "int8": 2e-2}
"""Normalised error that is allowed in each precision, even if torch is more accurate. The entry
"int8" is for quantised modules: in float32, a number halfway between two integers may be rounded to
either integer. In a small output, a single number that is rounded to the wrong integer causes an
error of about 1e-2."""
_WORSE_THAN_TORCH = 2
"""Largest allowed ratio of an error to torch's error, both against float64."""


def optimize(module: Any, example_inputs: Any = None, device: str | Device | None = None, *,
             precision: str | None = None, effort: str | None = None, inputs: Formats = None,
             tolerance: float | None = None, budget: float | None = None, strict: bool = False,
             threads: int | str = "all", follow: bool | None = True) -> OptimizedModule:
    """Optimise a PyTorch module; see `gossamer.optimize`.

    follow: None if the caller detects changes of the weights itself, and knows that forward writes
    nothing.
    """
    check_tolerance(tolerance)
    found = captured(module, example_inputs, inputs, writes=follow is not None)
    where = plan_device(found, device)
    # a precision below fp32 is chosen only by measurements, which need an effort
    precision = precision or (found.precision if effort is not None else "fp32")
    policy = Policy(effort, precision, strict, budget_s=budget, threads=threads)
    make = _PlanMaker(found, where, policy)
    fast = OptimizedModule(make.first(), found.inputs, found.outputs, make.again,
                           (found.original, found.weights, found.watch) if follow else None,
                           _permuted(found), found.network.fixed, found.network.several)
    compared = "int8" if found.network.is_quantised else (
        "fp16" if found.precision == "fp16" else precision)
    _check(found, fast, where, compared, tolerance)
    found.network.forget()
    return fast


def check_tolerance(tolerance: Any) -> None:
    """Raise InputError for a tolerance that is neither None nor a number above 0."""
    if tolerance is not None and not (isinstance(tolerance, int | float) and tolerance > 0):
        raise InputError(f"tolerance {quoted(tolerance)}: expected a number above 0")


class _PlanMaker:
    """Makes a module's first plan, and later plans with other weights."""

    def __init__(self, found: Captured, device: Device, policy: Policy) -> None:
        self._network: Exported = found.network
        self._formats = found.formats
        self._device = device
        self._policy = policy

    def first(self) -> Plan:
        """Return the plan with the captured weights."""
        return Plan(self._graph(), self._device, self._policy)

    def again(self, old: Plan, module: nn.Module) -> Plan:
        """Return a plan with a module's weights, without measurements."""
        ready = folded(module)
        check_module(ready)
        ready = without_bfloat16(ready)
        self._network.set_weights(ready)
        try:
            if self._policy.effort is None:
                return self.first()
            return with_weights(old, self._graph())
        finally:
            self._network.forget()

    def _graph(self) -> Graph:
        return with_formats(self._network.graph(), self._formats or None, None)


def _permuted(found: Captured) -> tuple[bool, ...]:
    """Return which inputs are channels-last with C = H = W.

    For such inputs, a plan cannot distinguish NHWC from NCHW by the sizes.
    """
    return tuple(not found.explicit and is_channels_last(tensor)
                 and len(set(tensor.shape[1:])) == 1 for tensor in found.tensors)


def _check(found: Captured, fast: OptimizedModule, device: Device, precision: str,
           tolerance: float | None) -> None:
    """Raise UnsupportedError if the network is not valid, or differs too much from torch's results.

    The largest allowed error is the limit of the precision, or twice torch's error against float64
    if that is larger. Where a plan may compute a float32 module in float16, twice torch's error in
    float16 is allowed, too.

    precision: a key of _LEAST_ALLOWED.
    tolerance: the largest allowed error, which replaces these limits; or None.
    """
    try:
        results = found.call(fast, found.given)
    except ModelError as cause:
        raise UnsupportedError(f"{type(found.original).__name__} cannot be exported: torch's "
                               f"exporter wrote a network that is not valid: {cause}") from cause
    exact = in_dtype(found.module, torch.float64, found.call, found.tensors)
    half: Sequence[Any] = ()
    for index, (result, theirs) in enumerate(zip(results, found.eager, strict=True)):
        ours, torchs = (as_array(tensor) for tensor in (result, theirs))
        error = normalised_error(ours, torchs)
        allowed = _LEAST_ALLOWED[precision] if tolerance is None else tolerance
        if exact and tolerance is None:
            reference = as_array(exact[index])
            error = min(error, normalised_error(ours, reference))
            allowed = max(allowed, _WORSE_THAN_TORCH * normalised_error(torchs, reference))
            if not error <= allowed and precision == "fp16" and found.precision != "fp16":
                half = half or in_dtype(found.module, torch.float16, found.call, found.tensors)
                in_half = normalised_error(as_array(half[index]), reference) if half else 0.0
                # it is infinite where float16 overflows
                allowed = max(allowed, _WORSE_THAN_TORCH * in_half if isfinite(in_half) else 0.0)
        if not error <= allowed:
            difference = _first_difference(found.network, found.tensors, device, allowed)
            advice = "please report this" if precision in ("fp32", "int8", found.precision) else (
                'give precision="fp32"')
            raise UnsupportedError(
                f"output {index} differs from torch's by {error:.1e}, but only {allowed:.1e} is "
                f"allowed; {difference}; {advice}, or give a larger tolerance=")


def in_dtype(module: nn.Module, dtype: torch.dtype, call: Callable[..., Sequence[Any]],
             tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """Return the results of a call with a copy of a module in another dtype; () on failure.

    call: function of the copy and of the tensors, of which those of floating point have the dtype.
    """
    try:
        with QuantisedInFloat64():
            return call(copy.deepcopy(module).to(dtype), [
                tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors])
    except Exception:  # forward may require a dtype, and torch may lack an operator in this one
        return ()


def _first_difference(network: Exported, tensors: Sequence[Any], device: Device,
                      allowed: float) -> str:
    """Return text that names the first layer with a wrong result.

    The result of every layer is compared with torch's, in the module's order.
    """
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    values = {info.name: info for info in model.graph.value_info}
    made = {name for node in model.graph.node for name in node.output}
    recorder = _Recorder(network.program.module())
    try:
        with torch.no_grad():
            recorder.run(*tensors)
        nodes = [node for node in network.program.graph.nodes if node.name in recorder.values
                 and node.name in values and node.name in made]
        if not nodes:
            return "the layer that differs is unknown"
        del model.graph.output[:]
        model.graph.output.extend(values[node.name] for node in nodes)
        results = Plan(network.graph(model), device)(*tensors)
    except (GossamerError, RuntimeError) as error:
        return f"the layer that differs is unknown ({error})"
    for node, result in zip(nodes, results if len(nodes) > 1 else [results], strict=True):
        expected = as_array(recorder.values[node.name])
        if not normalised_error(as_array(result), expected) <= allowed:
            return f"the first layer that differs is {_layer_text(node)}"
    return "no layer differs if all are computed separately"


def _layer_text(node: Any) -> str:
    """Return a node's operator and module as text for messages."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("module").lstrip(".") if stack else ""
    operator = str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.")
    return f"{operator} of {quoted(path)}" if path else operator


class _Recorder(torch.fx.Interpreter):
    """An execution of a torch graph that records the tensors of its operators."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        if n.op == "call_function" and isinstance(result, torch.Tensor):
            self.values[n.name] = result
        return result
