"""Configs of the kernel of row expressions, and which of them to try first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.device.limits import Limits
from gossamer.ops.algorithm import Variant
from gossamer.ops.gpu import REGISTERS
from gossamer.ops.rows.expression import RowExpression
from gossamer.ops.rows.nest import Nest

GROUP = 256
"""Number of work-items of a work-group that computes several rows."""
_LARGEST_GROUP = 512
"""Number of work-items of the largest work-group; larger ones leave too few registers for each."""
_MOST_HELD = 64
"""Maximum number of registers of a work-item that hold pieces of operands."""
_OTHER_REGISTERS = 44
"""Number of registers of a work-item for everything but pieces and sums, fitted to what the
compiler needs without spills."""
_MOST_SINGLE = 32
"""Maximum number of elements that a work-item holds if its pieces have one element."""
_SECTOR_BYTES = 32
"""Smallest number of bytes that GPUs read from device memory."""
_CLUSTERS = (2, 4, 8)
"""Numbers of work-groups per cluster that every device with clusters supports."""
_LEAST_PIECES = 128
"""Minimum number of pieces of a row for each of the work-groups that compute it together."""


@dataclass(frozen=True)
class RowConfig:
    """How work-items share the rows.

    lanes: number of work-items of a work-group that compute a row together.
    rows: number of rows, or of groups of neighbouring rows that a work-item computes at once, of a
    work-group.
    cluster: number of work-groups of a cluster, which compute a row together.
    splits: number of work-groups that compute a row together in several launches.
    """

    lanes: int
    rows: int
    cluster: int = 1
    splits: int = 1

    @property
    def settings(self) -> tuple[tuple[str, int], ...]:
        """The config of a variant."""
        shared = tuple((name, number) for name, number in (
            ("cluster", self.cluster), ("splits", self.splits)) if number > 1)
        return (("lanes", self.lanes), ("rows", self.rows), *shared)

    def pieces_of_item(self, pieces: int) -> int:
        """Return the maximum number of pieces of a work-item.

        pieces: number of pieces of a row.
        """
        share = -(-pieces // (self.cluster * self.splits))
        return -(-share // self.lanes)


def pieces_of_row(nest: Nest) -> int:
    """Return the number of pieces of a row."""
    return math.prod(nest.reduced) // (1 if nest.is_wide else nest.vector)


def held_operands(expression: RowExpression, nest: Nest, variant: Variant,
                  config: RowConfig) -> frozenset[int]:
    """Return the operands whose pieces stay in registers between phases.

    These are all operands that several phases read, provided that they fit.
    """
    found = _read_again(expression, nest, variant)
    pieces = len(found) * config.pieces_of_item(pieces_of_row(nest))
    registers = pieces * nest.vector // (4 // _itemsize(variant))
    sums = len(expression.phases) * (nest.wide - 1)
    loaded = sum(map(expression.varies, expression.operands)) - len(found)
    most = min(_MOST_HELD, REGISTERS // (config.lanes * config.rows) - _OTHER_REGISTERS
               - sums - loaded * nest.vector)
    if nest.vector == 1:
        registers, most = pieces, _MOST_SINGLE
    return found if config.splits == 1 and registers <= most else frozenset()


def _read_again(expression: RowExpression, nest: Nest, variant: Variant) -> frozenset[int]:
    """Return the run-time operands of which several phases read whole pieces."""
    readers = [number for phase in expression.phases for number in set(phase.reads) if number >= 0]
    return frozenset(
        index for index, operand in enumerate(expression.operands)
        if not operand.name and readers.count(index) > 1 and expression.varies(operand)
        and (nest.vector == 1 or nest.inner_stride(index) == 1)
        and (nest.vector < 8 or variant.inputs[operand.number].dtype == "float16"))


def is_across(nest: Nest, variant: Variant) -> bool:
    """Return whether neighbouring work-items compute neighbouring rows.

    They do so if the elements of a row are not neighbours in memory, or if only few of them are.
    """
    return nest.is_wide or (
        len(nest.reduced) > 1 and nest.reduced[-1] * _itemsize(variant) < _SECTOR_BYTES)


def row_configs(expression: RowExpression, nest: Nest, variant: Variant,
                limits: Limits) -> list[RowConfig]:
    """Return the configs to try, the most promising first."""
    pieces, rows = pieces_of_row(nest), math.prod(nest.kept) // nest.wide
    across = is_across(nest, variant)
    # with at least so many rows a work-group loads whole sectors of memory
    least = max(_SECTOR_BYTES // (nest.vector * _itemsize(variant)), 1) if across else 1
    if across and pieces <= 256:
        return _of_short_rows_across(pieces, rows, least, limits)
    if pieces <= 64 or (pieces <= 512 and rows >= 1024 and not across):
        return _of_short_rows(pieces)
    return _of_long_rows(expression, nest, variant, limits, least)


def _itemsize(variant: Variant) -> int:
    return 2 if variant.outputs[0].dtype == "float16" else 4


def _of_short_rows(pieces: int) -> list[RowConfig]:
    """Return configs in which up to 32 neighbouring work-items, of one warp, compute a row.

    They join their values without shared memory. With two pieces per work-item, enough loads are in
    flight, and few work-items are idle at the end of a row.
    """
    few = min(_power_of_two(-(-pieces // 2)), 32)
    lanes = [few, few // 2] if few > 1 and pieces <= 8 * few else [few]
    return [RowConfig(number, GROUP // number) for number in lanes]


def _of_short_rows_across(pieces: int, rows: int, least: int, limits: Limits) -> list[RowConfig]:
    """Return configs in which a work-item has about 16 pieces of a row.

    It has fewer if the work-groups would not occupy all compute units.

    least: minimum number of rows of a work-group.
    """
    most = GROUP // least
    few = many = min(_power_of_two(-(-pieces // 16)), most)
    while many < min(most, pieces) and -(-rows * many // GROUP) < 2 * limits.compute_units:
        many *= 2
    return [RowConfig(number, GROUP // number) for number in dict.fromkeys([many, few])]


def _of_long_rows(expression: RowExpression, nest: Nest, variant: Variant, limits: Limits,
                  least: int) -> list[RowConfig]:
    """Return configs in which one or several work-groups compute a row, or `least` rows.

    The first config has as few work-groups per row as occupy all compute units and can hold the
    row in registers.
    """
    pieces, rows = pieces_of_row(nest), math.prod(nest.kept) // nest.wide
    blocks = -(-rows // least)
    largest = GROUP if nest.wide > 1 else _LARGEST_GROUP  # several rows need more registers
    most = min(largest, limits.work_group_size) // least

    needed = bool(_read_again(expression, nest, variant))

    def holds(config: RowConfig) -> bool:
        return not needed or bool(held_operands(expression, nest, variant, config))

    def config(cluster: int) -> RowConfig:
        share = -(-pieces // cluster)
        of_item = 4 if blocks * cluster >= limits.compute_units else 2
        lanes = min(max(_power_of_two(-(-share // of_item)), -(-64 // least)), most)
        larger, smaller = (RowConfig(number, least, cluster) for number in (lanes, lanes // 2))
        return smaller if holds(smaller) and not holds(larger) else larger

    alone = config(1)
    shared = [config(number) for number in _CLUSTERS
              if number <= limits.cluster and pieces >= number * _LEAST_PIECES]
    suitable = [each for each in (alone, *shared)
                if blocks * each.cluster >= limits.compute_units and holds(each)]
    found = [suitable[0] if suitable else shared[-1] if shared else alone, alone]
    splits = min(-(-2 * limits.compute_units // blocks), pieces // _LEAST_PIECES)
    if blocks < limits.compute_units and splits > 1:
        found.append(RowConfig(GROUP // least, least, splits=splits))
    smaller = RowConfig(max(alone.lanes // 2, 1), least)
    return list(dict.fromkeys([*found, smaller]))


def _power_of_two(number: int) -> int:
    """Round a number up to a power of two."""
    return 1 << max(number - 1, 0).bit_length()
