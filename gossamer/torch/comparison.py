"""Compares the outputs of an optimised module with the outputs of the original module, and names a
layer that differs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from gossamer.accuracy import normalised_error
from gossamer.device.base import Device
from gossamer.errors import GossamerError, UnsupportedError, quoted
from gossamer.plan.plan import Plan
from gossamer.torch.exported import Exported
from gossamer.torch.quantised import QuantisedInFloat64

LEAST_ALLOWED = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "int8": 2e-2}
"""The normalised error that is allowed in each precision, even where torch is more exact. The entry
"int8" is for quantised modules: in float32 a number halfway between two integers may be rounded to
either integer. In an output of few numbers, a single number that is rounded to the wrong integer
makes an error of about 1e-2."""
_WORSE_THAN_TORCH = 2
"""The largest ratio of an error to torch's error that is allowed, both against float64."""


def in_float64(module: nn.Module, call: Callable[[nn.Module], Sequence[Any]]) -> Sequence[Any]:
    """Returns the result of a call with a module's copy in float64; () where the call fails."""
    try:
        with QuantisedInFloat64():
            return call(copy.deepcopy(module).double())
    except Exception:  # forward may ask for a dtype, and torch may lack an operator in float64
        return ()


def check_outputs(results: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any],
                  precision: str, tolerance: float | None,
                  first_difference: Callable[[float], str]) -> None:
    """Raises UnsupportedError where the error of a result is larger than its precision allows, and
    larger than twice torch's error against float64.

    results, eager, exact: the outputs of gossamer, of torch, and of torch in float64; `exact` is ()
    where float64 failed.
    tolerance: the error that is allowed in place of both limits; None where both limits count.
    first_difference: function of an allowed error; returns a sentence that names the first layer
    with a larger error.
    """
    for index, (result, theirs) in enumerate(zip(results, eager, strict=True)):
        ours, torchs = (as_array(tensor) for tensor in (result, theirs))
        error = normalised_error(ours, torchs)
        allowed = LEAST_ALLOWED[precision] if tolerance is None else tolerance
        if exact and tolerance is None:
            reference = as_array(exact[index])
            error = min(error, normalised_error(ours, reference))
            allowed = max(allowed, _WORSE_THAN_TORCH * normalised_error(torchs, reference))
        if not error <= allowed:
            raise UnsupportedError(
                f"output {index} differs from torch's by {error:.1e}, {allowed:.1e} is allowed; "
                f"{first_difference(allowed)}; please report it, or allow more: tolerance=")


def first_difference(network: Exported, tensors: Sequence[Any], device: Device,
                     allowed: float) -> str:
    """Returns a sentence that names the first layer, in the module's order, whose result differs
    from torch's result by more than is allowed. The result of every layer is compared."""
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    values = {info.name: info for info in model.graph.value_info}
    made = {name for node in model.graph.node for name in node.output}
    nodes = [node for node in network.program.graph.nodes
             if node.op == "call_function" and node.name in values and node.name in made]
    del model.graph.output[:]
    model.graph.output.extend(values[node.name] for node in nodes)
    recorder = _Recorder(network.program.module())
    try:
        plan = Plan(network.graph(model), device)
        with torch.no_grad():
            recorder.run(*tensors)
            results = plan(*tensors)
    except (GossamerError, RuntimeError) as error:
        return f"which layer differs is not known ({error})"
    for node, result in zip(nodes, results if len(nodes) > 1 else [results], strict=True):
        expected = as_array(recorder.values[node.name])
        if not normalised_error(as_array(result), expected) <= allowed:
            return f"the first layer that differs is {layer_text(node)}"
    return "no layer differs where all are computed apart"


def layer_text(node: Any) -> str:
    """Returns the words for a node of torch's graph in messages: its operator and its module."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]).removeprefix("module").lstrip(".") if stack else ""
    operator = str(getattr(node.target, "overloadpacket", node.target)).removeprefix("aten.")
    return f"{operator} of {quoted(path)}" if path else operator


class _Recorder(torch.fx.Interpreter):
    """An execution of a graph of torch that keeps every tensor."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.values[n.name] = result
        return result


def as_array(tensor: Any) -> np.ndarray:
    """Returns a tensor as a NumPy array in host memory, bfloat16 as float32."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.numpy())
