"""Expected and least times of candidates, and what is learnt from measured times."""

from __future__ import annotations

import pytest

from gossamer.device.registry import find
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.tune.cost import Estimates, Ratios
from gossamer.tensor import default_spec
from tests.ops.recording import RecordingDevice
from tests.plan.tune.paced import Paced

HOST = find("host")
KIND = ("an algorithm", "fp32", "NCHW")


def problem_of(channels: int) -> Conv2dProblem:
    return Conv2dProblem(1, 1 + channels, 8, 8, 4, (1, 1))


def variant_of(problem: Conv2dProblem) -> tuple[HostIm2col, Conv2dProblem, object]:
    algorithm = HostIm2col()
    return algorithm, problem, next(iter(algorithm.variants(problem, HOST)))


def kinds(doubt: float = 0.0) -> Ratios:
    """Returns ratios that count from six keys on, and at least 0.4 until then."""
    return Ratios(doubt, 6, 0.4)


def test_the_model_is_all_that_is_known_at_first() -> None:
    ratios = Estimates(HOST).of_kind[KIND]
    assert ratios.expected_us(50.0) == 50.0
    assert ratios.least_us(50.0) == pytest.approx(20.0)


def test_the_scale_of_a_kind_is_learnt() -> None:
    estimates = Estimates(HOST)
    ratios = estimates.of_kind[KIND]
    for channels in range(5):
        ratios.learn(problem_of(channels), 10.0, 30.0)
    assert ratios.expected_us(100.0) == pytest.approx(300.0)
    assert ratios.least_us(100.0) == pytest.approx(40.0), "five are too few"
    ratios.learn(problem_of(5), 10.0, 30.0)
    assert ratios.least_us(100.0) == pytest.approx(0.9 * 300.0)
    assert estimates.of_kind["another", *KIND[1:]].expected_us(100.0) == 100.0


def test_many_times_of_one_layer_say_nothing_of_other_layers() -> None:
    ratios = kinds()
    for _ in range(40):
        ratios.learn(problem_of(0), 10.0, 60.0)
    assert ratios.least_us(100.0) == pytest.approx(40.0)


def test_of_a_problem_the_best_time_counts_in_whichever_order() -> None:
    ratios = kinds()
    for channels in range(6):
        for time_us in (50.0, 20.0, 90.0):
            ratios.learn(problem_of(channels), 10.0, time_us)
    assert ratios.expected_us(100.0) == pytest.approx(200.0)
    assert ratios.least_us(100.0) == pytest.approx(0.9 * 200.0)


@pytest.mark.parametrize(("doubt", "least"), [(0.0, 1.0), (0.1, 2.0), (0.35, 4.0)])
def test_a_share_of_candidates_may_be_faster_than_the_least_time(doubt: float,
                                                                 least: float) -> None:
    ratios = kinds(doubt)
    for ratio in (7, 3, 10, 1, 5, 2, 9, 4, 6, 8):
        ratios.learn(ratio, 10.0, 10.0 * ratio)
    assert ratios.least_us(1.0) == pytest.approx(0.9 * least)


def test_later_configs_are_judged_by_the_first() -> None:
    estimates = Estimates(HOST)
    ratios = estimates.of_configs["an algorithm"]
    for number in range(11):
        ratios.learn(number, 100.0, 80.0)
    assert ratios.least_us(60.0) == 15.0, "eleven pairs are too few"
    ratios.learn(11, 100.0, 80.0)
    assert ratios.least_us(60.0) == pytest.approx(0.9 * 0.8 * 60.0)
    slower = estimates.of_configs["a slower one"]
    for number in range(12):
        slower.learn(number, 100.0, 300.0)
    assert slower.least_us(60.0) == pytest.approx(0.9 * 60.0)


def test_a_clock_that_stands_still_is_no_error() -> None:
    ratios = kinds()
    ratios.learn(problem_of(1), 10.0, 0.0)
    ratios.learn(problem_of(2), 0.0, 0.0)
    assert ratios.expected_us(10.0) > 0


def test_the_floor_grows_with_the_work_and_shrinks_with_the_zeros() -> None:
    estimates = Estimates(HOST)
    small, large = (Conv2dProblem(batch, 64, 32, 32, 64, (3, 3)) for batch in (1, 8))
    floors = [estimates.floor_us(*variant_of(problem)) for problem in (small, large)]  # type: ignore[arg-type]
    assert floors[0] < floors[1] < 8 * floors[0]
    sparse = Conv2dProblem(8, 64, 32, 32, 64, (3, 3), weights_info=WeightsInfo(0.1, "mask"))
    algorithm, _, variant = variant_of(sparse)
    assert estimates.floor_us(algorithm, sparse, variant) == floors[1]  # type: ignore[arg-type]
    skips = Paced("skips", 1.0, dense=False)
    assert estimates.floor_us(skips, sparse, variant) < floors[1] / 2  # type: ignore[arg-type]


def test_the_model_of_an_algorithm_comes_before_the_floor() -> None:
    estimates = Estimates(HOST)
    algorithm, problem, variant = variant_of(Conv2dProblem(1, 4, 6, 6, 8, (3, 3)))
    assert estimates.model_us(algorithm, problem, variant) == (  # type: ignore[arg-type]
        estimates.floor_us(algorithm, problem, variant))  # type: ignore[arg-type]
    for own, taken in ((77.0, 77.0), (0.0, 0.1)):
        modelled = Paced("paced", 1.0, model_us=own)
        assert estimates.model_us(modelled, problem, variant) == taken  # type: ignore[arg-type]


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
        added = (Estimates(opencl).model_us(algorithm, problem, variant)
                 - Estimates(RecordingDevice()).model_us(algorithm, problem, variant))
        assert added == pytest.approx(7.0 * launches)


def test_the_least_time_of_a_conversion_is_less_than_the_expected_time() -> None:
    estimates = Estimates(HOST)
    times = []
    for size in (16, 512):
        source = default_spec((1, 16, size, size))
        target = source.with_format(layout="NHWC")
        least = estimates.least_conversion_us(source, target)
        expected = estimates.conversion_us(source, target)
        assert 0 < least < expected
        times.append((least, expected))
    assert times[0][0] < times[1][0] and times[0][1] < times[1][1]


def test_what_is_saved_is_an_average_over_what_was_measured() -> None:
    ratios = kinds()
    for ratio in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
        assert ratios.saving_us(10.0, 25.0) is None
        ratios.learn(ratio, 10.0, 10.0 * ratio)
    # 15 and 5 us are saved in two cases of six
    assert ratios.saving_us(10.0, 25.0) == pytest.approx(20 / 6)
    assert ratios.saving_us(10.0, 10.0) == 0.0


def learnt(algorithm: Paced | HostIm2col, problems: int, layouts: str = "NCHW") -> Estimates:
    """Returns estimates that know a time of 15 us, for a model time of 10 us, for some problems."""
    estimates = Estimates(RecordingDevice())
    for channels in range(problems):
        estimates.learn(algorithm, ("an algorithm", "fp32", layouts), problem_of(channels), 10.0,
                        15.0)
    return estimates


def test_until_a_kind_is_known_other_layouts_stand_in_for_it() -> None:
    other, modelled = ("an algorithm", "fp32", "NHWC"), Paced("paced", 1.0)
    ratios = learnt(modelled, 2).ratios(other)
    assert ratios.expected_us(100.0) == 100.0, "two problems are too few"
    estimates = learnt(modelled, 3)
    ratios = estimates.ratios(other)
    assert ratios.expected_us(100.0) == pytest.approx(150.0)
    assert ratios.least_us(100.0) == pytest.approx(0.9 * 0.75 * 150.0)
    for unknown in (("an algorithm", "fp16", "NHWC"), ("another", "fp32", "NHWC")):
        assert estimates.ratios(unknown).expected_us(100.0) == 100.0
    for channels in range(6):
        estimates.learn(modelled, other, problem_of(channels), 10.0, 80.0)
    ratios = estimates.ratios(other)
    assert ratios.least_us(100.0) == pytest.approx(0.9 * 800.0)


def test_a_lower_bound_says_nothing_about_other_layouts() -> None:
    ratios = learnt(HostIm2col(), 6).ratios(("an algorithm", "fp32", "NHWC"))
    assert ratios.expected_us(100.0) == 100.0


def test_the_order_of_layouts_on_processors_is_less_sure() -> None:
    estimates = Estimates(HOST)
    for channels in range(3):
        estimates.learn(Paced("paced", 1.0), KIND, problem_of(channels), 10.0, 15.0)
    ratios = estimates.ratios((*KIND[:2], "NHWC"))
    assert ratios.least_us(100.0) == pytest.approx(0.9 * 0.4 * 150.0)
