"""Binary convolutions: their conditions, their formats, and the words that hold their bits.

All weights of an output channel must have the same nonzero magnitude, and all inputs must be -1, 0
or 1. The accumulator is the inner product of the signs, an integer. The epilogue's input is the
accumulator times the magnitude of the output channel's weights (`alphas`). Inputs of -1 and 1 need
one bit each ("bits"); inputs of -1, 0 and 1 need two bits each ("trits").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.facts import REAL, ValueFacts
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.packed import result_dtype, smallest_dtype
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec

LARGEST_ACCUMULATOR = 2**24
"""Integers up to this magnitude are exact in float32, the dtype of accumulators in the epilogue."""
_BOUNDS: dict[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("add", "sub"), sum),
    **dict.fromkeys(("neg", "abs", "relu", "min", "max"), max)}
"""Functions that map integers to integers. For each of them, a Python function computes a bound on
the magnitude of the result from bounds on the magnitudes of the arguments."""
_LARGEST_OF_FLOAT16 = 2**11
"""Integers up to this magnitude are exact in float16."""


@dataclass(frozen=True)
class BinaryForm:
    """The packed dtypes of a binary layer.

    input: the packed dtype of the inputs, "bits" or "trits".
    output: the packed dtype of the results; None if results other than -1, 0 and 1 are possible.
    """

    input: str
    output: str | None

    @property
    def planes(self) -> int:
        """Number of bits of an input."""
        return PACKED_DTYPES[self.input].planes


def reason_not_binary(problem: Conv2dProblem) -> str | None:
    """Return why a problem cannot be computed with bit operations; None if it can."""
    known = problem.facts[0] if problem.facts else REAL
    if _dtype_of(known) is None:
        values = "any floats" if known == REAL else str(known)
        return f"its inputs are not known to be -1, 0 or 1; possible values: {values}"
    if not problem.weights_info.scaled_signs:
        if problem.weights_info.density < 1:
            return ("some of its weights are 0: the weights of a channel must have one nonzero "
                    "magnitude")
        return "its weights have different magnitudes within a channel"
    if problem.depth > LARGEST_ACCUMULATOR:
        return f"sums of {problem.depth} products are not exact in float32"
    return None


def inputs_are_signs(problem: Conv2dProblem) -> bool:
    """Return whether the inputs of a problem are known to be -1, 0 or 1."""
    return bool(problem.facts) and _dtype_of(problem.facts[0]) is not None


def binary_form(problem: Conv2dProblem) -> BinaryForm:
    """Return the packed dtypes of a problem for which `reason_not_binary` returns None."""
    dtype = _dtype_of(problem.facts[0])
    assert dtype is not None
    written = [result_dtype(problem.epilogue.expression), _dtype_of(problem.result)]
    return BinaryForm(dtype, "bits" if "bits" in written else written[0] or written[1])


def alphas(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the magnitude of each output channel's weights in float32."""
    weight = np.asarray(arrays["weight"], np.float32)
    return np.abs(weight.reshape(len(weight), -1)[:, 0])


def _dtype_of(known: ValueFacts) -> str | None:
    """Return the smallest packed dtype that holds all possible values, or None."""
    if known.count is None or known.count > 3:
        return None
    return smallest_dtype({known.low + known.step * k for k in range(known.count)})


@dataclass(frozen=True)
class BinaryLayer:
    """A binary convolution that is computed with bit operations.

    convolution: the problem. Its epilogue has one or two results. If there are two, the first is
    written as floats and the second as packed words.
    padding: the value of the pixels outside of the image, -1, 0 or 1.
    """

    convolution: Conv2dProblem
    padding: int = 0

    @property
    def form(self) -> BinaryForm:
        """The packed dtypes of the input and of the last result."""
        form = binary_form(self.convolution)
        if not self.has_two_results:
            return form
        return BinaryForm(form.input, result_dtype(self.convolution.epilogue.expression, 1))

    @property
    def has_two_results(self) -> bool:
        """Whether the epilogue has a second result."""
        return len(self.convolution.epilogue.expression.outputs) == 2

    @property
    def takes_zeros_back(self) -> bool:
        """Whether the padding is 0 but inputs have one bit, which cannot represent 0.

        If so, the padding is computed as -1, and the terms that the padding adds to the sums are
        subtracted afterwards.
        """
        return any(self.convolution.pads) and not self.padding and self.form.planes == 1

    @property
    def operand_facts(self) -> list[ValueFacts]:
        """The facts about the values of each run-time operand of the epilogue."""
        problem = self.convolution
        return [problem.facts[index] if index < len(problem.facts) else REAL
                for index in range(1, len(problem.inputs))]

    @property
    def largest_integer(self) -> float | None:
        """Bound on the magnitude of the first result if it is an integer, else None.

        The result is an integer if the weights and the operands are integers and the epilogue maps
        integers to integers.
        """
        problem = self.convolution
        weights, operands = problem.weights_info.facts, iter(self.operand_facts)
        bounds = [problem.depth * weights.largest if weights.is_integer else None]
        for kind in problem.epilogue.operands:
            facts = next(operands) if kind == "tensor" else REAL
            bounds.append(facts.largest if facts.is_integer else None)
        for step in problem.epilogue.expression.steps:
            of_step = [bounds[argument] for argument in step.arguments]
            known = [bound for bound in of_step if bound is not None]
            combine = _BOUNDS.get(step.function)
            bounds.append(combine(known) if combine and len(known) == len(of_step) else None)
        return bounds[problem.epilogue.expression.outputs[0]]

    def rounds_integers(self, writes_floats: bool) -> bool:
        """Return whether float16 would round values that are known to be integers.

        The values are the epilogue's run-time operands and, if `writes_floats`, the first result.
        """
        integers = [facts.largest for facts in self.operand_facts if facts.is_integer]
        if writes_floats:
            integers.append(self.largest_integer or 0)
        return max(integers, default=0) > _LARGEST_OF_FLOAT16

    def reason_not_binary(self) -> str | None:
        """Return why the layer cannot be computed with bit operations; None if it can."""
        if (reason := reason_not_binary(self.convolution)) is not None:
            return reason
        if self.has_two_results and self.form.output is None:
            return "its second result is not known to be -1, 0 or 1"
        return None


def words_are_whole(problem: Conv2dProblem, word_bits: int) -> bool:
    """Return whether each word of the output holds channels of one group only."""
    return problem.groups == 1 or problem.group_out_channels % word_bits == 0


def first_words(problem: Conv2dProblem, word_bits: int) -> np.ndarray:
    """Return the index of each group's first word among the words of an input pixel."""
    return np.arange(problem.groups) * problem.group_channels // word_bits


def words_of_a_group(problem: Conv2dProblem, word_bits: int) -> int:
    """Return the maximum number of words that hold channels of one group."""
    first = first_words(problem, word_bits)
    end = -(-np.arange(1, problem.groups + 1) * problem.group_channels // word_bits)
    return int((end - first).max())


def group_masks(problem: Conv2dProblem, word_bits: int) -> np.ndarray:
    """Return masks (groups, words of a group) in which the bits of a group's channels are 1."""
    return _words(_positioned(np.ones((problem.groups, problem.group_channels), bool),
                          np.arange(problem.groups), problem, word_bits), word_bits)


def sign_words(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
               word_bits: int) -> np.ndarray:
    """Return the signs of the weights as words (M, words of a group, R, S).

    A bit is 1 if the weight is positive; bits of other groups' channels are 0.
    """
    signs = arrays["weight"] > 0
    groups = np.arange(problem.out_channels) // problem.group_out_channels
    return _words(_positioned(signs, groups, problem, word_bits), word_bits)


def tap_sums(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sum of each tap's signs over the input channels, (M, R, S) in int32.

    A pixel with all bits 0 is -1 in every channel: a tap that reads this pixel contributes the
    negative of the tap's sum.
    """
    return np.where(arrays["weight"] > 0, 1, -1).sum(axis=1).astype(np.int32)


def _positioned(bits: np.ndarray, groups: np.ndarray, problem: Conv2dProblem,
                word_bits: int) -> np.ndarray:
    """Return bits (rows, C/groups, ...) at their positions in the group's words.

    groups: the group of each row.
    """
    channels = problem.group_channels
    width = words_of_a_group(problem, word_bits) * word_bits
    positioned = np.zeros((len(bits), width, *bits.shape[2:]), bool)
    # groups that begin at the same bit of a word are copied together
    offsets = groups * channels % word_bits
    for offset in np.unique(offsets):
        positioned[offsets == offset, offset:offset + channels] = bits[offsets == offset]
    return positioned


def _words(bits: np.ndarray, word_bits: int) -> np.ndarray:
    """Return bits (rows, words * word_bits, ...) as words (rows, words, ...)."""
    rows, width, *rest = bits.shape
    by_word = np.moveaxis(bits.reshape(rows, width // word_bits, word_bits, *rest), 2, -1)
    packed = np.packbits(np.ascontiguousarray(by_word), axis=-1, bitorder="little")
    return packed.view(f"<u{word_bits // 8}")[..., 0].astype(f"u{word_bits // 8}")


def group_tables(weights: Weights, problem: Conv2dProblem, word_bits: int) -> list[Buffer]:
    """Return the masks and the first words of all groups, on the device."""
    form = f"{word_bits} bits, binary"
    return [weights.packed(f"masks of groups, {form}",
                           lambda arrays: group_masks(problem, word_bits)),
            weights.packed(f"first words of groups, {form}",
                           lambda arrays: first_words(problem, word_bits).astype(np.int32))]


def float_specs(variant: Variant) -> list[TensorSpec]:
    """Return the specs of a variant's float tensors, which all have the same format."""
    return [spec for spec in (*variant.inputs[1:], *variant.outputs) if not spec.format.is_packed]


def format_macros(variant: Variant, *, has_thresholds: bool) -> dict[str, int]:
    """Return the kernel macros for a variant's formats and thresholds."""
    target = variant.outputs[-1]
    return {"PLANES": PACKED_DTYPES[variant.inputs[0].dtype].planes,
            "OUTPUT_PLANES": PACKED_DTYPES[target.dtype].planes if target.format.is_packed else 0,
            "FLOATS": int(not variant.outputs[0].format.is_packed),
            "THRESHOLDS": int(has_thresholds)}


def packed_variants(layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    config: tuple[tuple[str, int | str], ...], word_bits: int) -> Iterator[Variant]:
    """Yield the variants of a config that read words of `word_bits` bits.

    Variants of a layer with one result write floats or words. Variants of a layer with two results
    write the first result as floats and the second as words.

    inputs: the input of the layer, and the run-time operands of its epilogue.
    """
    problem, form = layer.convolution, layer.form
    x, *operands = inputs
    source = TensorSpec(x.shape, Format(f"packed{word_bits}", form.input))
    for layout in ("NHWC", "NCHW"):
        y = problem.outputs[0].with_format(layout=layout)
        read = (source, *[y] * len(operands))
        packed = () if form.output is None or not words_are_whole(problem, word_bits) else (
            TensorSpec(y.shape, Format(f"packed{word_bits}", form.output)),)
        if layer.has_two_results:
            yield Variant(config, read, (y, *packed))
            continue
        yield Variant(config, read, (y,))
        if packed and (operands or layout == "NHWC"):
            yield Variant(config, read, packed)


def processor_us(problem: Conv2dProblem, words_per_microsecond: float, device: Device) -> float:
    """Return the estimated time of a layer on a CPU in microseconds.

    words_per_microsecond: 64-bit words that one core compares per microsecond.
    """
    words = words_of_a_group(problem, 64) * problem.taps
    return words * problem.outputs[0].size / (
        words_per_microsecond * max(device.limits.compute_units, 1))
