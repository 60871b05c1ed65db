"""Decides which convolutions can be computed on bits, as products of signs, and with which packed
dtypes. All weights of an output channel must have the same magnitude, which is not 0, and all
inputs must be -1, 0 or 1.

The inner product of signs is an integer, the accumulator. The epilogue gets the accumulator times
the magnitude of the output channel's weights (`alphas`). Inputs of -1 and 1 take one bit each
("bits"), inputs of -1, 0 and 1 take two bits each ("trits").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.facts import REAL, ValueFacts
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.packed import result_dtype, smallest_dtype
from gossamer.tensor import PACKED_DTYPES

LARGEST_ACCUMULATOR = 2**24
"""Integers up to this magnitude are exact in float32, the dtype of accumulators in the epilogue."""


@dataclass(frozen=True)
class BinaryForm:
    """The packed dtypes with which a product of signs is computed on bits.

    input: the packed dtype that holds the inputs, "bits" or "trits".
    output: the packed dtype that holds the results; None where a result may be another number than
    -1, 0 and 1.
    """

    input: str
    output: str | None

    @property
    def planes(self) -> int:
        """Number of bits of an input."""
        return PACKED_DTYPES[self.input].planes


def reason_not_binary(problem: Conv2dProblem) -> str | None:
    """Returns why a problem cannot be computed on bits, as shown to the user; None where it can."""
    known = problem.facts[0] if problem.facts else REAL
    if _dtype_of(known) is None:
        values = "any floats" if known == REAL else str(known)
        return f"its inputs are {values}, not known to be -1, 0 or 1"
    if not problem.weights_info.scaled_signs:
        if problem.weights_info.density < 1:
            return "some of its weights are 0, not plus or minus one number a channel"
        return "its weights are not plus or minus one number a channel"
    if problem.depth > LARGEST_ACCUMULATOR:
        return f"sums of {problem.depth} products are not exact in float32"
    return None


def inputs_are_signs(problem: Conv2dProblem) -> bool:
    """Returns whether the inputs of a problem are known to be -1, 0 or 1."""
    return bool(problem.facts) and _dtype_of(problem.facts[0]) is not None


def binary_form(problem: Conv2dProblem) -> BinaryForm:
    """Returns the packed dtypes of the input and the output of a problem that reason_not_binary()
    allows."""
    dtype = _dtype_of(problem.facts[0])
    assert dtype is not None
    written = [result_dtype(problem.epilogue.expression), _dtype_of(problem.result)]
    return BinaryForm(dtype, "bits" if "bits" in written else written[0] or written[1])


def alphas(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the magnitude of each output channel's weights in float32."""
    weight = np.asarray(arrays["weight"], np.float32)
    return np.abs(weight.reshape(len(weight), -1)[:, 0])


def _dtype_of(known: ValueFacts) -> str | None:
    """Returns the smallest packed dtype for all values that the facts allow; None where no packed
    dtype has all these values."""
    if known.count is None or known.count > 3:
        return None
    return smallest_dtype({known.low + known.step * k for k in range(known.count)})
