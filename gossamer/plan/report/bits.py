"""Layers on bits, trits and floats: why each is what it is, and the memory that they take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gossamer.ops.algorithm import Problem
from gossamer.ops.conv2d.binary.layer import binary_form, inputs_are_signs, reason_not_binary
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan.candidate import BuildCost
from gossamer.plan.program import Program, Step
from gossamer.tensor import PACKED_DTYPES, TensorSpec

FLOATS = "floats"
_SIGN_FORMS = ("signs ", "bits for ")
"""The beginnings of the names of packed forms that hold the signs of weights as words. A packed
form is an array that is made of a layer's constants and laid out as one kernel reads it."""
_TABLE_FORM = "table of k "
"""The beginning of the names of packed forms that say where the inputs of inner products lie."""


@dataclass(frozen=True)
class LayerForm:
    """Says whether a layer with weights, or all layers of a step, are computed on bits, trits or
    floats.

    form: "bits", "trits" or "floats".
    reason: why the layer is computed on floats; "" for bits and trits.
    could_be_packed: whether bits or trits can compute the layer.
    weights: the number of weights of all layers of the step.
    layers: the number of layers that are computed in the step.
    has_signs: whether all inputs are -1, 0 or 1, or the weights within each output channel are all
    equal in magnitude (a or -a).
    """

    layer: str
    form: str
    reason: str
    could_be_packed: bool
    weights: int = 0
    layers: int = 1
    has_signs: bool = True


def form_of(layer: str, problem: Problem, taken: bool | None = None) -> LayerForm | None:
    """Return the LayerForm of a convolution or of a product with a matrix. For a fusion, returns
    the LayerForm of its first convolution or product; for other problems None.

    taken: whether an algorithm on bits was taken; None where nothing was chosen yet.
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
        return LayerForm(layer, FLOATS, f"{dtype} would do, another algorithm was taken", True,
                         weights, layers)
    return LayerForm(layer, dtype, "", True, weights, layers)


def forms_line(forms: Iterable[LayerForm]) -> str:
    """Return a line such as 'layers with weights: 16 of 18 on bits, 1 of 18 on trits, 1 of 18 on
    floats: conv1 (its inputs are any floats, not known to be -1, 0 or 1)'; "" where no layer has
    inputs or weights that are signs."""
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
    """Return a line such as 'weights of layers on bits or trits: 1.36 MB as bits, 43.5 MB in
    float32'; "" where no layer is on bits or trits."""
    count = sum(form.weights for form in forms if form.form != FLOATS)
    if not count:
        return ""
    return (f"weights of layers on bits or trits: {count / 8e6:.3g} MB as bits, "
            f"{4 * count / 1e6:.3g} MB in float32")


def _convolutions(problem: Problem) -> list[Conv2dProblem]:
    """Return the convolutions of a problem: the problem itself, or the convolutions of a fusion. A
    product with a matrix counts as a convolution of images of one pixel."""
    parts = problem.parts if isinstance(problem, FusionProblem) else (problem,)
    found = (pointwise(part) if isinstance(part, GemmProblem) else part for part in parts)
    return [part for part in found if isinstance(part, Conv2dProblem)]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that the layers of a program keep and write.

    packed_weights: packed weights of layers on bits, without bits that only fill up words.
    packed_weights_fp32: the same weights in float32.
    float_weights: weights of other layers.
    float_weights_fp32: the same weights in float32.
    packed_activations: packed values that steps write, without bits that only fill up words.
    packed_activations_fp32: the same values in float32.
    sums: values that layers on bits write without packing them.
    float_activations: values that other steps write, changes of format included.
    activations_fp32: all values that the network's layers write, in float32.
    constants: thresholds, scales and tables of all layers.
    filling: bits of words beyond the last channel, in weights and activations.
    """

    packed_weights: int
    packed_weights_fp32: int
    float_weights: int
    float_weights_fp32: int
    packed_activations: int
    packed_activations_fp32: int
    sums: int
    float_activations: int
    activations_fp32: int
    constants: int
    filling: int

    @property
    def total(self) -> int:
        """All bytes."""
        return (self.packed_weights + self.float_weights + self.packed_activations + self.sums
                + self.float_activations + self.constants + self.filling)

    @property
    def total_fp32(self) -> int:
        """Bytes of all weights and of all values that the network's layers write, in float32."""
        return self.packed_weights_fp32 + self.float_weights_fp32 + self.activations_fp32

    def __str__(self) -> str:
        return (f"packed weights {_mega(self.packed_weights)} MB "
                f"({_mega(self.packed_weights_fp32)} in fp32), packed activations "
                f"{_mega(self.packed_activations)} ({_mega(self.packed_activations_fp32)}), float "
                f"weights {_mega(self.float_weights)}, float activations "
                f"{_mega(self.float_activations)}, integer sums {_mega(self.sums)}, thresholds and "
                f"other constants {_mega(self.constants)}, filling of words {_mega(self.filling)}: "
                f"total {_mega(self.total)} MB ({_mega(self.total_fp32)} in fp32, "
                f"{_mega(self.total_fp32 / 2)} in fp16)")


def memory_use(program: Program, builds: Sequence[BuildCost | None]) -> MemoryUse | None:
    """Return the memory of a program's layers; None where no layer is computed on bits.

    Every value that a step writes counts in full, even where values that are never alive together
    share memory. Where a step works in place, and so does not copy its value, the value counts
    once: for the step that computed it.

    builds: the cost of preparing each step, with the bytes of its packed forms.
    """
    if not any(computes_on_bits(step) for step in program.steps):
        return None
    use = dict.fromkeys(MemoryUse.__dataclass_fields__, 0)
    for step, built in zip(program.steps, builds, strict=True):
        _add_weights(use, step, built)
        for spec in step.variant.outputs:
            if not step.layer.inserted:
                use["activations_fp32"] += 4 * spec.size
            if step.in_place:
                continue
            if spec.format.is_packed:
                filled = _filled(spec)
                use["packed_activations"] += filled
                use["packed_activations_fp32"] += 4 * spec.size
                use["filling"] += spec.nbytes - filled
            else:
                use["sums" if computes_on_bits(step) else "float_activations"] += spec.nbytes
    return MemoryUse(**use)


def _add_weights(use: dict[str, int], step: Step, built: BuildCost | None) -> None:
    """Add the bytes of a step's constants to `use`, whose keys are the fields of MemoryUse."""
    kept = {} if built is None else built.forms
    plain = sum(4 * array.size for name, array in step.layer.weights.items()
                if name.endswith("weight"))
    if computes_on_bits(step):
        words = sum(nbytes for name, nbytes in kept.items() if name.startswith(_SIGN_FORMS))
        use["packed_weights_fp32"] += plain
        use["packed_weights"] += min(words, plain // 32)
        use["filling"] += max(0, words - plain // 32)
        use["constants"] += sum(kept.values()) - words
        return
    # a step without packed forms uses the network's arrays as they are
    others = sum(array.nbytes for name, array in step.layer.weights.items()
                 if not name.endswith("weight"))
    others += sum(nbytes for name, nbytes in kept.items() if name.startswith(_TABLE_FORM))
    use["float_weights_fp32"] += plain
    use["float_weights"] += max(sum(kept.values()) - others, 0) if kept and plain else plain
    use["constants"] += others


def computes_on_bits(step: Step) -> bool:
    """Return whether bits or trits compute a step's convolution or product."""
    form = form_of(step.layer.name, step.problem, step.algorithm.exact)
    return form is not None and form.form != FLOATS


def _filled(spec: TensorSpec) -> int:
    """Return the bytes of a packed tensor without bits that only fill up words."""
    return -(-spec.size * PACKED_DTYPES[spec.dtype].planes // 8)


def _mega(count: float) -> str:
    return f"{count / 1e6:.3g}"
