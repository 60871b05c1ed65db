"""Kernels for tensor cores round to TF32; emulated tensor cores truncate, as those of GPUs do."""

from __future__ import annotations

import pytest

from tests.emulation.test_faults import Emulate
from tests.ops.test_tf32_rounding import CASES, OF_WARPGROUPS, check_rounding, variants_of


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_rounded(emulate: Emulate, name: str) -> None:
    device = emulate("plain")
    variants = variants_of(name, device)
    check_rounding(name, device, variants[::max(1, len(variants) // 2)])


@pytest.mark.parametrize("name", OF_WARPGROUPS)
def test_inputs_of_warpgroups_are_rounded(emulate: Emulate, name: str) -> None:
    device = emulate("plain", wgmma=True, cluster=1)
    variants = [variant for variant in variants_of(name, device)
                if dict(variant.config).get("wgmma")]
    check_rounding(name, device, variants[::max(1, len(variants) // 3)])
