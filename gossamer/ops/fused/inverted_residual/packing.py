"""Packs the weights of a block in the order in which inverted_residual_mma copies them to shared
memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.ops.conv2d.common import rounded_to_tf32
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.inverted_residual.block import Block
from gossamer.ops.fused.inverted_residual.sizes import DEPTHS
from gossamer.ops.fused.inverted_residual.tiling import BlockTiling


def pack_chunks(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the constants of each chunk of hidden channels as (chunks, 32-bit words): the weights
    of the expansion, the depthwise weights, the channel operands of the epilogues of the expansion
    and of the depthwise convolution, and the weights of the projection. Channels that do not exist
    are zeros."""
    block, chunk = divided.block, divided.tile.chunk
    hidden = divided.hidden
    depthwise, project = block.part(block.depthwise), block.part(block.project)
    of_project = _matrix(arrays[f"{project}.weight"], hidden, divided.out_pairs * 16)
    of_depthwise = _matrix(arrays[f"{depthwise}.weight"], None, hidden)
    if divided.convolves:
        with np.errstate(over="ignore"):
            of_depthwise = of_depthwise.astype(np.float16)
    constants = np.concatenate([np.zeros((0, hidden), np.float32)] + [
        operand for convolution in block.convolutions[:-1]
        for operand in _operands(block, block.part(convolution), arrays, hidden)])
    packed = []
    for first in range(0, hidden, chunk):
        own = slice(first, first + chunk)
        words = [*(np.ascontiguousarray(rows[:, own]).reshape(-1).view(np.uint32)
                   for rows in (of_depthwise, constants)), _operands_of(of_project[own], divided)]
        if block.expand is not None:
            depth = divided.expand_steps * DEPTHS[divided.precision]
            of_expand = _matrix(arrays[f"{block.part(block.expand)}.weight"], depth, hidden)
            words.insert(0, _operands_of(of_expand[:, own], divided))
        packed.append(np.concatenate(words))
    return np.stack(packed)


def pack_constants(block: Block, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the constants of the output channels, (constants, channels) in float32."""
    rows = _operands(block, block.part(block.project), arrays, block.out_channels)
    return np.concatenate(rows) if rows else np.zeros((1, block.out_channels), np.float32)


def pack_squeeze(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the weights of the first product of a squeeze-and-excite layer as (results of the
    first product, hidden channels), with zeros for channels that do not exist."""
    layer = divided.block.excite
    assert layer is not None
    weight = arrays[f"{divided.block.part(layer.squeeze)}.weight"]
    return _for_tensors(divided, _matrix(weight, divided.hidden, layer.squeezed).T)


def pack_excite(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the weights of the second product of a squeeze-and-excite layer as (results of the
    first product, hidden channels), with zeros for channels that do not exist."""
    layer = divided.block.excite
    assert layer is not None
    weight = arrays[f"{divided.block.part(layer.excite)}.weight"]
    return _for_tensors(divided, _matrix(weight, None, divided.hidden))


def pack_small_constants(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the channel operands of the two products of a squeeze-and-excite layer in float32:
    first the operands of the first product, then the operands of the second."""
    block, layer = divided.block, divided.block.excite
    assert layer is not None
    rows = [row.reshape(-1) for product, size in ((layer.squeeze, layer.squeezed),
                                                  (layer.excite, divided.hidden))
            for row in _operands(block, block.part(product), arrays, size)]
    return np.concatenate([*rows, np.zeros(1, np.float32)])


def _for_tensors(divided: BlockTiling, matrix: np.ndarray) -> np.ndarray:
    """Returns a matrix in the dtype of the tensors."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(
            matrix, np.float16 if divided.precision == "fp16" else np.float32)


def _operands(block: Block, number: int, arrays: Mapping[str, np.ndarray],
              size: int) -> list[np.ndarray]:
    """Returns the channel operands of the epilogue of a convolution, which is the layer `number` of
    the block's FusionProblem, as rows of `size` numbers."""
    convolution = block.problem.parts[number]
    assert isinstance(convolution, Conv2dProblem)
    rows = []
    for index, kind in enumerate(convolution.epilogue.operands):
        if kind == "channel":
            row = np.zeros((1, size), np.float32)
            row[0, :convolution.out_channels] = np.broadcast_to(
                arrays[f"{number}.operand{index}"].reshape(-1), (convolution.out_channels,))
            rows.append(row)
    return rows


def _matrix(weight: np.ndarray, rows: int | None, columns: int) -> np.ndarray:
    """Returns weights as (input channels or taps, output channels) in float32, with zeros up to a
    number of rows and columns."""
    matrix = weight.astype(np.float32).reshape(weight.shape[0], -1).T
    packed = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
    packed[:matrix.shape[0], :matrix.shape[1]] = matrix
    return packed


def _operands_of(matrix: np.ndarray, divided: BlockTiling) -> np.ndarray:
    """Returns weights (input channels, output channels) as 32-bit words for each step of input
    channels and each 16 output channels, in the order of the tile's instruction, wgmma or mma."""
    return (_lines if divided.tile.wgmma else _fragments)(matrix, divided.precision)


def _lines(matrix: np.ndarray, precision: str) -> np.ndarray:
    """Returns weights as right operands of wgmma. For each step of input channels and each 8 output
    channels, the lower half of the step's input channels comes first and the upper half follows.
    Each half has 16 bytes for each output channel."""
    # axes: step, half, input channel, group of 8 output channels, channel of the group
    split = matrix.reshape(-1, 2, DEPTHS[precision] // 2, matrix.shape[1] // 8, 8)
    return _words(split.transpose(0, 3, 1, 4, 2), precision)


def _fragments(matrix: np.ndarray, precision: str) -> np.ndarray:
    """Returns weights (input channels, output channels) as 32-bit words for each step of input
    channels and each 16 output channels.

    The words are the right operands of two mma instructions, with four registers for each of 32
    lanes. Register 2 j + h of lane l holds weights of channel l / 4 of tile j for half h of the
    step's input channels: input channels 2 (l % 4) and 2 (l % 4) + 1 of the half in fp16, and input
    channel l % 4 of the half in other precisions.
    """
    # axes: step, half, quarter, input channel, pair of tiles, tile, channel
    split = matrix.reshape(-1, 2, 4, DEPTHS[precision] // 8, matrix.shape[1] // 16, 2, 8)
    return _words(split.transpose(0, 4, 6, 2, 5, 1, 3), precision)


def _words(ordered: np.ndarray, precision: str) -> np.ndarray:
    """Returns numbers of a precision as 32-bit words."""
    ordered = np.ascontiguousarray(ordered)
    if precision == "fp16":
        with np.errstate(over="ignore"):
            ordered = ordered.astype(np.float16)
    elif precision == "tf32":
        ordered = rounded_to_tf32(ordered)
    return ordered.reshape(-1).view(np.uint32)
