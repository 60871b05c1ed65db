"""Computes how much memory weights and activations take in a network with layers on bits, compared
with float32 and float16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.plan.prepare import BuildCost
from gossamer.plan.program import Program, Step
from gossamer.plan.report.forms import FLOATS, form_of
from gossamer.tensor import PACKED_DTYPES, TensorSpec

_SIGN_FORMS = ("signs ", "bits for ")
"""The beginnings of the names of packed forms that hold the signs of weights as words. A packed
form is an array that is made of a layer's constants and laid out as one kernel reads it."""
_TABLE_FORM = "table of k "
"""The beginning of the names of packed forms that say where the inputs of inner products lie."""


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
    """Returns the memory of a program's layers; None where no layer is computed on bits.

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
    """Adds the bytes of a step's constants to `use`, whose keys are the fields of MemoryUse."""
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
    """Returns whether bits or trits compute a step's convolution or product."""
    form = form_of(step.layer.name, step.problem, step.algorithm.exact)
    return form is not None and form.form != FLOATS


def _filled(spec: TensorSpec) -> int:
    """Returns the bytes of a packed tensor without bits that only fill up words."""
    return -(-spec.size * PACKED_DTYPES[spec.dtype].planes // 8)


def _mega(count: float) -> str:
    return f"{count / 1e6:.3g}"
