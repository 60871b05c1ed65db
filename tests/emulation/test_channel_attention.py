"""Tests the kernel of channel_attention in emulation."""

from __future__ import annotations

import pytest

from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_channel_attention import ALGORITHM, PROBLEMS, check


@pytest.mark.parametrize("mode, name, precision", [
    ("plain", "usual", "fp16"), ("bounds", "usual", "fp32"), ("races", "usual", "fp16"),
    ("bounds", "residual", "fp16"), ("races", "residual", "fp32"),
    ("bounds", "unused", "fp16"), ("plain", "unused", "fp32"), ("bounds", "large", "fp32")])
def test_it_computes_the_layer(emulate: Emulate, mode: str, name: str, precision: str) -> None:
    device = emulate(mode, schedule=1)
    variants = [variant for variant in ALGORITHM.variants(PROBLEMS[name], device)
                if variant.precision == precision]
    check(PROBLEMS[name], device, variants if mode == "plain" else [variants[0], variants[-1]])
