"""The algorithms inverted_residual and separable compute a block of MobileNet as one kernel of the
dialect, which runs on any device that compiles kernels."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.region.algorithm import RegionAlgorithm
from gossamer.ops.region.inverted_residual.block import Block, block_of, epilogues, reason_apart
from gossamer.ops.region.problem import RegionProblem
from gossamer.ops.strided import cannot_compile, layout_variants
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("inverted_residual.cl")
_MOST_SUMS = 6
"""Units of the projection that fit the registers of a work-item."""
_OUTPUTS = (49, 64, 32, 16)
"""Outputs of a tile for all channels, about, those preferred first."""
_CHUNKS = (32, 16, 8)
_WORK_GROUPS = (64, 128, 256)
_MOST_SHARED = 48 * 1024
"""Bytes of shared memory beyond which a work-group is alone on a compute unit."""
_CONFIGS = 3
_AT_ONCE = 2
"""Work-groups of a compute unit that are computed at once."""
_PRODUCTS = 400.0
"""Multiplications of a work-item in a microsecond."""


@dataclass(frozen=True)
class _Tile:
    """The outputs of a work-group, and the hidden channels that it computes at once.

    rows, columns: the outputs. chunk: hidden channels. work_group: work-items.
    """

    rows: int
    columns: int
    chunk: int
    work_group: int

    def sums(self, block: Block) -> int:
        """Returns the units of the projection of a work-item."""
        units = -(-self.rows * self.columns // 4) * -(-block.out_channels // 4)
        return -(-units // self.work_group)

    def shared_bytes(self, block: Block) -> int:
        """Returns the bytes of shared memory of a work-group."""
        height, width = block.halo(self.rows, self.columns)
        return 4 * self.chunk * (height * width + -(-self.rows * self.columns // 4) * 4)

    def products(self, block: Block) -> float:
        """Returns the multiplications of a launch for an image, with those of windows that overlap
        and of outputs outside of the image."""
        p = block.depthwise
        tiles = -(-p.out_height // self.rows) * -(-p.out_width // self.columns)
        height, width = block.halo(self.rows, self.columns)
        pixels = min(height, p.height) * min(width, p.width)
        hidden = -(-block.hidden // self.chunk) * self.chunk
        outputs = -(-self.rows * self.columns // 4) * 4
        expanded = pixels * (block.channels if block.expand is not None else 1)
        # a tap costs the load of an input besides
        return tiles * hidden * (expanded + 2 * outputs * p.kernel[0] * p.kernel[1]
                                 + outputs * block.out_channels)


class _FusedBlock(RegionAlgorithm, abc.ABC):
    """A block as one kernel. expands: whether the block begins with an expansion."""

    expands: ClassVar[bool]

    def recognises(self, problem: RegionProblem) -> bool:
        return block_of(problem, self.expands) is not None

    def supports(self, problem: RegionProblem, device: Device) -> str | None:
        block = block_of(problem, self.expands)
        if block is None:
            return "the layers are no such block"
        if (reason := cannot_compile(problem, device) or reason_apart(block)) is not None:
            return reason
        if not _tiles(block, device):
            return (f"{block.hidden} hidden and {block.out_channels} output channels of a tile do "
                    f"not fit the registers and {device.limits.shared_bytes} bytes of shared "
                    "memory of a work-group")
        return None

    def variants(self, problem: RegionProblem, device: Device) -> Iterator[Variant]:
        block = block_of(problem, self.expands)
        assert block is not None
        for tile in _tiles(block, device)[:_CONFIGS]:
            config = (("rows", tile.rows), ("columns", tile.columns), ("chunk", tile.chunk),
                      ("work_group", tile.work_group))
            for variant in layout_variants(problem, ("NHWC",), config):
                yield variant
                yield variant.as_fp16

    def expected_us(self, problem: RegionProblem, variant: Variant, device: Device) -> float | None:
        block = block_of(problem, self.expands)
        assert block is not None
        tile = _Tile(*(variant[key] for key in ("rows", "columns", "chunk", "work_group")))
        p = block.depthwise
        tiles = -(-p.out_height // tile.rows) * -(-p.out_width // tile.columns)
        waves = -(-tiles * p.batch // (_AT_ONCE * max(1, device.limits.compute_units)))
        return waves * tile.products(block) / max(1, tiles) / (_PRODUCTS * tile.work_group)

    def prepare(self, weights: Weights, problem: RegionProblem, variant: Variant,
                device: Device) -> State:
        block = block_of(problem, self.expands)
        assert block is not None
        y = variant.outputs[0]
        if y.size == 0:
            return State(problem, variant, device)
        tile = _Tile(*(variant[key] for key in ("rows", "columns", "chunk", "work_group")))
        p, chunk = block.depthwise, tile.chunk
        hidden = -(-block.hidden // chunk) * chunk
        of_parts, last = epilogues(block), len(block.convolutions) - 1
        macros = {"EXPAND_EPILOGUE_PARAMETERS": ""}
        for prefix, (_, epilogue) in of_parts.items():
            macros |= epilogue_macros(epilogue, tensor_dtype=y.dtype, prefix=prefix)
        source = KernelSource.of(_SOURCE, "inverted_residual", {
            "TILE_H": tile.rows, "TILE_W": tile.columns, "CHUNK": chunk,
            "WORK_GROUP_SIZE": tile.work_group, "SUMS": tile.sums(block),
            "KERNEL_H": p.kernel[0], "KERNEL_W": p.kernel[1],
            "STRIDE_Y": p.stride[0], "STRIDE_X": p.stride[1],
            "EXPANDS": int(self.expands), "PADDED": int(hidden != block.hidden),
            "VECTOR": int(block.out_channels % 4 == 0),
            "HALVES": int(variant.precision == "fp16"), **macros})
        expand = (None if block.expand is None else
                  weights.packed(f"channels by {hidden}, expand", _pack_pointwise(0, hidden)))
        depthwise = weights.packed(f"taps by {hidden}, depthwise",
                                   _pack_depthwise(block.part(p), hidden))
        out_channels = -(-block.out_channels // 4) * 4
        project = weights.packed(f"{hidden} by channels, project", _pack_pointwise(
            block.part(block.project), out_channels, hidden))
        operands = [argument for number, epilogue in of_parts.values()
                    for argument in epilogue_arguments(
                        epilogue, weights, 0, block.convolutions[number].out_channels,
                        prefix=f"{number}.", multiple=4 if number == last else chunk)]
        launch = Launch(
            device.compile(source),
            (-(-p.out_width // tile.columns), -(-p.out_height // tile.rows), p.batch),
            (tile.work_group, 1, 1),
            (input_buffer(0), expand, depthwise, project, output_buffer(0), block.channels,
             block.hidden, hidden, block.out_channels, out_channels // 4, p.height, p.width,
             p.out_height, p.out_width, *p.pads[:2], *operands))
        return State(problem, variant, device, [launch])


class InvertedResidual(_FusedBlock):
    """An expansion, a depthwise convolution and a projection as one kernel, in which the expanded
    tensor stays in shared memory."""

    name = "inverted_residual"
    patterns = (("conv2d", "conv2d", "conv2d"),)
    expands = True


class Separable(_FusedBlock):
    """A depthwise convolution and a 1x1 convolution as one kernel, in which the tensor between them
    stays in shared memory."""

    name = "separable"
    patterns = (("conv2d", "conv2d"),)
    expands = False


def _tiles(block: Block, device: Device) -> list[_Tile]:
    """Returns the tiles that fit the device, those expected to be fastest first."""
    p = block.depthwise
    most = min(_MOST_SHARED, device.limits.shared_bytes)
    fitting = []
    for outputs in _OUTPUTS:
        # a tile is about as high as it is wide, and not larger than the image
        columns = max(1, min(p.out_width, round(outputs**0.5)))
        rows = max(1, min(p.out_height, outputs // columns))
        for chunk in _CHUNKS:
            tiles = [tile for work_group in _WORK_GROUPS
                     if work_group <= device.limits.sure_work_group_size
                     and (tile := _Tile(rows, columns, chunk, work_group)).sums(block) <= _MOST_SUMS
                     and tile.shared_bytes(block) <= most]
            if tiles:
                fitting.append(tiles[0])
                break
    return sorted(dict.fromkeys(fitting), key=lambda tile: tile.products(block))


def _pack_pointwise(part: int, columns: int, rows: int | None = None
                    ) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Returns a function that packs the weights of a 1x1 convolution as (input channels, output
    channels), with zeros beyond its own channels."""
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        weight = arrays[f"{part}.weight"].astype(np.float32)
        matrix = weight.reshape(weight.shape[0], -1).T
        packed = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
        packed[:matrix.shape[0], :matrix.shape[1]] = matrix
        return packed
    return pack


def _pack_depthwise(part: int, columns: int) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Returns a function that packs depthwise weights as (taps, channels)."""
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        weight = arrays[f"{part}.weight"].astype(np.float32)
        taps = weight.reshape(weight.shape[0], -1).T
        packed = np.zeros((taps.shape[0], columns), np.float32)
        packed[:, :taps.shape[1]] = taps
        return packed
    return pack
