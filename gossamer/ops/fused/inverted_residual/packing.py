"""Macros and packed weights for inverted_residual_mma.cu."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.common import rounded_to_tf32
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import epilogue_macros
from gossamer.ops.fused.inverted_residual.block import Block, epilogues
from gossamer.ops.fused.inverted_residual.tiling import DEPTHS, BlockTiling
from gossamer.ops.fused.problem import without_bias
from gossamer.ops.image import image_macros


def block_macros(divided: BlockTiling, dtype: str, *, bulk: bool) -> dict[str, object]:
    """Return the macros with which the kernel is compiled.

    dtype: dtype of the kernel's tensors.
    bulk: whether the device supports bulk copies (cp.async.bulk).
    """
    block, tile, p = divided.block, divided.tile, divided.block.depthwise
    expands = block.expand is not None
    is_in_inputs = expands and block.excite is None
    macros: dict[str, object] = {
        "HALVES": int(divided.precision == "fp16"), "TF32": int(divided.precision == "tf32"),
        "EXPANDS": int(expands), "TILE_H": tile.rows, "TILE_W": tile.columns,
        "CHUNK": tile.chunk, "CLUSTER": tile.cluster, "WARPS": tile.warps,
        "CHANNELS": divided.operands, "OUT_CHANNELS": block.out_channels,
        "KERNEL_H": p.kernel[0], "KERNEL_W": p.kernel[1],
        "STRIDE_Y": p.stride[0], "STRIDE_X": p.stride[1],
        "PADDED": int(block.hidden % tile.chunk != 0), "ROW_TILES": divided.row_tiles,
        "EXPAND_TILES": divided.expand_tiles, "EXPAND_PAIRS": divided.expand_pairs,
        "COLUMNS_AT_ONCE": divided.columns_at_once, "RUN": divided.outputs_in_turn,
        "ROWS_AT_ONCE": divided.rows_at_once,
        "STAGES": divided.stages, "WARPGROUPS_M": divided.warpgroups_m, "WGMMA": tile.wgmma,
        "BULK": int(bulk and block.excite is None),
        "BLOCKS_PER_UNIT": divided.blocks_per_unit}
    for prefix, count in zip(("EXPAND_", "DEPTHWISE_", "PROJECT_"), divided.constants, strict=True):
        macros[f"{prefix}CONSTANTS"] = count
    macros["EXPAND_OPERANDS"] = ""
    for prefix, (_, epilogue) in epilogues(block).items():
        if prefix == "PROJECT_":
            macros |= epilogue_macros(epilogue, tensor_dtype=dtype, prefix=prefix)
            macros[f"{prefix}OPERANDS"] = _operands(epilogue, prefix, "of_result", 0,
                                                    "OUT_CHANNELS",
                                                    "inputs" if is_in_inputs else "x")
        else:
            first = divided.constants[0] if prefix == "DEPTHWISE_" else 0
            macros |= _inner_epilogue(epilogue, prefix, halves=divided.precision == "fp16")
            macros[f"{prefix}OPERANDS"] = _operands(epilogue, prefix, "chunk_constants", first,
                                                    "CHUNK", "x")
    return macros | _excite_macros(divided) | _gather_macros(divided)


def _gather_macros(divided: BlockTiling) -> dict[str, object]:
    """Return the macros of a first convolution that reads windows of an image."""
    first = divided.block.expand
    if first is None or not divided.block.gathers:
        return {"GATHERS": 0}
    return {"GATHERS": 1, "GATHERED": first.depth, "FILTER_H": first.kernel[0],
            "FILTER_W": first.kernel[1], "FILTER_STEP_Y": first.stride[0],
            "FILTER_STEP_X": first.stride[1], "FILTER_DILATION_Y": first.dilation[0],
            "FILTER_DILATION_X": first.dilation[1],
            **image_macros(divided.block.problem.inputs[0], divided.block.given)}


def _excite_macros(divided: BlockTiling) -> dict[str, object]:
    """Return the macros of a squeeze-and-excite layer."""
    layer = divided.block.excite
    if layer is None:
        return {"EXCITES": 0, "OWN_CHUNKS": 0, "SQUEEZED": 0}
    after = layer.squeeze.epilogue.operands.count("channel")
    operands = (
        _operands(layer.squeeze.epilogue, "SQUEEZE_", "small_constants", 0, "SQUEEZED", ""),
        _operands(layer.excite.epilogue, "EXCITE_", f"small_constants + {after} * SQUEEZED", 0,
                  "HIDDEN_ROW", ""))
    return {
        "EXCITES": 1, "OWN_CHUNKS": divided.own_chunks, "SQUEEZED": layer.squeezed,
        "HIDDEN_ROW": divided.chunks * divided.tile.chunk, "EXCITE_OPERANDS": " ".join(operands),
        **epilogue_macros(layer.squeeze.epilogue, prefix="SQUEEZE_"),
        **epilogue_macros(layer.excite.epilogue, prefix="EXCITE_"),
        **epilogue_macros(layer.scale, prefix="SCALE_")}


def _operands(epilogue: Epilogue, prefix: str, constants: str, first: int, size: str,
              tensor: str) -> str:
    """Return the C declarations of an epilogue's operands.

    constants: name of the array that holds the channel operands one after another.
    first: number of channel operands in the array before those of the epilogue.
    size: number of elements of each channel operand in the array, as a C expression.
    tensor: name of the array of tensor operands.
    """
    declared = []
    for index, kind in enumerate(epilogue.operands):
        name = f"{prefix.lower()}operand{index}"
        if kind == "channel":
            declared.append(f"const float *{name} = {constants} + {first} * {size};")
            first += 1
        else:
            declared.append(f"const REAL *{name} = {tensor};")
    return " ".join(declared)


def _inner_epilogue(epilogue: Epilogue, prefix: str, *, halves: bool) -> dict[str, str]:
    """Return the macros of an epilogue whose results stay in shared memory.

    START(channel) is the initial value of a channel's accumulators: its bias, or 0. STORE(target,
    first, second, channel) applies the rest of the epilogue to the results `first` and `second` of
    two neighbouring channels, and stores both.
    """
    bias, rest = without_bias(epilogue)
    bounds = _half_bounds(rest.expression) if halves else None
    if bounds is None:
        store = (f"{{ {prefix}EPILOGUE(first, channel, 0) "
                 f"{prefix}EPILOGUE(second, (channel) + 1, 0) store_two(target, first, second); }}")
    else:
        low, high = bounds
        steps = f"uint packed = two_halves{'_from_0' if low == 0 else ''}(first, second); "
        if low not in (-np.inf, 0):
            steps += f"packed = larger_halves(packed, {_both_halves(low)}); "
        if high < np.inf:
            steps += f"packed = smaller_halves(packed, {_both_halves(high)}); "
        store = f"{{ {steps}*(uint *)(target) = packed; }}"
    return {
        **epilogue_macros(rest, prefix=prefix),
        f"{prefix}START(channel)": ("0.0f" if bias is None
                                    else f"{prefix.lower()}operand{bias}[channel]"),
        f"{prefix}STORE(target, first, second, channel)": store}


def _half_bounds(expression: Expression) -> tuple[float, float] | None:
    """Return the bounds to which an expression clips its first input.

    Returns None if the expression does anything else, or if float16 cannot represent a bound
    exactly. If the bounds are exact, the result is the same whether the input is rounded to float16
    before or after clipping.
    """
    if expression.outputs == (0,):
        return -np.inf, np.inf
    if len(expression.steps) != 1 or expression.outputs != (expression.inputs,):
        return None
    (step,) = expression.steps
    if step.arguments != (0,) or step.function not in ("relu", "clip"):
        return None
    low, high = step.constants if step.function == "clip" else (0.0, np.inf)
    with np.errstate(over="ignore"):
        exact = all(float(np.float16(bound)) == bound for bound in (low, high))
    return (low, high) if exact else None


def _both_halves(value: float) -> str:
    """Return a 32-bit constant with a float16 number in both halves."""
    return f"0x{int(np.float16(value).view(np.uint16)) * 0x10001:08x}u"


def pack_chunks(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the constants of each chunk as an array (chunks, 32-bit words).

    The words of a chunk are the expansion weights, the depthwise weights, the channel operands of
    the epilogues of expansion and depthwise convolution, and the projection weights, in this order.
    Weights of padding channels are zeros.
    """
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
        for operand in _operand_rows(block, block.part(convolution), arrays, hidden)])
    packed = []
    for first in range(0, hidden, chunk):
        own = slice(first, first + chunk)
        words = [*(np.ascontiguousarray(rows[:, own]).reshape(-1).view(np.uint32)
                   for rows in (of_depthwise, constants)), _words_of(of_project[own], divided)]
        if block.expand is not None:
            depth = divided.expand_steps * DEPTHS[divided.precision]
            of_expand = _matrix(arrays[f"{block.part(block.expand)}.weight"], depth, hidden)
            words.insert(0, _words_of(of_expand[:, own], divided))
        packed.append(np.concatenate(words))
    return np.stack(packed)


def pack_constants(block: Block, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the channel operands of the projection's epilogue, (operands, channels) in float32."""
    rows = _operand_rows(block, block.part(block.project), arrays, block.out_channels)
    return np.concatenate(rows) if rows else np.zeros((1, block.out_channels), np.float32)


def pack_squeeze(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weights of the squeezing convolution.

    The array is (squeezed channels, hidden channels); weights of padding channels are zeros.
    """
    layer = divided.block.excite
    assert layer is not None
    weight = arrays[f"{divided.block.part(layer.squeeze)}.weight"]
    return _for_tensors(divided, _matrix(weight, divided.hidden, layer.squeezed).T)


def pack_excite(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the weights of the exciting convolution.

    The array is (squeezed channels, hidden channels); weights of padding channels are zeros.
    """
    layer = divided.block.excite
    assert layer is not None
    weight = arrays[f"{divided.block.part(layer.excite)}.weight"]
    return _for_tensors(divided, _matrix(weight, None, divided.hidden))


def pack_small_constants(divided: BlockTiling, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the channel operands of squeeze-and-excite in float32.

    The operands of the squeezing convolution come first.
    """
    block, layer = divided.block, divided.block.excite
    assert layer is not None
    rows = [row.reshape(-1) for product, size in ((layer.squeeze, layer.squeezed),
                                                  (layer.excite, divided.hidden))
            for row in _operand_rows(block, block.part(product), arrays, size)]
    return np.concatenate([*rows, np.zeros(1, np.float32)])


def _for_tensors(divided: BlockTiling, matrix: np.ndarray) -> np.ndarray:
    """Convert a matrix to the dtype of the tensors."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(
            matrix, np.float16 if divided.precision == "fp16" else np.float32)


def _operand_rows(block: Block, number: int, arrays: Mapping[str, np.ndarray],
              size: int) -> list[np.ndarray]:
    """Return the channel operands of a convolution's epilogue.

    Each operand is a row of `size` floats.

    number: index of the convolution among the fusion's parts.
    """
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
    """Return weights as float32 (input channels or taps, output channels).

    The matrix is padded with zeros to `rows` and `columns`.
    """
    matrix = weight.astype(np.float32).reshape(weight.shape[0], -1).T
    packed = np.zeros((matrix.shape[0] if rows is None else rows, columns), np.float32)
    packed[:matrix.shape[0], :matrix.shape[1]] = matrix
    return packed


def _words_of(matrix: np.ndarray, divided: BlockTiling) -> np.ndarray:
    """Return weights in the order in which the tile's instruction (wgmma or mma) reads them."""
    return (_lines if divided.tile.wgmma else _fragments)(matrix, divided.precision)


def _lines(matrix: np.ndarray, precision: str) -> np.ndarray:
    """Return weights as B operands of wgmma, in 32-bit words.

    For each step of K and each 8 output channels, the lower half of the step's input channels comes
    before the upper half. Each half holds 16 bytes per output channel.
    """
    # axes: step, half, input channel, group of 8 output channels, channel of the group
    split = matrix.reshape(-1, 2, DEPTHS[precision] // 2, matrix.shape[1] // 8, 8)
    return _words(split.transpose(0, 3, 1, 4, 2), precision)


def _fragments(matrix: np.ndarray, precision: str) -> np.ndarray:
    """Return weights as B operands of mma, in 32-bit words.

    For each step of K and each 16 output channels, the words are the B operands of two mma
    instructions: four 32-bit registers for each of 32 lanes. Register 2 j + h of lane l holds
    weights of output channel l / 4 of channel tile j, for half h of the step's input channels. In
    fp16 the register holds the weights of input channels 2 (l % 4) and 2 (l % 4) + 1 of the half;
    in other precisions, it holds the weight of input channel l % 4 of the half.
    """
    # axes: step, half, quarter, input channel, pair of tiles, tile, channel
    split = matrix.reshape(-1, 2, 4, DEPTHS[precision] // 8, matrix.shape[1] // 16, 2, 8)
    return _words(split.transpose(0, 4, 6, 2, 5, 1, 3), precision)


def _words(ordered: np.ndarray, precision: str) -> np.ndarray:
    """Round numbers to a precision, and return them as 32-bit words."""
    ordered = np.ascontiguousarray(ordered)
    if precision == "fp16":
        with np.errstate(over="ignore"):
            ordered = ordered.astype(np.float16)
    elif precision == "tf32":
        ordered = rounded_to_tf32(ordered)
    return ordered.reshape(-1).view(np.uint32)
