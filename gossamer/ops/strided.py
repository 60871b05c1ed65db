"""What the small ops share: layouts, merged dimensions, index limits, and their host side."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import HostBuffer
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, from_memory

LAYOUTS = ("NCHW", "NHWC", "CHWN")
WORK_GROUP_SIZE = 256
"""Work-items a group of every kernel that walks its elements one by one."""

Strides = tuple[int, ...]


def in_layout(spec: TensorSpec, layout: str) -> TensorSpec:
    """The spec in that layout where it has rank 4, else the spec itself."""
    return spec.with_layout(layout) if len(spec.shape) == 4 else spec


def layout_variants(problem: Problem, layouts: Sequence[str] = LAYOUTS,
                    config: tuple[tuple[str, int | str], ...] = ()) -> list[Variant]:
    """One variant a layout, all rank-4 tensors in it; a single one where none has rank 4."""
    if all(len(spec.shape) != 4 for spec in (*problem.inputs, *problem.outputs)):
        return [Variant(config, problem.inputs, problem.outputs)]
    return [Variant(config, tuple(in_layout(spec, layout) for spec in problem.inputs),
                    tuple(in_layout(spec, layout) for spec in problem.outputs))
            for layout in layouts]


def merge(sizes: Sequence[int], walks: Sequence[Sequence[int]],
          marks: Sequence[Any] | None = None
          ) -> tuple[tuple[int, ...], list[Strides], tuple[Any, ...]]:
    """The same nest of loops with as few loops as can be: (sizes, walks, marks).

    sizes: of each dimension, outermost first. walks: for each tensor, its stride along each
    dimension. Dimensions of size 1 go, and neighbours that every tensor walks as one are merged,
    but for those whose mark is not None.
    """
    marks = [None] * len(sizes) if marks is None else marks
    kept: list[tuple[int, Any, list[int]]] = []
    for dim, (size, mark) in enumerate(zip(sizes, marks, strict=True)):
        strides = [walk[dim] for walk in walks]
        if size == 1 and mark is None:
            continue
        if kept and mark is None and kept[-1][1] is None:
            outer_size, _, outer = kept[-1]
            if all(o == s * size for o, s in zip(outer, strides, strict=True)):
                kept[-1] = (outer_size * size, None, strides)
                continue
        kept.append((size, mark, strides))
    merged = [tuple(strides[i] for _, _, strides in kept) for i in range(len(walks))]
    return tuple(k[0] for k in kept), merged, tuple(k[1] for k in kept)


def memory_order(spec: TensorSpec) -> list[int]:
    """The logical dimensions in the order in which memory holds them, outermost first."""
    return sorted(range(len(spec.shape)), key=lambda dim: -spec.strides[dim])


def dense_strides(sizes: Sequence[int]) -> Strides:
    """The strides of a row-major array of those sizes."""
    return tuple(int(np.prod(sizes[i + 1:], dtype=np.int64)) for i in range(len(sizes)))


def broadcast_strides(spec: TensorSpec, shape: Sequence[int]) -> Strides:
    """The strides by which a tensor is read over a shape it broadcasts to (0: repeated)."""
    missing = len(shape) - len(spec.shape)
    return (0,) * missing + tuple(
        0 if size == 1 else stride for size, stride in zip(spec.shape, spec.strides, strict=True))


def divisor(number: int) -> tuple[int, int, int]:
    """The arguments for the dialect's DIVISOR of a number from 1 to 2^31 - 1."""
    shift = (number - 1).bit_length()
    multiplier = -(-(1 << (31 + shift)) // number)
    # the kernel reads the same 32 bits as unsigned
    return number, multiplier - (1 << 32) if multiplier >= 1 << 31 else multiplier, shift


def groups_for(items: int) -> tuple[int, ...]:
    """The work-groups of WORK_GROUP_SIZE that cover so many work-items."""
    return (-(-items // WORK_GROUP_SIZE),)


def cannot_compile(problem: Problem, device: Device) -> str | None:
    """The reason why kernels with 32-bit indices cannot run this problem here; None: they can."""
    if not device.compiles:
        return "needs a device that compiles kernels"
    for spec in (*problem.inputs, *problem.outputs):
        if spec.dtype == "bits":
            return "does not work on packed bits"
        elements = int(np.prod(spec.stored_shape, dtype=np.int64))
        if elements >= 2**31:
            return f"a tensor of {elements} elements: indices are 32-bit"
    return None


class KernelAlgorithm(Algorithm):
    """One launch of a kernel that works in any layout; on float32, unless supports() is another,
    which its variants of precision fp16 keep as float16 in memory."""

    @abc.abstractmethod
    def kernel_launch(self, weights: Weights, problem: Any, variant: Variant,
                      device: Device) -> Launch:
        """The launch for outputs that are not empty."""

    def supports(self, problem: Any, device: Device) -> str | None:
        if problem.inputs[0].dtype != "float32":
            return f"takes float32, not {problem.inputs[0].dtype}"
        return cannot_compile(problem, device)

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        variants = layout_variants(problem)
        if problem.inputs[0].dtype == "float32":
            variants += [variant.as_fp16 for variant in variants]
        return variants

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        launch = self.kernel_launch(weights, problem, variant, device)
        return State(problem, variant, device, [launch])


class HostAlgorithm(Algorithm):
    """An op in NumPy: computes on logical views of the buffers, whatever their layout."""

    name = "numpy"

    @abc.abstractmethod
    def compute(self, problem: Any, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs for logical arrays in the problem's dtypes."""

    def supports(self, problem: Any, device: Device) -> str | None:
        return "runs on the host only" if device.compiles else None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        return layout_variants(problem)

    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        return State(problem, variant, device, data=weights.arrays)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        specs = state.variant.inputs
        arrays = [from_memory(_array(buffer, spec), spec)
                  for buffer, spec in zip(inputs, specs, strict=True)]
        results = self.compute(state.problem, arrays, state.data)
        for buffer, spec, result in zip(outputs, state.variant.outputs, results, strict=True):
            stored = _array(buffer, spec)
            if stored.size != spec.size:
                stored[...] = 0
            from_memory(stored, spec)[...] = result


def _array(buffer: Buffer, spec: TensorSpec) -> np.ndarray:
    assert isinstance(buffer, HostBuffer)
    return buffer.array(spec)


def spatial_inner(spec: TensorSpec) -> int:
    """A rank-4 tensor without paddings is (outer, H, W, inner) in memory; this is `inner`."""
    n, c = spec.shape[:2]
    return {"NCHW": 1, "NHWC": c, "CHWN": n}[spec.layout]


def work_shape(inner: int, out_width: int) -> tuple[int, int]:
    """How many neighbours a work-item makes of a result (outer, height, width, inner): four along
    `inner` where that fits, four along the width where there is no `inner`, else one."""
    if inner % 4 == 0:
        return 4, 1
    return (1, 4) if inner == 1 and out_width % 4 == 0 else (1, 1)
