"""The base class of algorithms that compute an op as a row expression."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.launch import Launch
from gossamer.ops.rows.config import GROUP
from gossamer.ops.rows.expression import RowExpression
from gossamer.ops.rows.kernel import row_launches, row_variants
from gossamer.ops.strided import KernelAlgorithm
from gossamer.ops.weights import Weights


class RowAlgorithm(KernelAlgorithm):
    """One launch, or one launch per reduction and one for the result.

    In a single launch, each element is read from memory only once if the work-items of a row can
    keep the row in registers.
    """

    @abc.abstractmethod
    def expression(self, problem: Any) -> RowExpression:
        """Return the row expression of a problem; called only if the output is not empty."""

    def supports(self, problem: Any, device: Device) -> str | None:
        if (reason := super().supports(problem, device)) is not None:
            return reason
        if device.limits.work_group_size < GROUP:
            return f"needs work-groups of {GROUP}"
        return None

    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        variants = list(super().variants(problem, device))
        if not problem.outputs[0].size:
            return variants
        return row_variants(self.expression(problem), variants, device)

    def kernel_launches(self, weights: Weights, problem: Any, variant: Variant,
                        device: Device) -> list[Launch]:
        return row_launches(self.expression(problem), weights, variant, device)
