"""Tests of peak rates that need a library."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.algorithm import Variant
from gossamer.ops.gemm.dense import HostGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.registry import OPS
from gossamer_bench import peaks


class Library(HostGemm):
    """A vendor's product on the host, which claims to compute in float16 too."""

    name = "library"
    vendor = "Library"

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for variant in super().variants(problem, device):
            yield from (variant, dataclasses.replace(variant, precision="fp16"))


class Absent(Library):
    name = "absent"

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return "Library is not installed: pip install '.[vendor]'"


@pytest.mark.parametrize("library", [Library, Absent])
def test_tensor_cores_rates_are_those_of_a_library(
    library: type[Library], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    launch = HostGemm.launch
    monkeypatch.setattr(Library, "launch", lambda self, state, *arguments: (
        ran.append(state.variant.precision), launch(self, state, *arguments)))
    monkeypatch.setitem(OPS, "gemm", dataclasses.replace(OPS["gemm"], algorithms=(library(),)))
    monkeypatch.setattr(peaks, "_LARGE", 16)
    monkeypatch.setattr(peaks, "_MATRIX", 16)
    measured = peaks.measure_peaks(find("host"), ["fp32", "fp16"])
    assert measured.device == "host" and measured.flops["fp32"] > 0
    if library is Library:
        assert set(ran) == {"fp16"} and measured.flops["fp16"] > 0 and not measured.unknown
    else:
        assert not ran and measured.unknown == {"fp16": Absent().supports(None, None)}
        assert measured.speed_of_light_us(1, 1, "fp16") is None
