"""Transposes, slices and reshapes one after another, as one strided copy.

Examples are the patches or windows of an image: they are transposes between reshapes, which cannot
be one transpose. If the image is stored with its channels last, the copy reads it as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gossamer.device.base import Device
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.copy.strided import ELEMENTS, StridedLoops, copy_launches
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.fused.views import view_of
from gossamer.ops.launch import input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile, in_layout, merge
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_MOST_LOOPS = 6
"""Maximum number of loops of a copy."""


class StridedMoves(FusionAlgorithm):
    """One launch that copies elements to where all the copies and reshapes would move them."""

    name = "strided"
    patterns = (("copy", "copy"), ("copy", "reshape"), ("reshape", "copy"))
    takes_moves = True

    def recognises(self, problem: FusionProblem) -> bool:
        return all(part.op in ("copy", "reshape") for part in problem.parts) and (
            any(part.op == "copy" for part in problem.parts)
            and loops_of(problem, problem.inputs, problem.outputs) is not None)

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if problem.inputs[0].stored_dtype.itemsize not in ELEMENTS:
            return f"does not copy elements of {problem.inputs[0].stored_dtype.itemsize} bytes"
        if not self.recognises(problem):
            return "needs copies and reshapes of one value"
        return cannot_compile(problem, device)

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        layouts = [("NCHW", "NHWC") if len(spec.shape) == 4 else (spec.layout,)
                   for spec in (*problem.inputs, *problem.outputs)]
        for source, target in itertools.product(*layouts):
            variant = Variant((), (in_layout(problem.inputs[0], source),),
                              (in_layout(problem.outputs[0], target),))
            if loops_of(problem, variant.inputs, variant.outputs) is not None:
                yield variant
                if problem.inputs[0].dtype == "float32":
                    yield variant.as_fp16

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        loops = loops_of(problem, variant.inputs, variant.outputs)
        assert loops is not None  # variants() has found them
        return State(problem, variant, device, copy_launches(
            device, variant.inputs[0].stored_dtype.itemsize, loops, input_buffer(0),
            output_buffer(0)))


def loops_of(problem: FusionProblem, inputs: Sequence[TensorSpec],
           outputs: Sequence[TensorSpec]) -> StridedLoops | None:
    """Return the loops of a copy that does the same; None if there are too many, or none."""
    if len(inputs) != 1 or len(outputs) != 1 or 0 in outputs[0].shape:
        return None
    scaled = view_of(problem, problem.exits[0], inputs)
    if scaled is None or scaled.factor != 1:
        return None
    sizes, froms, tos = [], [], []
    for loops, stride in zip(scaled.view.dims, outputs[0].strides, strict=True):
        for size, source in reversed(loops):
            sizes.append(size)
            froms.append(source)
            tos.append(stride)
            stride *= size
    order = sorted(range(len(sizes)), key=lambda loop: -tos[loop])
    merged, _, _ = merge([sizes[loop] for loop in order],
                         [[strides[loop] for loop in order] for strides in (froms, tos)])
    if len(merged) > _MOST_LOOPS:
        return None
    return StridedLoops(tuple(sizes), tuple(froms), tuple(tos), scaled.view.offset)
