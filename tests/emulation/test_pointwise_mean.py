"""Tests the kernel of pointwise_mean in emulation."""

from __future__ import annotations

import pytest

from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_pointwise_mean import ALGORITHM, PROBLEMS, check


@pytest.mark.parametrize("mode, name, precision", [
    ("plain", "usual", "fp16"), ("bounds", "usual", "fp32"), ("races", "usual", "fp16"),
    ("plain", "pooled", "fp32"), ("bounds", "pooled", "fp16"),
    ("bounds", "large", "tf32"), ("races", "large", "fp32"), ("plain", "large", "fp16"),
    ("bounds", "unused channels", "fp16"), ("plain", "unused channels", "fp32")])
def test_it_computes_the_means(emulate: Emulate, mode: str, name: str, precision: str) -> None:
    device = emulate(mode, schedule=1)
    variants = [variant for variant in ALGORITHM.variants(PROBLEMS[name], device)
                if variant.precision == precision]
    check(PROBLEMS[name], device, [variants[0], variants[-1]] if mode == "plain" else variants[:1])
