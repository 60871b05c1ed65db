"""Runs every form of every kernel, as a small set of tests for sanitizers."""

from __future__ import annotations

import pytest

from gossamer.device.base import Device
from tests.ops.harness import check
from tests.ops.problems import PROBLEMS


@pytest.mark.sanitize
@pytest.mark.parametrize("op", PROBLEMS)
def test_every_kernel(compiled_device: Device, op: str) -> None:
    for problem in PROBLEMS[op]:
        check(problem, compiled_device, vendors=False)
