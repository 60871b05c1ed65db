"""Variants and launches of the kernel of row expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.rows.code import RowCode
from gossamer.ops.rows.expression import RowExpression, RowOperand
from gossamer.ops.rows.nest import Nest, nest_of
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("rows.cl")
GROUP = 256
"""Minimum number of work-items per work-group."""
_LARGEST_GROUP = 1024
_MOST_HELD = 64
"""Maximum number of registers of a work-item that hold pieces of operands. In larger work-groups
the product with the number of work-items is limited, because a multiprocessor has 64 registers for
each of 1024 work-items."""
_MOST_SINGLE = 32
"""Maximum number of elements that a work-item holds if its pieces have one element."""
_GROUPS_OF_A_UNIT = 16
"""Maximum number of work-groups per compute unit and launch. This rule of thumb keeps all compute
units busy until the launch ends. If there are more blocks of rows than work-groups, a work-group
computes several blocks. After its first block, it reads constants from the cache."""
_SECTOR_BYTES = 32
"""Smallest number of bytes that GPUs read from device memory."""


def row_variants(expression: RowExpression, variants: Sequence[Variant],
                 device: Device) -> list[Variant]:
    """Return the configs of variants that have none yet, the most promising configs first."""
    by_variant = [[_with_config(expression, variant, *config) for config in _configs(
        nest_of(expression, variant.inputs, variant.outputs[0]), variant, device)]
        for variant in variants]
    return [configs[rank] for rank in range(max(map(len, by_variant), default=0))
            for configs in by_variant if rank < len(configs)]


def _with_config(expression: RowExpression, variant: Variant, lanes: int, splits: int) -> Variant:
    if splits == 1:
        return replace(variant, config=(("lanes", lanes),))
    partials = (len(expression.phases) - 1) * splits * expression.rows
    return replace(variant, config=(("lanes", lanes), ("splits", splits)), workspace=4 * partials)


def row_launches(expression: RowExpression, weights: Weights, variant: Variant,
                 device: Device) -> list[Launch]:
    """Return the launches of a variant."""
    nest = nest_of(expression, variant.inputs, variant.outputs[0])
    config = dict(variant.config)
    lanes, splits = int(config["lanes"]), int(config.get("splits", 1))
    rows_of_group = max(GROUP // lanes, 1)
    pieces = expression.length // (1 if nest.is_wide else nest.vector)
    rows = expression.rows // nest.wide
    halves = [*(not operand.name and variant.inputs[operand.number].dtype == "float16"
                for operand in expression.operands), variant.outputs[0].dtype == "float16"]
    held, of_item = _held(expression, nest, halves), -(-pieces // lanes)
    is_held = splits == 1 and bool(held) and _fits_registers(
        nest, halves, len(held), of_item, lanes)
    defines: dict[str, object] = {
        "LANES": lanes, "ROWS": rows_of_group, "SPLITS": splits, "HELD": of_item if is_held else 0}
    if _is_across(nest, variant):
        defines["ACROSS"] = 1
    buffers: list[Argument] = [
        _constant(expression, weights, operand, nest) if operand.name
        else input_buffer(operand.number) for operand in expression.operands]
    blocks = -(-rows // rows_of_group)
    groups = splits * blocks if splits > 1 else min(
        blocks, _GROUPS_OF_A_UNIT * device.limits.compute_units)
    launches = []
    for index in [None] if splits == 1 else range(len(expression.phases)):
        code = RowCode(expression, nest, halves, held if is_held else frozenset(), index)
        macros = {**defines, **code.macros()}
        if index is not None:
            macros["PASS"] = index
        kernel = device.compile(KernelSource.of(_SOURCE, "row_expression", macros))
        launches.append(Launch(kernel, (groups,), (lanes * rows_of_group,), (
            *buffers, output_buffer(0), *([] if index is None else [workspace_buffer]),
            rows, expression.length, pieces, *code.numbers)))
    return launches


def _constant(expression: RowExpression, weights: Weights, operand: RowOperand,
              nest: Nest) -> Buffer:
    """Return a constant on the device, with its dimensions in the order of memory."""
    shape, permutation = expression.split_constant(operand.axes, nest.order)
    return weights.packed(
        f"{operand.name} as {shape} in the order {permutation}",
        lambda arrays: np.ascontiguousarray(np.asarray(arrays[operand.name], np.float32).reshape(
            shape).transpose(permutation)))


def _held(expression: RowExpression, nest: Nest, halves: Sequence[bool]) -> frozenset[int]:
    """Return the run-time operands of which several phases read pieces."""
    readers = [number for phase in expression.phases for number in set(phase.reads) if number >= 0]
    return frozenset(
        index for index, operand in enumerate(expression.operands)
        if not operand.name and readers.count(index) > 1 and expression.varies(operand)
        and (nest.vector == 1 or (nest.inner_stride(index) == 1 and (
            nest.vector == 4 or halves[index]))))


def _fits_registers(nest: Nest, halves: Sequence[bool], operands: int, pieces: int,
                    lanes: int) -> bool:
    """Return whether a work-item can hold its pieces in registers.

    operands: number of operands whose pieces are held.
    pieces: number of pieces of each operand.
    """
    if nest.vector == 1:
        return operands * pieces <= _MOST_SINGLE
    registers = nest.vector // 2 if halves[-1] else nest.vector
    return operands * pieces * registers <= min(_MOST_HELD, _MOST_HELD * 512 // lanes)


def _is_across(nest: Nest, variant: Variant) -> bool:
    """Return whether neighbouring work-items compute neighbouring rows.

    They do so if the elements of a row are not neighbours in memory, or if only few of them are.
    """
    if nest.is_wide:
        return True
    itemsize = 2 if variant.outputs[0].dtype == "float16" else 4
    return len(nest.reduced) > 1 and nest.reduced[-1] * itemsize < _SECTOR_BYTES


def _configs(nest: Nest, variant: Variant, device: Device) -> list[tuple[int, int]]:
    """Return the numbers of work-items and of work-groups per row to try.

    Up to 32 neighbouring work-items belong to one warp, which joins its values without shared
    memory. With two pieces per work-item, enough loads are in flight, and few work-items are idle
    at the end of a row.
    """
    units = device.limits.compute_units
    pieces = max(math.prod(nest.reduced) // (1 if nest.is_wide else nest.vector), 1)
    rows = math.prod(nest.kept) // nest.wide
    most = min(_LARGEST_GROUP, device.limits.work_group_size)
    if _is_across(nest, variant):
        itemsize = 2 if variant.outputs[0].dtype == "float16" else 4
        most = max(GROUP * nest.vector * itemsize // _SECTOR_BYTES, 1)
        lanes = _lanes_across(pieces, rows, min(most, GROUP), units)
    elif pieces <= 64 or (pieces <= 512 and rows >= 1024):
        few = min(_power_of_two(-(-pieces // 2)), 32)
        lanes = [few, few // 2] if few > 1 and pieces <= 8 * few else [few]
    else:
        many = min(max(_power_of_two(-(-pieces // 4)), 64), most)
        lanes = list(dict.fromkeys([many, max(many // 2, 64)]))
    configs = [(number, 1) for number in lanes]
    groups = -(-rows * lanes[0] // GROUP) if lanes[0] < GROUP else rows
    of_split = min(lanes[0], GROUP)
    splits = min(-(-2 * units // groups), pieces // (4 * of_split))
    if groups < units and splits > 1:
        configs.insert(1, (of_split, splits))
    return configs


def _lanes_across(pieces: int, rows: int, most: int, units: int) -> list[int]:
    """Return the numbers of work-items per row to try if neighbours compute neighbouring rows.

    A work-item has about 16 pieces, or fewer if the work-groups would not occupy all compute units.

    most: the largest number with which a work-group still loads whole sectors of memory.
    """
    few = min(_power_of_two(-(-pieces // 16)), most)
    many = few
    while many < most and many < pieces and -(-rows * many // GROUP) < 2 * units:
        many *= 2
    return list(dict.fromkeys([many, few]))


def _power_of_two(number: int) -> int:
    """Round a number up to a power of two."""
    return 1 << (number - 1).bit_length()
