from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.gemm import OP
from gossamer.ops.gemm.dense import FewRows
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import Weights
from tests.fixtures import is_slow
from tests.ops.harness import check, quick, random_weights
from tests.ops.recording import RecordingDevice

BIAS_RELU = Epilogue(apply("add").then(apply("relu")), ("channel",))
RESIDUAL = Epilogue(apply("add").then(apply("tanh")), ("tensor",))


def enough(device: Device) -> Callable[[list[Variant]], list[Variant]]:
    """Returns a function that selects the variants which the device runs in seconds: all on a GPU,
    else only one config of 16-bit floats."""
    if device.api == "cuda":
        return list
    return quick if is_slow(device) else lambda variants: [
        *(v for v in variants if v.precision == "fp32"),
        *quick([v for v in variants if v.precision == "fp16"])[:1]]


@given(rows=st.sampled_from([0, 1, 2, 4, 5, 19]), columns=st.sampled_from([1, 4, 10, 33]),
       depth=st.sampled_from([1, 8, 30, 67]))
@example(rows=1, columns=1, depth=8)
@settings(max_examples=8)
def test_any_size(device: Device, rows: int, columns: int, depth: int) -> None:
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device, taken=enough(device))


@pytest.mark.sanitize
def test_epilogues(device: Device) -> None:
    for epilogue in (Epilogue(), RESIDUAL):
        check(GemmProblem(3, 12, 20, epilogue), device, taken=enough(device), vendors=False)


@pytest.mark.parametrize("rows", [1, 4, 37])
def test_a_classifier(device: Device, rows: int) -> None:
    columns, depth = (10, 64) if is_slow(device) else (1000, 1280)
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device, taken=enough(device),
          vendors=False)


@pytest.mark.sanitize
@pytest.mark.parametrize("columns, depth", [(300, 320), (20, 1280)])
@pytest.mark.parametrize("rows", [1, 4, 37])
def test_a_few_tiles(device: Device, rows: int, columns: int, depth: int) -> None:
    """Long sums of few columns are split into more parts than others."""
    if is_slow(device):
        columns, depth = 10, 64
    check(GemmProblem(rows, columns, depth, BIAS_RELU), device, taken=enough(device),
          vendors=False)


def test_every_way_of_applying_an_epilogue(device: Device) -> None:
    for epilogue in (Epilogue(), RESIDUAL, BIAS_RELU):
        check(GemmProblem(37, 12, 20, epilogue), device, taken=enough(device))


def test_configs_come_in_both_precisions(compiled_device: Device) -> None:
    problem = GemmProblem(3, 12, 20, RESIDUAL)
    in_both = 0
    for algorithm in OP.algorithms:
        if (algorithm.vendor or algorithm.by_name_only
                or algorithm.supports(problem, compiled_device) is not None):
            continue
        variants = list(algorithm.variants(problem, compiled_device))
        precisions = {variant.precision for variant in variants}
        if algorithm.name == "large_gemm":
            assert precisions == {"fp32"}
        if precisions != {"fp32", "fp16"}:
            continue
        in_both += 1
        for _, group in itertools.groupby(variants, key=lambda v: v.config):
            precise, as_fp16 = group
            assert precise.as_fp16 == as_fp16
            assert {spec.dtype for spec in (*as_fp16.inputs, *as_fp16.outputs)} == {"float16"}
    assert in_both


@pytest.mark.parametrize(("depth", "vector", "held"), [
    (20, 4, {64: 1, 128: 1, 256: 1}), (999, 1, {64: 16, 128: 8, 256: 4}),
    (1000, 4, {64: 4, 128: 2, 256: 1}), (10_000, 4, {64: 8, 128: 8, 256: 8}),
    (10_001, 1, {64: 32, 128: 32, 256: 32})])
def test_a_work_item_holds_no_more_weights_than_it_reads(depth: int, vector: int,
                                                         held: dict[int, int]) -> None:
    """Each piece of weights that a work-item holds while the previous kernel runs takes registers,
    of which 32 are enough."""
    problem, found = GemmProblem(2, 3, depth), {}
    weights = random_weights(problem)
    for variant in FewRows().variants(problem, RecordingDevice()):
        device = RecordingDevice()
        FewRows().prepare(Weights(weights, device), problem, variant, device)
        (source,) = device.sources
        macros = dict(source.defines)
        assert macros["VECTOR"] == str(vector)
        found.setdefault(variant["work_group"], set()).add(int(macros["HELD"]))
    assert found == {work_group: {pieces} for work_group, pieces in held.items()}
