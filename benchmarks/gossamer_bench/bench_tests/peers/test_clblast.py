from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gossamer.bench.work import AbsentError
from gossamer.device.base import Device
from gossamer_bench.layer_tables import LinearLayer
from gossamer_bench.peers import clblast as peer
from gossamer_bench.suites.layers import linear
from tests.tolerances import normalised_error, tolerance

SETTINGS = ("GEMMK=0 KREG=1 KWG=16 KWI=2 MDIMA=32 MDIMC=16 MWG=128 NDIMB=32 NDIMC=32 NWG=64 "
            "PRECISION=32 SA=0 SB=0 STRM=1 STRN=0 VWM=2 VWN=2")


@pytest.fixture
def opencl(compiled_device: Device) -> Iterator[Device]:
    if not peer.runs_opencl(compiled_device) or compiled_device.is_simulator:
        pytest.skip("CLBlast runs through OpenCL")
    try:
        peer._library()
    except AbsentError as error:
        pytest.skip(str(error))
    peer._tuned.cache_clear()
    yield compiled_device
    peer._tuned.cache_clear()
    peer._library().CLBlastClearCache()


def write_results(device: Device, settings: str, time: str = "0.5", family: int = 2) -> None:
    handle = device.queue(None).device
    Path(f"clblast_xgemm_{family}_32.json").write_text(json.dumps({
        "device": handle.name, "best_kernel": "Xgemm", "best_time": time,
        "best_parameters": settings}))


def product(device: Device) -> tuple[str, float]:
    """Returns the config of CLBlast's product and its error."""
    layer = LinearLayer("a product", 256, 128, bias=False, rows=384)
    network, x = linear(layer), np.random.default_rng(0).standard_normal((384, 256), np.float32)
    (alternative,) = peer.clblast(network, x, device, ["fp32"])
    ready = alternative.make()
    ready.work(None)
    weight = network.graph.constants[network.graph.nodes[0].inputs[1]]
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    return ready.config, normalised_error(ready.output(384), expected)


def test_the_fastest_results_of_its_tuner_are_used(
        opencl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(opencl, SETTINGS)
    write_results(opencl, SETTINGS.replace("KWI=2", "KWI=8"), "0.75", family=1)
    config, error = product(opencl)
    assert "tuned: GEMMK=0" in config
    assert "KWI=2" in config
    assert error <= tolerance("gemm")


def test_without_results_its_own_settings_are_used(
        opencl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, error = product(opencl)
    assert "not tuned here" in config
    assert error <= tolerance("gemm")


def test_settings_that_it_does_not_take_are_an_absence(
        opencl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(opencl, "GEMMK=0")
    with pytest.raises(AbsentError, match=r"for the settings of its tuner in .*2_32\.json: remove"):
        product(opencl)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": 1, "best_parameters": "A=1"}'])
def test_a_file_that_is_no_result_of_its_tuner_is_an_absence(
        opencl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clblast_xgemm_1_32.json").write_text(text)
    with pytest.raises(AbsentError, match=r"1_32\.json is no result of CLBlast's tuner"):
        product(opencl)
