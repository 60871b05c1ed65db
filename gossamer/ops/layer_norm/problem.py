"""Layer norm and RMS norm over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.ops.op import UnaryProblem, in_float64
from gossamer.tensor import TensorSpec


@dataclass(frozen=True)
class LayerNormProblem(UnaryProblem):
    """The layer norm or the RMS norm over some dimensions.

    y = (x - mean) / sqrt(variance + epsilon) * scale + bias, with mean and variance over the
    normalised dimensions. An RMS norm subtracts no mean, and its variance is the mean square of x.

    The weights `scale` and `bias` have the shape of the normalised dimensions.

    axes: indices of the normalised dimensions, from 0, in ascending order.
    epsilon: number that is added to the variance.
    centred: whether the mean is subtracted; False for an RMS norm.

    Raises ValueError if the input is not float32, or if `axes` is empty, not in ascending order or
    out of range.
    """

    op: ClassVar[str] = "layer_norm"
    axes: tuple[int, ...]
    epsilon: float = 1e-5
    centred: bool = True

    def __post_init__(self) -> None:
        if self.input.dtype != "float32":
            raise ValueError(f"a layer norm needs float32, not {self.input}")
        rank = len(self.input.shape)
        if not self.axes or sorted(set(self.axes)) != list(self.axes) or (
                not all(0 <= axis < rank for axis in self.axes)):
            raise ValueError(f"axes {self.axes} are not ascending dimensions of {self.input}")

    @property
    def normalised_shape(self) -> tuple[int, ...]:
        """Sizes of the normalised dimensions."""
        return tuple(self.input.shape[axis] for axis in self.axes)

    @property
    def count(self) -> int:
        """Number of elements that share a mean and a variance."""
        return math.prod(self.normalised_shape)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.input,)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"scale": self.normalised_shape, "bias": self.normalised_shape}

    @property
    def flops(self) -> int:
        # for each element: 1 for the mean, 3 for the variance, 4 for the result
        return (8 if self.centred else 5) * self.input.size

    def first_images(self, count: int) -> LayerNormProblem:
        return self if 0 in self.axes else replace(self, input=self.input.first(count))

    def describe(self) -> str:
        name = "layer norm" if self.centred else "RMS norm"
        return f"{name} over {','.join(map(str, self.axes))} of {self.input}"


def layer_norm(problem: LayerNormProblem, inputs: Sequence[np.ndarray],
               weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the result in the dtype of the input."""
    (x,) = inputs
    if x.size == 0:
        return [x.copy()]
    others = [axis for axis in range(x.ndim) if axis not in problem.axes]
    scale, bias = (np.expand_dims(np.asarray(weights[name], x.dtype), others)
                   for name in ("scale", "bias"))
    centred = x - x.mean(problem.axes, keepdims=True) if problem.centred else x
    variance = np.square(centred).mean(problem.axes, keepdims=True)
    factor = 1 / np.sqrt(variance + x.dtype.type(problem.epsilon))
    return [centred * factor * scale + bias]


reference = in_float64(layer_norm)
