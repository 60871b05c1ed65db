"""Tests which plans cuDNN lists and builds for an H200 where there is no GPU."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import PRECISIONS, Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor import cudnn_graph
from gossamer.ops.conv2d.vendor.cudnn_graph import CudnnForm, CudnnOffer
from gossamer.ops.vendor import libraries
from tests.ops.conv2d.vendor.test_cudnn import BIAS_CLIP, BIAS_RELU, BIAS_RESIDUAL_RELU

H200 = {
    "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 13000, "cudaDeviceId": 0,
    "pciDeviceId": 0, "multiProcessorCount": 132, "warpSize": 32, "totalGlobalMem": 150122528768,
    "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "l2CacheSize": 62914560, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "memoryBusWidth": 6144, "isTccDriver": 0, "supportCoopLaunch": 1,
}
"""Properties of a device that cuDNN reads, by their names in its JSON descriptor; versions since
9.19 read more."""


class _Library:
    """A cuDNN library that has the properties of an H200 in place of a handle."""

    def __init__(self, api: Any) -> None:
        self.real, self.version = api, api.backend_version_string()
        self.failures = (api.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self.properties = api.create_device_properties(json.dumps(H200))
        self.api = SimpleNamespace(
            pygraph=self._graph, data_type=api.data_type, heur_mode=api.heur_mode,
            numerical_note=api.numerical_note, cuda_graph_retention=api.cuda_graph_retention,
            __version__=api.__version__)

    def _graph(self, *, handle: None, **options: Any) -> Any:
        return self.real.pygraph(device_property=self.properties, sm_version=90, **options)

    @contextlib.contextmanager
    def handle(self) -> Iterator[None]:
        yield None


@pytest.fixture(scope="module")
def library() -> _Library:
    api = libraries._frontend()
    if isinstance(api, str):
        pytest.skip(api)
    try:
        return _Library(api)
    except RuntimeError as error:
        # a version before 9.8, one that reads other properties, or one that needs a driver
        pytest.skip(f"cuDNN {api.backend_version_string()} plans for no described device: {error}")


@pytest.fixture
def h200(library: _Library, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> Iterator[Any]:
    """A device for which cuDNN lists plans and on which nothing runs."""
    monkeypatch.setattr(cudnn_graph, "library_on", lambda name, device: library)
    cudnn_graph._offered.cache_clear()
    yield _Device()
    cudnn_graph._offered.cache_clear()


class _Device:
    """The name and the memory size of an H200."""

    name, description, driver = "cuda:0", "H200 (sm_90)", ""
    limits = SimpleNamespace(memory_bytes=H200["totalGlobalMem"])


LAYER = Conv2dProblem(8, 64, 28, 28, 64, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RELU)
PROBLEMS = {
    "batch 64": replace(LAYER, batch=64), "batch 1": replace(LAYER, batch=1),
    "no epilogue": replace(LAYER, epilogue=Epilogue()),
    "residual": replace(LAYER, epilogue=BIAS_RESIDUAL_RELU),
    "uneven pads": Conv2dProblem(2, 8, 9, 11, 16, (3, 3), (2, 2), (0, 0, 1, 1),
                                 epilogue=BIAS_RELU),
    "dilated": Conv2dProblem(1, 8, 14, 14, 8, (3, 3), pads=(2, 2, 2, 2), dilation=(2, 2)),
    "grouped": replace(LAYER, groups=4, epilogue=Epilogue()),
    "depthwise": Conv2dProblem(4, 32, 28, 28, 32, (3, 3), (2, 2), (1, 1, 1, 1), groups=32),
    "clipped": replace(LAYER, epilogue=BIAS_CLIP),
}


def offers(device: Device, problem: Conv2dProblem) -> dict[CudnnForm, CudnnOffer]:
    forms = [CudnnForm(precision, layout, fused) for precision in PRECISIONS
             for layout in ("NHWC", "NCHW")
             for fused in ((True, False) if problem.epilogue.operands else (False,))]
    return {form: cudnn_graph.offered(device, problem, form) for form in forms}


@pytest.mark.parametrize("name", PROBLEMS)
def test_offers_plans_without_their_epilogue_in_every_form(h200: Any, name: str) -> None:
    for form, offer in offers(h200, PROBLEMS[name]).items():
        if not form.fused:
            assert offer.plans, f"{form}: {offer.refusal}"


@pytest.mark.parametrize("name", ["batch 64", "batch 1", "residual", "uneven pads"])
def test_fuses_a_bias_a_residual_and_a_rectifier_in_every_form(h200: Any, name: str) -> None:
    for form, offer in offers(h200, PROBLEMS[name]).items():
        assert offer.plans, f"{form}: {offer.refusal}"


@pytest.mark.parametrize("name", PROBLEMS)
def test_builds_its_plans_with_the_workspace_that_it_listed(h200: Any, library: _Library,
                                                            name: str) -> None:
    """Engines that cuDNN compiles itself are exceptions: they need a driver to load the code."""
    built = 0
    for form, offer in offers(h200, PROBLEMS[name]).items():
        for plan in offer.plans:
            try:
                graph = cudnn_graph.built(h200, PROBLEMS[name], form, plan)
            except library.failures as error:
                assert "CUDA" in str(error) or "libcuda" in str(error), f"{plan.engine}: {error}"
                continue
            assert graph.get_workspace_size() == plan.workspace
            built += 1
    assert built > 20


def with_note(library: _Library, problem: Conv2dProblem, form: CudnnForm, note: str) -> set[str]:
    """Returns the engines of all plans for a form that carry a numerical note."""
    graph = cudnn_graph._planned(problem, form, library, None)  # type: ignore[arg-type]
    graph.select_numeric_notes([getattr(library.api.numerical_note, note)])
    graph.deselect_workspace_greater_than(-1)
    with pytest.raises(library.failures) as error:
        graph.check_support()
    usable = cudnn_graph.workspaces(str(error.value))
    return {graph.get_plan_name_at_index(index) for index, plan in enumerate(graph.plans)
            if plan.cpp_index in usable}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_only_tf32_uses_tensor_cores(h200: Any, library: _Library, layout: str) -> None:
    strict, fast = (CudnnForm(precision, layout, True) for precision in ("fp32", "tf32"))
    on_tensor_cores = with_note(library, LAYER, strict, "TENSOR_CORE")
    assert on_tensor_cores
    by_form = offers(h200, LAYER)
    assert not {plan.engine for plan in by_form[strict].plans} & on_tensor_cores
    assert {plan.engine for plan in by_form[fast].plans} <= on_tensor_cores


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("fused", [False, True])
def test_strict_float32_has_more_than_the_engines_of_last_resort(h200: Any, layout: str,
                                                                 fused: bool) -> None:
    offer = cudnn_graph.offered(h200, replace(LAYER, batch=64), CudnnForm("fp32", layout, fused))
    assert len({plan.engine.partition("_")[0] for plan in offer.plans}) > 2


def test_refuses_in_one_line(h200: Any) -> None:
    impossible = Conv2dProblem(1, 4, 2, 2, 4, (3, 3))
    for offer in offers(h200, impossible).values():
        assert not offer.plans and offer.refusal and "\n" not in offer.refusal
