"""Makes the macros that specialise inverted_residual_mma.cu for a block and a tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.epilogue import epilogue_macros
from gossamer.ops.fused.inverted_residual.block import epilogues
from gossamer.ops.fused.inverted_residual.tiling import BlockTiling
from gossamer.ops.image import image_macros


def block_macros(divided: BlockTiling, dtype: str, *, bulk: bool) -> dict[str, object]:
    """Returns the macros of the kernel.

    dtype: dtype of the kernel's tensors.
    bulk: whether the device has bulk copies (cp.async.bulk).
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
        "COLUMNS_AT_ONCE": divided.columns_at_once, "RUN": divided.run,
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
    """Returns the macros of a first convolution that reads windows of an image."""
    first = divided.block.expand
    if first is None or not divided.block.gathers:
        return {"GATHERS": 0}
    return {"GATHERS": 1, "GATHERED": first.depth, "FILTER_H": first.kernel[0],
            "FILTER_W": first.kernel[1], "FILTER_STEP_Y": first.stride[0],
            "FILTER_STEP_X": first.stride[1], "FILTER_DILATION_Y": first.dilation[0],
            "FILTER_DILATION_X": first.dilation[1],
            **image_macros(divided.block.problem.inputs[0], divided.block.given)}


def _excite_macros(divided: BlockTiling) -> dict[str, object]:
    """Returns the macros of a squeeze-and-excite layer."""
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
    """Returns the C declarations of an epilogue's operands.

    constants: the name of the memory in which channel operands follow one another.
    first: the number of channel operands in this memory before the epilogue's first operand.
    size: the number of elements of each channel operand in this memory, as a C expression.
    tensor: the name of the memory of tensor operands.
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
    """Returns the macros of an epilogue whose results stay in shared memory. START(channel) is the
    value that a channel's sums begin with. STORE(target, first, second, channel) applies the rest
    of the epilogue to the results of two neighbouring channels and stores them."""
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


def without_bias(epilogue: Epilogue) -> tuple[int | None, Epilogue]:
    """Returns the number of the channel operand that an epilogue adds to the result before anything
    else, and the rest of the epilogue. Returns None and the whole epilogue where the first step is
    no such addition."""
    expression = epilogue.expression
    first = expression.steps[0] if expression.steps else None
    if first is None or first.function != "add" or 0 not in first.arguments:
        return None, epilogue
    others = [argument for argument in first.arguments if argument != 0]
    later = [argument for step in expression.steps[1:] for argument in step.arguments]
    if len(others) != 1 or not 0 < others[0] < expression.inputs or (
            epilogue.operands[others[0] - 1] != "channel") or 0 in (*later, *expression.outputs):
        return None, epilogue

    def renumbered(value: int) -> int:
        if value < expression.inputs:
            return value
        return 0 if value == expression.inputs else value - 1

    steps = tuple(replace(step, arguments=tuple(map(renumbered, step.arguments)))
                  for step in expression.steps[1:])
    rest = Expression(expression.inputs, steps, tuple(map(renumbered, expression.outputs)))
    return others[0] - 1, Epilogue(rest, epilogue.operands)


def _half_bounds(expression: Expression) -> tuple[float, float] | None:
    """Returns the bounds to which an expression clips its first input; None for other expressions,
    and where a bound is no float16 number. With float16 bounds the result is the same whether the
    input is rounded to float16 before or after it is clipped."""
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
    """Returns a 32-bit constant with a float16 number in both halves."""
    return f"0x{int(np.float16(value).view(np.uint16)) * 0x10001:08x}u"
