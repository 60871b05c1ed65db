from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.gemm.problem import GemmProblem
from tests.conftest import is_slow
from tests.ops.harness import check, quick

BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
RESIDUAL = Epilogue(apply("add").then(apply("tanh")), ("tensor",))


@given(rows=st.sampled_from([0, 1, 2, 4, 5, 19]), columns=st.sampled_from([1, 4, 10, 33]),
       depth=st.sampled_from([1, 8, 30, 67]))
@settings(max_examples=8)
def test_any_size(device: Device, rows: int, columns: int, depth: int) -> None:
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device,
          taken=quick if is_slow(device) else list)


@pytest.mark.sanitize
def test_epilogues(device: Device) -> None:
    for epilogue in (Epilogue(), RESIDUAL):
        check(GemmProblem(3, 12, 20, epilogue), device,
              taken=quick if is_slow(device) else list)


@pytest.mark.sanitize
@pytest.mark.parametrize("rows", [1, 4, 37])
def test_a_classifier(device: Device, rows: int) -> None:
    columns, depth = (10, 64) if is_slow(device) else (1000, 1280)
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device,
          taken=quick if is_slow(device) else list)
