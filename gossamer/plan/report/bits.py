"""The layers on bits (-1, 1), on trits (-1, 0, 1) and on floats: reasons and memory use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer.ops.algorithm import Problem, State
from gossamer.ops.conv2d.binary.layer import binary_form, inputs_are_signs, reason_not_binary
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.program import Program, Step

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


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a program's layers store and write.

    packed_weights: the constants of layers on bits, including padding to whole words.
    packed_weights_fp32: the weights of these layers in float32.
    float_weights: the constants of other layers.
    packed_activations: packed values that steps write, including padding to whole words.
    packed_activations_fp32: the same values in float32.
    float_activations: all other values that steps write, including conversions.
    total_fp32: all weights, and all values that the network's layers write, in float32.
    """

    packed_weights: int
    packed_weights_fp32: int
    float_weights: int
    packed_activations: int
    packed_activations_fp32: int
    float_activations: int
    total_fp32: int

    @property
    def total(self) -> int:
        """Total size in bytes."""
        return (self.packed_weights + self.float_weights + self.packed_activations
                + self.float_activations)

    def __str__(self) -> str:
        return (f"packed weights {_mega(self.packed_weights)} MB "
                f"({_mega(self.packed_weights_fp32)} in fp32), packed activations "
                f"{_mega(self.packed_activations)} ({_mega(self.packed_activations_fp32)}), float "
                f"weights {_mega(self.float_weights)}, float activations "
                f"{_mega(self.float_activations)}: total {_mega(self.total)} MB "
                f"({_mega(self.total_fp32)} in fp32, {_mega(self.total_fp32 / 2)} in fp16)")


def memory_use(program: Program, states: Sequence[State]) -> MemoryUse | None:
    """Return the memory of a program's layers; None if no layer is on bits.

    Every value that a step writes counts in full, even if values with disjoint lifetimes share
    memory. If a step works in place, its value counts once: for the step that computed the value.

    states: the prepared state of each step, with its packed weights.
    """
    if not any(computes_on_bits(step) for step in program.steps):
        return None
    use = dict.fromkeys(MemoryUse.__dataclass_fields__, 0)
    for step, state in zip(program.steps, states, strict=True):
        plain = sum(4 * array.size for name, array in step.layer.weights.items()
                    if name.endswith("weight"))
        # a step without packed forms uses the network's arrays unchanged
        kept = sum(each.nbytes for each in state.packed or step.layer.weights.values())
        on_bits = computes_on_bits(step)
        use["packed_weights" if on_bits else "float_weights"] += kept
        use["packed_weights_fp32"] += plain if on_bits else 0
        use["total_fp32"] += plain
        for spec in step.variant.outputs:
            use["total_fp32"] += 0 if step.layer.inserted else 4 * spec.size
            if not step.in_place and spec.format.is_packed:
                use["packed_activations"] += spec.nbytes
                use["packed_activations_fp32"] += 4 * spec.size
            elif not step.in_place:
                use["float_activations"] += spec.nbytes
    return MemoryUse(**use)


def computes_on_bits(step: Step) -> bool:
    """Return whether a step is computed on bits or trits."""
    form = form_of(step.layer.name, step.problem, step.algorithm.exact)
    return form is not None and form.form != FLOATS


def _mega(count: float) -> str:
    return f"{count / 1e6:.3g}"
