"""Binary convolution on CPUs, by code that LLVM compiles.

A word holds the signs of 64 input channels. In the exclusive or of a word of inputs and a word of
weights, each set bit stands for a product that is -1. Set bits are counted for a vector of output
channels at a time. Source: M. Rastegari et al., "XNOR-Net" (ECCV 2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import address_of
from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.device.native.processor import Processor, function
from gossamer.ops.algorithm import Problem, State, Variant
from gossamer.ops.conv2d.binary.algorithm import BinaryAlgorithm
from gossamer.ops.conv2d.binary.constants import Constants
from gossamer.ops.conv2d.binary.layer import BinaryLayer, processor_us
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.generated import GeneratedCode
from gossamer.ops.host_threads import THREADS, thread_configs, workers
from gossamer.ops.weights import Weights
from gossamer.tensor import PACKED_DTYPES, Format, TensorSpec

if TYPE_CHECKING:
    from gossamer.ops.conv2d.binary.host_direct_code import Tile

_BITS = 64
_CHUNK = 64
"""Maximum number of pixel tiles that a task computes."""
_MOST_PIXELS = 2**24
"""Maximum number of output pixels of an image. The limit bounds the size of a table that holds, for
each pixel, the index of its row of initial accumulators."""
_WORDS_PER_MICROSECOND = 4000.0
"""64-bit words that a thread compares per microsecond, measured with AVX2 on an AMD EPYC."""


class HostDirectPopcount(BinaryAlgorithm, GeneratedCode):
    """Binary convolution by code generated for this CPU.

    The `data` of the states is a `Work`.
    """

    name = "host_direct_popcount"
    by_image = True

    def reason_not(self, layer: BinaryLayer, device: Device) -> str | None:
        return native.unavailable(device) or layer.reason_not_binary() or refusal(layer)

    def layer_us(self, layer: BinaryLayer, variant: Variant, device: Device) -> float:
        return processor_us(layer.convolution, _WORDS_PER_MICROSECOND, device)

    def variants_of(self, layer: BinaryLayer, inputs: Sequence[TensorSpec],
                    outputs: Sequence[TensorSpec], device: Device) -> Iterator[Variant]:
        x, *operands = inputs
        packed = TensorSpec(x.shape, Format(f"packed{_BITS}", layer.form.input))
        *floats, y = outputs
        if layer.form.output is not None:
            y = TensorSpec(y.shape, Format(f"packed{_BITS}", layer.form.output))
        problem = layer.convolution
        products = problem.depth * problem.out_channels * problem.image_pixels
        for threads in thread_configs(products // 8):
            for source in (packed, x):
                yield Variant(threads, (source, *operands), (*floats, y))

    def state_of(self, weights: Weights, layer: BinaryLayer, problem: Problem, variant: Variant,
                 device: Device) -> State:
        return State(problem, variant, device, data=Work.of(weights, layer, variant))

    def jobs(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
             workspace: Buffer | None, images: int | None = None) -> list[Job]:
        work: Work = state.data
        return work.jobs(inputs, outputs, work.images if images is None else images)


def refusal(layer: BinaryLayer) -> str | None:
    """Return why generated code cannot compute a layer; None if it can."""
    from gossamer.device.native.code import unsupported

    problem = layer.convolution
    if problem.groups != 1:
        return "has groups"
    if not problem.depth:
        return "has no input channels"
    if problem.image_pixels > _MOST_PIXELS:
        return f"the output has more than {_MOST_PIXELS} pixels"
    return unsupported(problem.epilogue.expression, 2)


def _ends_in_signs(layer: BinaryLayer) -> bool:
    """Return whether the only output is a sign that depends on the accumulator alone."""
    return layer.form.output is not None and not layer.has_two_results and (
        not layer.convolution.epilogue.tensor_count)


class Work(NamedTuple):
    """Sizes and arguments for calling a layer's generated code.

    code: the function.
    threads: number of threads.
    images: number of images of the layer.
    tasks: number of tasks per image.
    scratch: bytes of the padded or packed copy of an image.
    fixed: the arguments that are the same in every call.
    operands: for each operand of the epilogue, the address of its constant; None for a run-time
    input.
    source: bytes of an image of the input.
    target: bytes of an image of a float32 output.
    packed: bytes of an image of the packed output, 0 if there is none.
    arrays: the arrays whose addresses are arguments, kept alive here.
    """

    code: Function
    threads: int
    images: int
    tasks: int
    scratch: int
    fixed: tuple[int, ...]
    operands: tuple[int | None, ...]
    source: int
    target: int
    packed: int
    arrays: tuple[np.ndarray, ...]

    @staticmethod
    def of(weights: Weights, layer: BinaryLayer, variant: Variant, rows: int | None = None
           ) -> Work:
        """Return the work of a layer.

        rows: number of rows of a matrix product; None for a convolution. The rows are computed as
        the pixels of a single image whose channels are contiguous.
        """
        from gossamer.ops.conv2d.binary.host_direct_code import Shape, signs

        problem = layer.convolution
        constants = Constants.of(weights, layer)
        thresholds = constants.thresholds if _ends_in_signs(layer) else None
        top, left, bottom, right = problem.pads
        words = -(-problem.channels // _BITS)
        packs = not variant.inputs[0].format.is_packed
        last = variant.outputs[-1]
        out_planes = PACKED_DTYPES[last.dtype].planes if last.format.is_packed else 0
        base, borders = _borders(constants.base, problem)
        shape = Shape(
            problem.channels, words, layer.form.planes, packs, (problem.height, problem.width),
            (top + problem.height + bottom, left + problem.width + right), (top, left),
            problem.stride, words * problem.taps, problem.out_channels,
            (problem.out_height, problem.out_width) if rows is None else (rows, 1),
            rows is not None,
            problem.epilogue.operands, problem.epilogue.expression, thresholds is not None,
            not variant.outputs[0].format.is_packed, out_planes, len(base) > 1)
        tile = _tile(native.processor(), shape.pixels)
        code = function("signs", native.processor(), signs, shape, tile, _CHUNK)
        blocks = -(-problem.out_channels // tile.channels)
        filled = blocks * tile.channels

        def wide(array: np.ndarray) -> np.ndarray:
            """Pad the last axis, the channels, to a multiple of the tile's channels."""
            padding = [(0, 0)] * (array.ndim - 1) + [(0, filled - array.shape[-1])]
            return np.ascontiguousarray(np.pad(array, padding))

        limits = np.zeros((3, filled), np.int32) if thresholds is None else wide(np.stack(
            [thresholds.lower, thresholds.upper, thresholds.direction < 0]).astype(np.int32))
        panels = np.ascontiguousarray(wide(constants.words[0].T).reshape(
            shape.steps, blocks, tile.channels).swapaxes(0, 1))
        row = shape.padded[1]
        taps = [r * problem.dilation[0] * row + s * problem.dilation[1]
                for r, s in np.ndindex(problem.kernel)]
        offsets = 8 * layer.form.planes * np.add.outer(
            np.arange(words) * shape.padded[0] * row, taps).astype(np.int32)
        arrays = (np.ascontiguousarray(constants.outside), offsets, panels,
                  borders, wide(base), *limits,
                  wide(constants.alphas.astype(np.float32)))
        channels = [wide(constants.operands[f"operand{index}"].reshape(-1))
                    if kind == "channel" else None
                    for index, kind in enumerate(problem.epilogue.operands)]
        chunks = -(-shape.pixels // (tile.pixels * _CHUNK))
        out_words = -(-problem.out_channels // _BITS)
        tasks = chunks * (out_words * (_BITS // tile.channels) if out_planes else blocks)
        return Work(
            code, workers(variant[THREADS]), problem.batch if rows is None else 1, tasks,
            shape.copy_bytes,
            tuple(map(native.address, arrays)),
            tuple(None if array is None else native.address(array) for array in channels),
            variant.inputs[0].nbytes // max(problem.batch, 1),
            4 * problem.out_channels * shape.pixels, 8 * out_planes * out_words * shape.pixels,
            (*arrays, *(array for array in channels if array is not None)))

    def jobs(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], images: int) -> list[Job]:
        """Return the jobs that compute the first `images` images."""
        x, *tensors = map(address_of, inputs)
        *_, last = addresses = list(map(address_of, outputs))
        listed = []
        for image in range(images if self.tasks else 0):
            given = iter(tensors)
            operands = [next(given) + image * self.target if constant is None else constant
                        for constant in self.operands]
            listed.append(Job(self.code, (
                x + image * self.source, last + image * (self.packed or self.target),
                addresses[0] + image * self.target, *self.fixed, *operands), self.tasks,
                max(-(-self.tasks // self.threads), 1), self.scratch))
        return listed


def _borders(base: np.ndarray, problem: Conv2dProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of initial accumulators, and each pixel's row index.

    The rows have shape (count, M), where M is the number of output channels. Pixels whose windows
    extend equally far beyond the image share a row.
    """
    first, kinds = [], []
    for axis, size in enumerate(base.shape[1:]):
        starts = np.arange(size) * problem.stride[axis] - problem.pads[axis]
        reach = problem.dilation[axis] * (problem.kernel[axis] - 1)
        room = (problem.height, problem.width)[axis] - reach
        out = np.stack([np.minimum(starts, 0), np.maximum(starts - room + 1, 0)])
        _, indices, inverse = np.unique(out, axis=1, return_index=True, return_inverse=True)
        first.append(indices)
        kinds.append(inverse.reshape(-1))
    own = base[:, first[0][:, None], first[1]].reshape(len(base), -1).T
    borders = np.add.outer(kinds[0] * len(first[1]), kinds[1])
    return np.ascontiguousarray(own, np.int32), borders.astype(np.int32).reshape(-1)


def _tile(target: Processor, pixels: int) -> Tile:
    """Choose the tile of accumulators for a CPU.

    The accumulators take half of the vector registers. A tile has 8 to 64 channels, so the bits of
    its channels are whole bytes of one word.
    """
    from gossamer.ops.conv2d.binary.host_direct_code import Tile

    lanes = max(target.lanes // 2, 2)
    sums = target.registers // 2
    together = min(4 if sums // 4 * lanes >= 8 else 2, max(pixels, 1))
    vectors = min(sums // together, _BITS // lanes)
    while vectors & (vectors - 1):
        vectors -= 1
    return Tile(together, vectors, lanes, "+avx512vpopcntdq" in target.features)
