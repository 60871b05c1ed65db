"""Oclgrind reports faults only in its log; these tests prove that the log is read."""

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from tests.fixtures import needed, oclgrind_log

FAULTS = Path(__file__).with_name("faults.cl")


@pytest.fixture
def oclgrind() -> Device:
    return needed("oclgrind")


@pytest.mark.expect_oclgrind
@pytest.mark.parametrize(
    ("function", "complaint"), [("race", "data race"), ("overrun", "Invalid write")])
def test_planted_fault_is_found(oclgrind: Device, function: str, complaint: str) -> None:
    before = len(oclgrind_log())
    buffer = oclgrind.upload(np.zeros(4, np.int32), "a test")
    oclgrind.launch(oclgrind.compile(KernelSource.of(FAULTS, function)), (1,), (8,), (buffer,))
    oclgrind.synchronize()
    assert complaint in oclgrind_log()[before:]


def test_fault_fails_the_test_it_happens_in(
    oclgrind: Device, request: pytest.FixtureRequest
) -> None:
    from tests.fixtures import pytest_runtest_call

    hook = pytest_runtest_call(request.node)
    next(hook)
    buffer = oclgrind.upload(np.zeros(4, np.int32), "a test")
    kernel = oclgrind.compile(KernelSource.of(FAULTS, "overrun"))
    oclgrind.launch(kernel, (1,), (8,), (buffer,))
    oclgrind.synchronize()
    with pytest.raises(pytest.fail.Exception, match="Invalid write"):
        hook.send(None)
    request.node.add_marker("expect_oclgrind")
