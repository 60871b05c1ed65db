"""The layers on bits (-1, 1), on trits (-1, 0, 1) and on floats: and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.binary.layer import binary_form, inputs_are_signs, reason_not_binary
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.program import Step

FLOATS = "floats"


@dataclass(frozen=True)
class LayerForm:
    """Whether the layers of a step are computed on bits, trits or floats, and why.

    form: "bits", "trits" or "floats".
    reason: why the layer is computed on floats; "" for bits and trits.
    could_be_packed: whether bits or trits can compute the layer.
    weights: number of weights of all layers of the step.
    layers: number of layers that the step computes.
    has_signs: whether all inputs are -1, 0 or 1, or whether all weights of each output channel have
    the same magnitude.
    """

    layer: str
    form: str
    reason: str
    could_be_packed: bool
    weights: int = 0
    layers: int = 1
    has_signs: bool = True


def form_of(layer: str, problem: Problem, taken: bool | None = None) -> LayerForm | None:
    """Return the LayerForm of a convolution or matrix product.

    For a fusion, return the LayerForm of its first convolution or product. None for other problems.

    taken: whether an algorithm on bits was taken; None if nothing was chosen yet.
    """
    convolutions = _convolutions(problem)
    if not convolutions:
        return None
    convolution, layers = convolutions[0], len(convolutions)
    weights = sum(math.prod(each.weight_shapes["weight"]) for each in convolutions)
    reason = reason_not_binary(convolution)
    if reason is not None:
        has_signs = convolution.weights_info.scaled_signs or inputs_are_signs(convolution)
        return LayerForm(layer, FLOATS, reason, False, weights, layers, has_signs)
    dtype = binary_form(convolution).input
    if taken is False:
        return LayerForm(layer, FLOATS, f"{dtype} would suffice, but another algorithm was chosen",
                         True, weights, layers)
    return LayerForm(layer, dtype, "", True, weights, layers)


def forms_line(forms: Iterable[LayerForm]) -> str:
    """Return a line that counts the layers on bits, trits and floats.

    An example is 'layers with weights: 16 of 18 on bits, 1 of 18 on trits, 1 of 18 on floats: conv1
    (its inputs are any floats, not known to be -1, 0 or 1)'. Return "" if no layer has signs as
    inputs or weights.
    """
    forms = list(forms)
    if not any(form.has_signs for form in forms):
        return ""
    counts = {name: sum(form.layers for form in forms if form.form == name)
              for name in ("bits", "trits", FLOATS)}
    text = "layers with weights: " + ", ".join(
        f"{count} of {sum(counts.values())} on {name}" for name, count in counts.items() if count)
    floats = [f"{form.layer} ({form.reason})" for form in forms if form.form == FLOATS]
    return f"{text}: {', '.join(floats)}" if floats else text


def weights_line(forms: Iterable[LayerForm]) -> str:
    """Return a line with the size of the weights of layers on bits or trits.

    An example is 'weights of layers that are computed on bits or trits: 1.36 MB as bits, 43.5 MB in
    float32'. Return "" if no layer is on bits or trits.
    """
    count = sum(form.weights for form in forms if form.form != FLOATS)
    if not count:
        return ""
    return (f"weights of layers that are computed on bits or trits: {count / 8e6:.3g} MB as bits, "
            f"{4 * count / 1e6:.3g} MB in float32")


def _convolutions(problem: Problem) -> list[Conv2dProblem]:
    """Return the convolutions of a problem: itself, or those of a fusion.

    A matrix product is treated as a convolution of images of one pixel.
    """
    parts = problem.parts if isinstance(problem, FusionProblem) else (problem,)
    found = (pointwise(part) if isinstance(part, GemmProblem) else part for part in parts)
    return [part for part in found if isinstance(part, Conv2dProblem)]


def computes_on_bits(step: Step) -> bool:
    """Return whether a step is computed on bits or trits."""
    form = form_of(step.layer.name, step.problem, step.algorithm.exact)
    return form is not None and form.form != FLOATS
