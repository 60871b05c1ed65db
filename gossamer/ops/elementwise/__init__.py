"""Algorithms of element-wise arithmetic.

A problem is a whole expression. One call or kernel computes all of its steps. fused.py has the
algorithm that computes any expression on a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.elementwise.fused import FusedElementwise
from gossamer.ops.elementwise.host_direct import HostDirectElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem, compute, reference
from gossamer.ops.epilogue import channel_vector, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.op import Op
from gossamer.ops.packed import PackedParts, as_images, result_dtype
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    HostAlgorithm,
    KernelAlgorithm,
    cannot_compile,
    divisor,
    groups_for,
    in_layout,
    layout_variants,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec, rounded_up

_PACKED = Path(__file__).with_name("packed.cl")
_PUBLISHED_LEAKY = Path(__file__).with_name("published_leaky.cl")
_PART_BITS = 32
_WORDS = ("packed64", "packed32")
_PUBLISHED_WORK_GROUP = 512


class NumpyElementwise(HostAlgorithm):
    """Evaluation of the expression step by step in NumPy."""

    op = "elementwise"

    def compute(self, problem: ElementwiseProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return compute(problem, inputs, weights, problem.arithmetic)

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterable[Variant]:
        return list(map(problem.reading, layout_variants(problem)))


class PackedElementwise(KernelAlgorithm):
    """One kernel that reads a tensor once and writes packed words.

    The results of the expression must be -1, 0 or 1, as a sign function returns them. The operands
    are one tensor, and constants. Each constant has a single number or one number per channel.
    Without this kernel, one kernel would write float results, and a second kernel would pack them.
    """

    op = "elementwise"
    name = "packed"

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.dtypes != ("float32",) or any(
                operand.dtype != "float32" for operand in problem.operands):
            return "computes one float32 result from float32 operands"
        if len(problem.shape) not in (2, 4):
            return f"packs tensors of rank 2 or 4, not {len(problem.shape)}"
        if len(problem.inputs) != 1 or problem.inputs[0].shape != problem.shape:
            return "needs exactly one run-time input, of the result's shape"
        if problem.formats:
            return "cannot read inputs whose format is fixed"
        channels = problem.shape[1]
        for index in problem.constants:
            shape = problem.operands[index].shape
            if not _is_scalar_or_per_channel(shape, channels, len(problem.shape)):
                return "needs constants with one number, or one per channel"
        if result_dtype(problem.expression) is None:
            return "its results are not known to be -1, 0 or 1"
        return None

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterator[Variant]:
        dtype = result_dtype(problem.expression)
        assert dtype is not None
        for layout in ("NHWC", "NCHW") if len(problem.shape) == 4 else (ROW_MAJOR,):
            for words in _WORDS:
                variant = Variant((), (in_layout(problem.inputs[0], layout),),
                                  (TensorSpec(problem.shape, Format(words, dtype)),))
                yield variant
                yield variant.as_fp16

    def kernel_launches(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        source, target = as_images(variant.inputs[0]), as_images(variant.outputs[0])
        images, channels, height, width = target.shape
        strides, words = source.strides, PackedParts.of(target)
        (tensor,) = (index for index in range(len(problem.operands))
                     if index not in problem.constants)
        expression = problem.expression.with_inputs((tensor, *problem.constants))
        fours = channels % _PART_BITS == 0 and strides[1] == 1
        kernel = device.compile(KernelSource.of(_PACKED, "pack_results", {
            "HALVES": int(variant.precision == "fp16"), "TARGET_PLANES": words.planes,
            "TARGET_PARTS": words.parts, "FOURS": int(fours),
            **epilogue_macros(Epilogue(expression, ("channel",) * len(problem.constants))),
        }))
        padded = rounded_up(channels, _PART_BITS)
        constants: list[Argument] = [
            weights.packed(f"operand{index} padded to {padded}",
                           channel_vector(f"operand{index}", channels, padded))
            for index in problem.constants]
        pixels = height * width
        count = images * words.count * pixels
        return [Launch(kernel, groups_for(count), (WORK_GROUP_SIZE,), (
            input_buffer(0), output_buffer(0), count, *divisor(pixels), *divisor(words.count),
            channels, strides[0], strides[1], strides[3], *constants))]


def _is_scalar_or_per_channel(shape: tuple[int, ...], channels: int, rank: int) -> bool:
    """Return whether a constant has a single number or one number per channel.

    channels, rank: number of channels and of dimensions of the tensor.
    """
    padded = (1,) * (rank - len(shape)) + shape
    return padded[1] in (1, channels) and all(
        size == 1 for axis, size in enumerate(padded) if axis != 1)


class PublishedLeaky(KernelAlgorithm):
    """The leaky ReLU of the published OpenCL program (see conv2d/dense/published.py).

    The kernel is not fused with other steps. Each work-item computes one element. Work-groups have
    512 work-items, or fewer if the device does not allow 512.
    """

    op = "elementwise"
    name = "published"
    by_name_only = True

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        expression = problem.expression
        if ([step.function for step in expression.steps] != ["leaky_relu"]
                or expression.outputs != (1,)):
            return "computes only a single leaky ReLU"
        if problem.constants or {spec.dtype for spec in (*problem.inputs, *problem.outputs)} != {
                "float32"}:
            return "needs one float32 input at run time, and no constants"
        return cannot_compile(problem, device)

    def variants(self, problem: ElementwiseProblem, device: Device) -> Iterable[Variant]:
        return layout_variants(problem)

    def kernel_launches(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                       device: Device) -> list[Launch]:
        elements = variant.outputs[0].size
        work_group = min(_PUBLISHED_WORK_GROUP, device.limits.work_group_size)
        (step,) = problem.expression.steps
        kernel = device.compile(KernelSource.of(_PUBLISHED_LEAKY, "leaky_relu",
                                                {"WORK_GROUP_SIZE": work_group}))
        return [Launch(kernel, (-(-elements // work_group),), (work_group,), (
            input_buffer(0), output_buffer(0), elements, float(step.constants[0])))]


OP = Op("elementwise", ElementwiseProblem, reference,
        (NumpyElementwise(), FusedElementwise(), PackedElementwise(), HostDirectElementwise(),
         PublishedLeaky()))
