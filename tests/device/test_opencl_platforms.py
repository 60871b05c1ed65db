"""The OpenCL devices and drivers of a machine, and what they report."""

from types import SimpleNamespace

import pytest

platforms = pytest.importorskip("gossamer.device.opencl_driver")


def test_gpus_come_first_and_the_simulator_last(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator, cpu, gpu = (
        SimpleNamespace(platform=SimpleNamespace(name=f"{driver} "), type=kind)
        for driver, kind in (("Oclgrind", 2 + 4), ("A", 2), ("B", 4)))
    monkeypatch.setattr(platforms.cl, "get_platforms", lambda: [
        SimpleNamespace(get_devices=lambda: [simulator, cpu]),
        SimpleNamespace(get_devices=lambda: [gpu])])
    assert platforms.handles() == [gpu, cpu, simulator]
    assert [platforms.is_gpu(handle) for handle in platforms.handles()] == [True, False, False]
