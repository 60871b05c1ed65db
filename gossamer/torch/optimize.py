"""optimize: the function that makes a fast module from a module of PyTorch."""

from __future__ import annotations

from typing import Any

from torch import nn

from gossamer.device.base import Device
from gossamer.model.formats import with_formats
from gossamer.plan.api import with_weights
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.torch.captured import Captured, Formats, captured, is_channels_last, place
from gossamer.torch.checks import check_module
from gossamer.torch.comparison import check_outputs, first_difference, in_float64
from gossamer.torch.exported import Exported
from gossamer.torch.folded import folded, without_bfloat16
from gossamer.torch.optimized_module import OptimizedModule


def optimize(module: Any, example_inputs: Any = None, device: str | Device | None = None, *,
             precision: str | None = None, effort: str | None = None, inputs: Formats = None,
             tolerance: float | None = None, budget: float | None = None, strict: bool = False,
             threads: int | str = "all", follow: bool | None = True) -> OptimizedModule:
    """Make a fast module from a module of PyTorch; see `gossamer.optimize`.

    follow: None where the caller looks for changes of the weights, and knows that forward writes
    nothing.
    """
    found = captured(module, example_inputs, inputs, writes=follow is not None)
    where = place(found, device)
    # less precise arithmetic is chosen by measurements, which need an effort
    precision = precision or (found.precision if effort is not None else "fp32")
    policy = Policy(effort, precision, strict, budget_s=budget, threads=threads)
    make = _PlanMaker(found, where, policy)
    fast = OptimizedModule(make.first(), found.inputs, found.outputs, make.again,
                           (found.original, found.weights, found.watch) if follow else None,
                           _permuted(found), found.network.fixed)
    compared = "int8" if found.network.is_quantised else (
        "fp16" if found.precision == "fp16" else precision)
    _check(found, fast, where, compared, tolerance)
    found.network.forget()
    return fast


class _PlanMaker:
    """Makes the plans of one module: the first plan, and later plans with other weights."""

    def __init__(self, found: Captured, device: Device, policy: Policy) -> None:
        self._network: Exported = found.network
        self._formats = found.formats
        self._device = device
        self._policy = policy

    def first(self) -> Plan:
        """Returns the plan of the module as it was captured."""
        graph = with_formats(self._network.graph(), self._formats or None, None)
        return Plan(graph, self._device, self._policy)

    def again(self, old: Plan, module: nn.Module) -> Plan:
        """Returns a plan with the weights of a module, without new measurements."""
        ready = folded(module)
        check_module(ready)
        ready = without_bfloat16(ready)
        self._network.set_weights(ready)
        try:
            if self._policy.effort is None:
                return self.first()
            graph = with_formats(self._network.graph(), self._formats or None, None)
            return with_weights(old, graph)
        finally:
            self._network.forget()


def _permuted(found: Captured) -> tuple[bool, ...]:
    """Returns for each input whether its tensor is channels-last with C = H = W, so that a plan
    cannot tell NHWC from NCHW by the sizes."""
    return tuple(not found.explicit and is_channels_last(tensor)
                 and len(set(tensor.shape[1:])) == 1 for tensor in found.tensors)


def _check(found: Captured, fast: OptimizedModule, device: Device, precision: str,
           tolerance: float | None) -> None:
    """Raises UnsupportedError where the outputs on the example differ too much from torch's
    outputs."""
    results = found.call(fast, found.given)
    exact = in_float64(found.module, lambda module: found.call(
        module, [tensor.double() if tensor.is_floating_point() else tensor
                 for tensor in found.tensors]))
    check_outputs(results, found.eager, exact, precision, tolerance, lambda allowed:
                  first_difference(found.network, found.tensors, device, allowed))
