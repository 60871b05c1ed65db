"""Every kernel that the other tests ran on OpenCL builds for CUDA as well, for each architecture
that it declares, and spills no register. These tests run last; without other tests they build the
kernels named in cubins.py. Where tests run in several processes, tests/workers.py does this for all
of them.
"""

from __future__ import annotations

import pytest

from tests.cubins import ARCHITECTURES, chosen, faults
from tests.fixtures import COMPILED


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_build_without_spills(architecture: str) -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    messages = faults(chosen(COMPILED, ARCHITECTURES[architecture]), architecture)
    assert not messages, "\n".join(messages)
