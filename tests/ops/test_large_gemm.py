from __future__ import annotations

import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.gemm.large import LargeGemm
from gossamer.ops.gemm.problem import GemmProblem
from tests.fixtures import is_slow
from tests.ops.harness import check_variants
from tests.ops.recording import RecordingDevice

BIAS_RESIDUAL = Epilogue(apply("add").then(apply("add")), ("channel", "tensor"))


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", [GemmProblem(300, 132, 20, BIAS_RESIDUAL),
                                     GemmProblem(256, 256, 16), GemmProblem(4, 8, 12)],
                         ids=GemmProblem.describe)
def test_every_config(compiled_device: Device, problem: GemmProblem) -> None:
    if is_slow(compiled_device) and problem.rows > 4:
        pytest.skip("Oclgrind interprets: one tile is enough to show a race")
    variants = list(LargeGemm().variants(problem, compiled_device))
    if is_slow(compiled_device):
        # one that keeps the next tile in registers, and one with asynchronous copies
        variants = list({variant["tiles"]: variant for variant in variants}.values())
    check_variants(LargeGemm(), problem, compiled_device, variants, supported=False)


def test_reasons_are_given(compiled_device: Device) -> None:
    device = RecordingDevice()
    for problem, reason in ((GemmProblem(64, 512, 512), "128 rows and columns or more"),
                            (GemmProblem(512, 510, 512), "multiples of 4"),
                            (GemmProblem(512, 512, 0), "multiples of 4"),
                            (GemmProblem(128, 2**16, 2**15), "2^31 weights or more")):
        assert reason in (LargeGemm().supports(problem, device) or "")
    assert LargeGemm().supports(GemmProblem(512, 512, 512), device) is None
    if compiled_device.on_processors:
        assert "made for GPUs" in (LargeGemm().supports(GemmProblem(512, 512, 512),
                                                        compiled_device) or "")
