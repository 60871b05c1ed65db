"""Evaluates an expression with the results -1, 0 and 1, such as a sign, and packs the results. The
expression's inputs are one tensor, and constants with one number for each channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, Epilogue, State, Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import channel_vector, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.packed import PackedParts, as_images, result_dtype
from gossamer.ops.strided import WORK_GROUP_SIZE, cannot_compile, divisor, groups_for, in_layout
from gossamer.ops.weights import Weights
from gossamer.tensor import ROW_MAJOR, Format, TensorSpec, rounded_up

_SOURCE = Path(__file__).with_name("packed.cl")
_PART_BITS = 32
_WORDS = ("packed64", "packed32")


class PackedElementwise(Algorithm):
    """One kernel that reads a tensor once and writes packed words. Without this kernel, one kernel
    would write the results as floats, and another kernel would pack the floats."""

    op = "elementwise"
    name = "packed"

    def supports(self, problem: ElementwiseProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if problem.dtypes != ("float32",) or any(
                operand.dtype != "float32" for operand in problem.operands):
            return "makes one float32 result of float32 operands"
        if len(problem.shape) not in (2, 4):
            return f"packs channels of 2 or 4 dimensions, not {len(problem.shape)}"
        if len(problem.inputs) != 1 or problem.inputs[0].shape != problem.shape:
            return "takes one tensor of the result's shape, and constants"
        if problem.formats:
            return "reads any format, not one alone"
        channels = problem.shape[1]
        for index in problem.constants:
            if not _is_of_channels(problem.operands[index].shape, channels, len(problem.shape)):
                return "a constant has other numbers than one a channel"
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

    def prepare(self, weights: Weights, problem: ElementwiseProblem, variant: Variant,
                device: Device) -> State:
        source, target = as_images(variant.inputs[0]), as_images(variant.outputs[0])
        if target.size == 0:
            return State(problem, variant, device)
        images, channels, height, width = target.shape
        strides, words = source.strides, PackedParts.of(target)
        (tensor,) = (index for index in range(len(problem.operands))
                     if index not in problem.constants)
        expression = problem.expression.with_inputs((tensor, *problem.constants))
        fours = channels % _PART_BITS == 0 and strides[1] == 1
        kernel = device.compile(KernelSource.of(_SOURCE, "pack_results", {
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
        return State(problem, variant, device, [Launch(
            kernel, groups_for(count), (WORK_GROUP_SIZE,),
            (input_buffer(0), output_buffer(0), count, *divisor(pixels), *divisor(words.count),
             channels, strides[0], strides[1], strides[3], *constants))])


def _is_of_channels(shape: tuple[int, ...], channels: int, rank: int) -> bool:
    """Whether a constant has a single number, or one number for each channel of a tensor with
    `rank` dimensions."""
    padded = (1,) * (rank - len(shape)) + shape
    return padded[1] in (1, channels) and all(
        size == 1 for axis, size in enumerate(padded) if axis != 1)
