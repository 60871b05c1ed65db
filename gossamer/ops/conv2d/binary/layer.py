"""A convolution of signs with two extensions that only algorithms on bits compute: padding by a
constant, and a second result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gossamer.facts import REAL, ValueFacts
from gossamer.ops.conv2d.binary.form import BinaryForm, binary_form, reason_not_binary
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.packed import result_dtype

_BOUNDS: dict[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("add", "sub"), sum),
    **dict.fromkeys(("neg", "abs", "relu", "min", "max"), max)}
"""The functions that compute integers from integers. Each has a function that computes a bound on
the magnitude of the result from bounds on the magnitudes of the arguments."""
_LARGEST_OF_FLOAT16 = 2**11
"""Integers up to this magnitude are exact in float16."""


@dataclass(frozen=True)
class BinaryLayer:
    """A convolution of signs as algorithms on bits compute it.

    convolution: the problem, whose epilogue has one result or two. Of two results the first is
    written as floats and the second as packed words.
    padding: the value of the pixels outside of the image, -1, 0 or 1.
    """

    convolution: Conv2dProblem
    padding: int = 0

    @property
    def form(self) -> BinaryForm:
        """The packed dtypes of the input, and of the last result."""
        form = binary_form(self.convolution)
        if not self.has_two_results:
            return form
        return BinaryForm(form.input, result_dtype(self.convolution.epilogue.expression, 1))

    @property
    def has_two_results(self) -> bool:
        """Whether there is a second result."""
        return len(self.convolution.epilogue.expression.outputs) == 2

    @property
    def takes_zeros_back(self) -> bool:
        """Whether one-bit inputs, which cannot hold 0, are padded with zeros. The padding is then
        computed as -1, and the terms that the padding adds to the sums are subtracted
        afterwards."""
        return any(self.convolution.pads) and not self.padding and self.form.planes == 1

    @property
    def operand_facts(self) -> list[ValueFacts]:
        """The facts about the values of each run-time operand of the epilogue."""
        problem = self.convolution
        return [problem.facts[index] if index < len(problem.facts) else REAL
                for index in range(1, len(problem.inputs))]

    @property
    def largest_integer(self) -> float | None:
        """A bound on the magnitude of the first result, where the result is known to be an integer
        because weights and operands are integers and the epilogue computes integers from them. None
        where the first result is not known to be an integer."""
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
        """Returns whether 16-bit floats would round values that are known to be integers: the
        epilogue's run-time operands, and the first result where `writes_floats`."""
        integers = [facts.largest for facts in self.operand_facts if facts.is_integer]
        if writes_floats:
            integers.append(self.largest_integer or 0)
        return max(integers, default=0) > _LARGEST_OF_FLOAT16

    def reason_not_binary(self) -> str | None:
        """Returns why bits cannot compute the layer, as shown to the user; None where they can."""
        if (reason := reason_not_binary(self.convolution)) is not None:
            return reason
        if self.has_two_results and self.form.output is None:
            return "its second result is not known to be -1, 0 or 1"
        return None


def words_are_whole(problem: Conv2dProblem, word_bits: int) -> bool:
    """Returns whether each word of the output has channels of one group only."""
    return problem.groups == 1 or problem.out_channels // problem.groups % word_bits == 0
