"""Norms of several layers as one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.fused.row_expression import RowExpressionFusion, row_expression_of
from tests.ops.fused import norms
from tests.ops.harness import check_variants

ALGORITHM = RowExpressionFusion()
PROBLEMS = {
    "rms norm": norms.rms_norm((70, 40), (1,)),
    "rms norm of images": norms.rms_norm_2d((2, 24, 5, 6)),
    "group norm": norms.group_norm((2, 12, 5, 4), 3, residual=True),
    "group norm of eights": norms.group_norm((2, 32, 4, 4), 4),
    "instance norm": norms.group_norm((2, 16, 3, 5), 16),
    "layer norm of whole images": norms.group_norm((3, 8, 4, 5), 1),
    "EvoNorm": norms.evo_norm((1, 32, 6, 6), 2),
    "softmax": norms.softmax((5, 33), 1),
    "softmax of images": norms.softmax((2, 7, 3, 4), 1),
    "length of channels": norms.length((2, 16, 5, 5), (2, 3)),
    "length without axes": norms.length((2, 5, 9), (1,), keepdims=False),
}


def check(problem: FusionProblem, device: Device) -> None:
    assert ALGORITHM.recognises(problem)
    check_variants(ALGORITHM, problem, device)


@pytest.mark.parametrize("name", PROBLEMS)
def test_norms(device: Device, name: str) -> None:
    if device.compiles:
        check(PROBLEMS[name], device)
