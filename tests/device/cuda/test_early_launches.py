"""Launches that may begin before the kernel before them has ended."""

from __future__ import annotations

import pytest


def test_a_launch_says_that_it_may_begin_early() -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    from cuda.bindings import driver

    from gossamer.device.cuda.kernel import early_launch

    config = early_launch((3, 2, 1), (64, 1, 1), 4096, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (3, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes, config.numAttrs) == (64, 4096, 1)
    (attribute,) = config.attrs
    assert attribute.id == (
        driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    assert attribute.value.programmaticStreamSerializationAllowed == 1
