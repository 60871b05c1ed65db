"""Every kernel builds for the CUDA architectures that it declares, without a driver or a GPU."""

from __future__ import annotations

import pytest

from tests.cubins import check_builds
from tests.ops.problems import BUILT
from tests.ops.recording import kernel_sources

pytest.importorskip("cuda.core")
pytest.importorskip("gossamer.device.cuda.nvrtc")


@pytest.mark.parametrize("op", BUILT)
def test_every_kernel_builds_without_spills(op: str) -> None:
    sources = set().union(*map(kernel_sources, BUILT[op]))
    assert sources
    check_builds(sources)
