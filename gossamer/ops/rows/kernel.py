"""Variants and launches of the kernel of row expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Buffer, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from gossamer.ops.rows.code import RowCode
from gossamer.ops.rows.config import (
    RowConfig,
    held_operands,
    is_across,
    pieces_of_row,
    row_configs,
)
from gossamer.ops.rows.expression import RowExpression, RowOperand
from gossamer.ops.rows.nest import Nest, nest_of
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("rows.cl")
_GROUPS_OF_A_UNIT = 16
"""Maximum number of work-groups per compute unit and launch. This rule of thumb keeps all compute
units busy until the launch ends. If there are more blocks of rows than work-groups, a work-group
computes several blocks. After its first block, it reads constants from the cache."""


def row_variants(expression: RowExpression, variants: Sequence[Variant],
                 device: Device) -> list[Variant]:
    """Return variants with configs, the most promising configs first.

    variants: variants without configs, one for each layout and precision.
    """
    by_variant = [[with_config(expression, variant, config) for config in row_configs(
        expression, nest_of(expression, variant.inputs, variant.outputs[0]), variant,
        device.limits)] for variant in variants]
    return [configs[rank] for rank in range(max(map(len, by_variant), default=0))
            for configs in by_variant if rank < len(configs)]


def with_config(expression: RowExpression, variant: Variant, config: RowConfig) -> Variant:
    """Return a variant with a config and the workspace that the config needs."""
    partials = (len(expression.phases) - 1) * config.splits * expression.rows
    return replace(variant, config=config.settings,
                   workspace=4 * partials if config.splits > 1 else 0)


def row_launches(expression: RowExpression, weights: Weights, variant: Variant,
                 device: Device) -> list[Launch]:
    """Return the launches of a variant."""
    nest = nest_of(expression, variant.inputs, variant.outputs[0])
    config = sizes_of(RowConfig, variant)
    pieces, rows = pieces_of_row(nest), expression.rows // nest.wide
    held = held_operands(expression, nest, variant, config)
    halves = [*(not operand.name and variant.inputs[operand.number].dtype == "float16"
                for operand in expression.operands), variant.outputs[0].dtype == "float16"]
    defines: dict[str, object] = {
        "LANES": config.lanes, "ROWS": config.rows, "CLUSTER": config.cluster,
        "SPLITS": config.splits, "REDUCTIONS": len(expression.phases) - 1,
        "HELD": config.pieces_of_item(pieces) if held else 0}
    if is_across(nest, variant):
        defines["ACROSS"] = 1
    operands: list[Argument | Callable[..., Argument]] = [
        _constant(expression, weights, operand, nest) if operand.name
        else input_buffer(operand.number) for operand in expression.operands]
    groups = -(-rows // config.rows) * config.cluster * config.splits
    if config.cluster * config.splits == 1:
        groups = min(groups, _GROUPS_OF_A_UNIT * device.limits.compute_units)
    launches = []
    for index in [None] if config.splits == 1 else range(len(expression.phases)):
        code = RowCode(expression, nest, halves, held, index)
        macros = {**defines, **code.macros()}
        if index is not None:
            macros["PASS"] = index
        kernel = device.compile(KernelSource.of(
            _SOURCE, "row_expression", macros,
            architectures=("sm_90" if config.cluster > 1 else "sm_75", "sm_100"),
            dynamic_shared=config.cluster > 1))
        launches.append(Launch(kernel, (groups,), (config.lanes * config.rows,), (
            *operands, output_buffer(0), *([] if index is None else [workspace_buffer]),
            rows, expression.length, pieces, *code.numbers),
            _shared_bytes(expression, nest, config)))
    return launches


def _shared_bytes(expression: RowExpression, nest: Nest, config: RowConfig) -> int:
    """Return the dynamic shared memory of a work-group: sums of its cluster, and of its warps."""
    sums = (len(expression.phases) - 1) * config.cluster + config.lanes
    return 4 * sums * nest.wide * config.rows if config.cluster > 1 else 0


def _constant(expression: RowExpression, weights: Weights, operand: RowOperand,
              nest: Nest) -> Buffer:
    """Return a constant on the device, with its dimensions in the order of memory."""
    shape, permutation = expression.split_constant(operand.axes, nest.order)
    return weights.packed(
        f"{operand.name} as {shape} in the order {permutation}",
        lambda arrays: np.ascontiguousarray(np.asarray(arrays[operand.name], np.float32).reshape(
            shape).transpose(permutation)))
