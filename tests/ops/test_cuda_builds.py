"""Every kernel builds for the CUDA architectures that it declares, without a driver or a GPU."""

from __future__ import annotations

import pytest

from tests.cubins import build_info
from tests.ops.problems import BUILT
from tests.ops.recording import kernel_sources

pytest.importorskip("cuda.core")
pytest.importorskip("gossamer.device.cuda.nvrtc")


@pytest.mark.parametrize("op", BUILT)
def test_every_kernel_builds_without_spills(op: str) -> None:
    sources = set().union(*map(kernel_sources, BUILT[op]))
    assert sources
    for source in sources:
        for architecture in source.architectures:
            info = build_info(source, architecture)
            assert info.spill_bytes == 0, f"{source} spills on {architecture}"
            assert "warning" not in info.log, info.log
