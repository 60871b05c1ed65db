"""Tests of the description of kernels."""

from __future__ import annotations

from pathlib import Path

from gossamer.device.source import KernelSource


def test_kernels_of_one_architecture_are_built_for_it() -> None:
    of_all = KernelSource(Path("a.cu"), "a", architectures=("sm_80", "sm_100"))
    of_hopper = KernelSource(Path("a.cu"), "a", architectures=("sm_90a", "sm_90a"))
    assert of_all.built_for("sm_90") == "sm_90"
    assert of_hopper.built_for("sm_90") == "sm_90a"
    assert of_hopper.built_for("sm_100") == "sm_100"
