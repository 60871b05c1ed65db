"""Times that are expected of candidates and conversions."""

from __future__ import annotations

import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.tune.cost import conversion_us, floor_us, model_us
from gossamer.tensor import default_spec
from tests.ops.recording import RecordingDevice
from tests.plan.tune.paced import Paced

HOST = find("host")
IM2COL = HostIm2col()


def floor(problem: Conv2dProblem, algorithm: HostIm2col = IM2COL) -> float:
    return floor_us(algorithm, problem, next(iter(IM2COL.variants(problem, HOST))), HOST)


def test_the_floor_grows_with_the_work_and_shrinks_with_the_zeros() -> None:
    small, large = (floor(Conv2dProblem(batch, 64, 32, 32, 64, (3, 3))) for batch in (1, 8))
    assert small < large < 8 * small
    sparse = Conv2dProblem(8, 64, 32, 32, 64, (3, 3), weights_info=WeightsInfo(0.1, "mask"))
    assert floor(sparse) == large
    assert floor(sparse, Paced("skips", 1.0, dense=False)) < large / 2


def test_the_model_of_an_algorithm_comes_before_the_floor() -> None:
    problem = Conv2dProblem(1, 4, 6, 6, 8, (3, 3))
    variant = next(iter(IM2COL.variants(problem, HOST)))
    assert model_us(IM2COL, problem, variant, HOST) == floor(problem)
    for own, taken in ((77.0, 77.0), (0.0, 0.1)):
        assert model_us(Paced("paced", 1.0, model_us=own), problem, variant, HOST) == taken


def test_each_launch_counts_where_queueing_takes_as_long_as_a_short_kernel() -> None:
    class Queueing(RecordingDevice):
        queued_us = 7.0

    opencl = Queueing()
    problem = Conv2dProblem(1, 512, 7, 7, 64, (3, 3))
    split = {variant["split_k"] > 1: variant for variant in Im2colGemm().variants(problem, opencl)}
    winograd = next(iter(Winograd().variants(problem, opencl)))
    for algorithm, variant, launches in (
            (Paced("paced", 1.0, model_us=50.0), winograd, 1), (Winograd(), winograd, 3),
            (Im2colGemm(), split[False], 1), (Im2colGemm(), split[True], 2)):
        added = (model_us(algorithm, problem, variant, opencl)
                 - model_us(algorithm, problem, variant, RecordingDevice()))
        assert added == pytest.approx(7.0 * launches)


@pytest.mark.parametrize("where", [HOST, RecordingDevice()])
def test_a_larger_conversion_takes_longer_than_a_smaller_one(where: Device) -> None:
    small, large = (conversion_us(spec, spec.with_format(layout="NHWC"), where)
                    for spec in (default_spec((1, 16, size, size)) for size in (16, 512)))
    assert 0 < small < large
