"""The tiles and the two main launches of squeeze_excite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.fused.inverted_residual.block import Block, epilogues
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights

RunTimeBuffer = Callable[..., Argument]
"""A function that a Launch calls to get a run-time buffer."""

_SOURCE = Path(__file__).with_name("excited_block.cl")
_MOST_SUMS = 6
"""Maximum number of units of the projection whose accumulators fit the registers of a work-item. A
unit is four pixels by four channels."""
_OUTPUTS = (49, 64, 32, 16)
"""Approximate numbers of output pixels of the candidate tiles."""
_CHUNKS = (32, 16, 8)
_WORK_GROUPS = (64, 128, 256)
_MOST_SHARED = 48 * 1024
"""Maximum bytes of shared memory per work-group. If work-groups had more, only one of them would
fit on a compute unit."""
CONFIGS = 3
"""Number of candidate tiles per block."""
_AT_ONCE = 2
"""Number of work-groups that a compute unit runs at once. This number and _PRODUCTS are rules of
thumb that affect only the order in which tiles are tried."""
_PRODUCTS = 400.0
"""Number of multiplications per work-item and microsecond."""


@dataclass(frozen=True)
class Tile:
    """A work-group's tile of outputs, and the number of hidden channels per chunk.

    rows: rows of outputs.
    columns: columns of outputs.
    chunk: number of hidden channels that are computed at once.
    work_group: number of work-items.
    """

    rows: int
    columns: int
    chunk: int
    work_group: int

    def sums(self, block: Block) -> int:
        """Return the number of units of the projection that a work-item computes."""
        units = -(-self.rows * self.columns // 4) * -(-block.out_channels // 4)
        return -(-units // self.work_group)

    def hidden(self, block: Block) -> int:
        """Return the number of hidden channels, rounded up to a multiple of the chunk."""
        return -(-block.hidden // self.chunk) * self.chunk

    def shared_bytes(self, block: Block) -> int:
        """Return the bytes of shared memory per work-group."""
        height, width = block.halo(self.rows, self.columns)
        return 4 * self.chunk * (height * width + -(-self.rows * self.columns // 4) * 4)

    def products(self, block: Block) -> float:
        """Return the number of multiplications of a launch for one image.

        An input pixel that several tiles read is counted once per tile. Outputs beyond the edge of
        the image are also counted.
        """
        p = block.depthwise
        tiles = self.count(block)
        height, width = block.halo(self.rows, self.columns)
        pixels = min(height, p.height) * min(width, p.width)
        hidden = self.hidden(block)
        outputs = -(-self.rows * self.columns // 4) * 4
        expanded = pixels * (block.channels if block.expand is not None else 1)
        # loading the input of a tap costs about as much as the multiplication, hence the factor 2
        return tiles * hidden * (expanded + 2 * outputs * p.kernel[0] * p.kernel[1]
                                 + outputs * block.out_channels)

    def count(self, block: Block) -> int:
        """Return the number of tiles per image."""
        p = block.depthwise
        return -(-p.out_height // self.rows) * -(-p.out_width // self.columns)

    def expected_us(self, block: Block, device: Device) -> float:
        """Return the expected time of all images in microseconds."""
        tiles = self.count(block)
        waves = -(-tiles * block.depthwise.batch
                  // (_AT_ONCE * max(1, device.limits.compute_units)))
        return waves * self.products(block) / max(1, tiles) / (_PRODUCTS * self.work_group)


def fitting_tiles(block: Block, device: Device) -> list[Tile]:
    """Return the tiles that fit the device, fewest multiplications first."""
    p = block.depthwise
    most = min(_MOST_SHARED, device.limits.shared_bytes)
    fitting = []
    for outputs in _OUTPUTS:
        # tiles are approximately square, and not larger than the image
        columns = max(1, min(p.out_width, round(outputs**0.5)))
        rows = max(1, min(p.out_height, outputs // columns))
        for chunk in _CHUNKS:
            tiles = [tile for work_group in _WORK_GROUPS
                     if work_group <= device.limits.sure_work_group_size
                     and (tile := Tile(rows, columns, chunk, work_group)).sums(block) <= _MOST_SUMS
                     and tile.shared_bytes(block) <= most]
            if tiles:
                fitting.append(tiles[0])
                break
    return sorted(dict.fromkeys(fitting), key=lambda tile: tile.products(block))


def block_launch(weights: Weights, block: Block, tile: Tile, variant: Variant, device: Device,
                 x: RunTimeBuffer, y: RunTimeBuffer, *, totals: RunTimeBuffer | None = None,
                 gates: RunTimeBuffer | None = None) -> Launch:
    """Return the launch that computes the convolutions before the gates, or the projection.

    totals: where the sum of each channel over each tile is written. The launch then computes the
    expansion and the depthwise convolution, and writes the results to y.
    gates: factors of the hidden channels. Without `totals`, x holds the results of the depthwise
    convolution. The launch multiplies them by the gates and computes the projection.
    """
    assert block.excite is not None
    convolves = totals is not None
    p, chunk = block.depthwise, tile.chunk
    hidden, out_channels = tile.hidden(block), -(-block.out_channels // 4) * 4
    expands = convolves and block.expand is not None
    computed = {"EXPAND_": expands, "DEPTHWISE_": convolves, "PROJECT_": not convolves}
    macros: dict[str, object] = {f"{prefix}EPILOGUE_PARAMETERS": "" for prefix in computed}
    operands = []
    for prefix, (number, epilogue) in epilogues(block).items():
        if computed[prefix]:
            macros |= epilogue_macros(epilogue, tensor_dtype=variant.outputs[0].dtype,
                                      prefix=prefix)
            is_last = prefix == "PROJECT_"
            operands += epilogue_arguments(
                epilogue, weights, 0, block.out_channels if is_last else block.hidden,
                prefix=f"{number}.", multiple=4 if is_last else chunk)
    macros |= epilogue_macros(block.excite.scale, prefix="SCALE_")
    kernel, stride = (p.kernel, p.stride) if convolves else ((1, 1), (1, 1))
    source = KernelSource.of(_SOURCE, "excited_block", {
        "TILE_H": tile.rows, "TILE_W": tile.columns, "CHUNK": chunk,
        "WORK_GROUP_SIZE": tile.work_group, "SUMS": tile.sums(block),
        "KERNEL_H": kernel[0], "KERNEL_W": kernel[1],
        "STRIDE_Y": stride[0], "STRIDE_X": stride[1],
        "EXPANDS": int(expands), "CONVOLVES": int(convolves),
        "PADDED": int(hidden != block.hidden), "VECTOR": int(block.out_channels % 4 == 0),
        "HALVES": int(variant.precision == "fp16"), **macros})
    expand = depthwise = project = None
    if expands:
        expand = weights.packed(f"channels by {hidden}, expand", pack_weights(0, hidden))
    if convolves:
        depthwise = weights.packed(f"taps by {hidden}, depthwise",
                                   pack_weights(block.part(p), hidden))
    else:
        project = weights.packed(f"{hidden} by channels, project", pack_weights(
            block.part(block.project), out_channels, hidden))
    sizes = (p.height, p.width) if convolves else (p.out_height, p.out_width)
    return Launch(
        device.compile(source),
        (-(-p.out_width // tile.columns), -(-p.out_height // tile.rows), p.batch),
        (tile.work_group, 1, 1),
        (x, expand, depthwise, project, y, totals, gates, block.channels if convolves else hidden,
         block.hidden, hidden, block.out_channels, out_channels // 4, *sizes, p.out_height,
         p.out_width, *(p.pads[:2] if convolves else (0, 0)), *operands))


def pack_weights(part: int, columns: int, rows: int | None = None
                 ) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function that packs weights as (input channels or taps, output channels).

    The array is padded with zeros to `rows` and `columns`.
    """
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        weight = arrays[f"{part}.weight"].astype(np.float32)
        matrix = weight.reshape(weight.shape[0], -1).T
        packed = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
        packed[:matrix.shape[0], :matrix.shape[1]] = matrix
        return packed
    return pack
