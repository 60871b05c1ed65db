"""Strided copies: transposes, slices, splits, broadcasts and changes of format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import ValueFacts, precision_of_values
from gossamer.ops.op import UnaryProblem
from gossamer.tensor import PACKED_DTYPES, TensorSpec, default_spec


@dataclass(frozen=True)
class CopyProblem(UnaryProblem):
    """A strided copy.

    The output at index 0 is the input at position `starts`. When the output index along dimension
    k grows by 1, the input position moves by steps[k] along dimension dims[k].

    input, output: specs of the tensors. If either is not in the default format, the copy changes
    the format, and sets the padding of the output to zero.
    dims: for each output dimension, the corresponding input dimension; None if the input is
    broadcast along the output dimension.
    steps: for each output dimension, the stride in positions of the input. Strides may be negative.
    starts: for each input dimension, the position that is copied to output index 0.
    facts: value facts of the input; empty if nothing is known.

    A copy converts between float32, float16 and packed dtypes, and keeps other dtypes.

    Raises ValueError if the copy would read outside the input.
    """

    op: ClassVar[str] = "copy"
    output: TensorSpec
    dims: tuple[int | None, ...]
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    facts: tuple[ValueFacts, ...] = ()

    def __post_init__(self) -> None:
        dtypes = {self.input.dtype, self.output.dtype} - PACKED_DTYPES.keys()
        if self.converts and not dtypes <= {"float32", "float16"}:
            raise ValueError(f"a copy keeps the dtype, got {self.input} -> {self.output}")
        if len(self.dims) != len(self.output.shape) or len(self.steps) != len(self.dims):
            raise ValueError(f"dims {self.dims} and steps {self.steps} do not fit {self.output}")
        if len(self.starts) != len(self.input.shape):
            raise ValueError(f"starts {self.starts} do not fit {self.input}")
        if self.output.size == 0:
            return
        low, high = list(self.starts), list(self.starts)
        for size, dim, step in zip(self.output.shape, self.dims, self.steps, strict=True):
            if dim is not None:
                low[dim] += min(0, step * (size - 1))
                high[dim] += max(0, step * (size - 1))
        if any(first < 0 or last >= size
               for first, last, size in zip(low, high, self.input.shape, strict=True)):
            raise ValueError(f"the copy reads positions {low} to {high}, which are not all in "
                             f"{self.input}")

    @property
    def converts(self) -> bool:
        """Whether the dtypes of input and output differ."""
        return self.input.dtype != self.output.dtype

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (self.output,)

    @property
    def exact_precision(self) -> str:
        return precision_of_values(self.facts)

    @property
    def flops(self) -> int:
        return 0

    @property
    def least_bytes(self) -> int:
        if self.input.format.is_packed:
            return self.input.nbytes + self.output.nbytes
        read = min(self.input.size, self.output.size) * self.input.stored_dtype.itemsize
        return read + self.output.nbytes

    def first_images(self, count: int) -> CopyProblem:
        if (not self.dims or self.dims[0] != 0 or 0 in self.dims[1:] or self.steps[0] != 1
                or self.input.shape[0] != self.output.shape[0]):
            return self
        return replace(self, input=self.input.first(count), output=self.output.first(count))

    @property
    def is_free_of_format(self) -> bool:
        """Whether the copy only moves elements, so that it may use any layout.

        Both specs then have the default format of the same dtype.
        """
        return not self.converts and all(
            not spec.format.is_packed and spec == default_spec(spec.shape, spec.dtype)
            for spec in (self.input, self.output))

    def then(self, other: CopyProblem) -> CopyProblem:
        """Return one copy in place of this copy and a copy of its output.

        Both are free of format.
        """
        starts = list(self.starts)
        for dim, step, start in zip(self.dims, self.steps, other.starts, strict=True):
            if dim is not None:
                starts[dim] += step * start
        dims = tuple(None if dim is None else self.dims[dim] for dim in other.dims)
        steps = tuple(step if dim is None else step * self.steps[dim]
                      for dim, step in zip(other.dims, other.steps, strict=True))
        return CopyProblem(self.input, other.output, dims, steps, tuple(starts), self.facts)

    def describe(self) -> str:
        return f"{self.input} -> {self.output}"


def convert(source: TensorSpec, target: TensorSpec,
            facts: tuple[ValueFacts, ...] = ()) -> CopyProblem:
    """Return the copy of a tensor to another format.

    facts: value facts of the tensor; empty if nothing is known.

    Raises ValueError if the shapes differ, or if a copy cannot convert between the dtypes.
    """
    rank = len(source.shape)
    if source.shape != target.shape:
        raise ValueError(f"a change of layout keeps the shape, got {source} -> {target}")
    return CopyProblem(source, target, tuple(range(rank)), (1,) * rank, (0,) * rank, facts)


def transpose(source: TensorSpec, permutation: Sequence[int]) -> CopyProblem:
    """Return the copy that transposes a tensor.

    permutation: for each output dimension, the corresponding input dimension.

    Raises ValueError for an invalid permutation.
    """
    rank = len(source.shape)
    if sorted(permutation) != list(range(rank)):
        raise ValueError(f"permutation {tuple(permutation)} does not fit {source}")
    shape = tuple(source.shape[dim] for dim in permutation)
    return CopyProblem(source, default_spec(shape, source.dtype), tuple(permutation),
                       (1,) * rank, (0,) * rank)


def slice_(source: TensorSpec, starts: Sequence[int], ends: Sequence[int],
           axes: Sequence[int] | None = None, steps: Sequence[int] | None = None) -> CopyProblem:
    """Return the copy that takes a slice, as the ONNX operator Slice defines it.

    Starts and ends may be negative or out of range. Raises ValueError for a step of 0.
    """
    rank = len(source.shape)
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    bounds = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ValueError("a slice needs a step other than 0")
        bounds[axis] = slice(start, end, step)
    ranges = [range(size)[bound] for size, bound in zip(source.shape, bounds, strict=True)]
    return CopyProblem(source, default_spec(tuple(map(len, ranges)), source.dtype),
                       tuple(range(rank)), tuple(r.step for r in ranges),
                       tuple(r.start for r in ranges))


def split(source: TensorSpec, axis: int, sizes: Sequence[int]) -> tuple[CopyProblem, ...]:
    """Return one copy for each output of a split along an axis.

    Raises ValueError if the sizes do not add up to the size of the axis.
    """
    size = source.shape[axis]
    if sum(sizes) != size:
        raise ValueError(f"sizes {tuple(sizes)} do not add up to the size of axis {axis} of "
                         f"{source}")
    ends = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    return tuple(slice_(source, [end - part], [end], [axis])
                 for part, end in zip(sizes, ends, strict=True))


def expand(source: TensorSpec, shape: Sequence[int]) -> CopyProblem:
    """Return the copy that broadcasts a tensor to a shape, by NumPy's rules.

    Raises ValueError if the tensor does not broadcast to the shape.
    """
    missing = len(shape) - len(source.shape)
    dims: list[int | None] = [None] * missing
    for dim, (have, want) in enumerate(zip(source.shape, shape[missing:], strict=True)):
        if have not in (1, want):
            raise ValueError(f"{source} does not broadcast to {tuple(shape)}")
        dims.append(dim if have == want else None)
    return CopyProblem(source, default_spec(tuple(shape), source.dtype), tuple(dims),
                       (1,) * len(shape), (0,) * len(source.shape))


def reference(problem: CopyProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = np.ascontiguousarray(inputs[0]).reshape(problem.input.shape)
    if problem.output.size == 0:
        return [np.empty(problem.output.shape, x.dtype)]
    strides = [0 if dim is None else step * x.strides[dim]
               for dim, step in zip(problem.dims, problem.steps, strict=True)]
    origin = x[tuple(slice(start, None) for start in problem.starts)]
    # CopyProblem has checked that all positions are inside the input
    view = np.lib.stride_tricks.as_strided(origin, problem.output.shape, strides)
    # converting float16 to a wider dtype changes no value, so only float16 outputs are converted
    return [view.astype(np.float16) if problem.converts and problem.output.dtype == "float16"
            else view.copy()]
