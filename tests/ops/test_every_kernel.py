"""Every form of every kernel runs: the subset that a sanitizer watches."""

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
