"""Explanations of how a module would be computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gossamer.device.base import Device
from gossamer.io.text import duration_text
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.plan.candidate import counted
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.program import Step
from gossamer.plan.report.bits import form_of
from gossamer.plan.report.part_notes import part_notes
from gossamer.plan.report.zeros import FEW_ZEROS
from gossamer.plan.tune.cost import model_us
from gossamer.torch.captured import captured, plan_device

_LONGEST = 40
"""Largest number of layers in the text of an explanation."""


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer of a module.

    layer: name of the layer.
    op: name of its op.
    problem: its problem as text.
    device: name of the device where the layer would run.
    algorithm: the algorithm that a plan selects without measurements. This algorithm is usually the
    first one that can compute the layer in float32; measurements may find a faster one.
    density: the fraction of nonzero weights; None without weights.
    thin: "depthwise", "zeros" (many weights are zero), "signs" (the layer can be computed on bits
    or trits), or "" for none of these.
    expected_us: expected time in microseconds, by a cost model.
    """

    layer: str
    op: str
    problem: str
    device: str
    algorithm: str
    density: float | None
    thin: str
    expected_us: float


@dataclass(frozen=True)
class Explanation:
    """How a module would be computed.

    device: name of the device.
    batch: number of images.
    layers: the layers of the module.
    fixed: why only the example's batch size can be computed; "" if the batch size is free.
    reasons: for each layer that would run on the host instead of the device, the reason.
    parts: a sentence for each part of the network that ONNX Runtime would compute.
    """

    device: str
    batch: int
    layers: list[ExplainedLayer]
    fixed: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)

    @property
    def expected_us(self) -> float:
        """Microseconds of one execution by cost models, without measurements."""
        return sum(layer.expected_us for layer in self.layers)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        elsewhere = sum(layer.device != self.device for layer in self.layers)
        on_host = f", {elsewhere} of them on the host" if elsewhere else ""
        yield (f"{counted(len(self.layers), 'layer')} at batch {self.batch} on {self.device}"
               f"{on_host}; expected time about {duration_text(self.expected_us)} (an estimate; "
               "nothing was measured)")
        for thin, what in (("depthwise", "depthwise"), ("zeros", "with zeros among the weights"),
                           ("signs", "with binary or ternary values, computable on bits")):
            count = sum(layer.thin == thin for layer in self.layers)
            if count:
                yield f"{counted(count, 'layer')} {what}"
        if not any(layer.thin for layer in self.layers):
            yield ("no depthwise, binary or ternary layers, and few zeros: gossamer is made for "
                   "thin networks")
        for name, reason in self.reasons.items():
            yield f"{name} on the host: {reason}"
        yield from self.parts
        if self.fixed:
            yield f"the batch size is fixed: {self.fixed}"
        width = max((len(layer.layer) for layer in self.layers), default=0)
        for layer in sorted(self.layers, key=lambda layer: -layer.expected_us)[:_LONGEST]:
            density = "" if layer.density is None else f" density {layer.density:.2f}"
            yield (f"{layer.layer:{width}}  {duration_text(layer.expected_us):>9}  "
                   f"{layer.algorithm}  {layer.problem}{density}"
                   f"{f' {layer.thin}' if layer.thin else ''}")


def explain(module: Any, example_inputs: Any, device: str | Device | None) -> Explanation:
    """Explain how a module would be computed; see `gossamer.explain`."""
    found = captured(module, example_inputs, None)
    where = plan_device(found, device)
    # without vendors' libraries: ONNX Runtime would compute the whole network on the host as one
    # part, which would explain nothing
    graph = found.network.graph()
    plan = Plan(graph, where, Policy(vendors=False))
    batch = next((len(tensor) for tensor in found.tensors if tensor.dim()), 1)
    steps = [step for step in plan.program(batch).steps if not step.layer.inserted]
    return Explanation(
        where.name, batch, [_explained(step) for step in steps],
        found.network.fixed,
        {step.layer.name: next(iter(step.rejected.values()), "no kernel computes it there")
         for step in steps if step.device is not where},
        part_notes(graph))


def _explained(step: Step) -> ExplainedLayer:
    layer = step.layer
    return ExplainedLayer(layer.name, layer.op, step.problem.describe(), step.device.name,
                          step.algorithm.name, layer.density, _thin(step),
                          model_us(step.algorithm, step.problem, step.variant, step.device))


def _thin(step: Step) -> str:
    form = form_of(step.layer.name, step.problem)
    if form is not None and form.could_be_packed:
        return "signs"
    if step.layer.density is not None and step.layer.density <= FEW_ZEROS:
        return "zeros"
    problem = step.problem
    if isinstance(problem, Conv2dProblem) and problem.is_depthwise:
        return "depthwise"
    return ""
