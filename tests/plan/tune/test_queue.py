"""The order in which candidates are measured, and which are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gossamer.device.registry import find
from gossamer.device.source import KernelSource
from gossamer.measure import Timing
from gossamer.ops.algorithm import Variant
from gossamer.plan.measurement import Measurement
from gossamer.plan.tune.estimates import Estimates
from gossamer.plan.tune.kernel_costs import KernelCosts
from gossamer.plan.tune.layer_times import Attempt, CandidateGroup, LayerTimes
from gossamer.plan.tune.queue import AttemptQueue
from gossamer.plan.tune.runner import attempts_of
from tests.plan.tune.paced import Paced, layer

HOST = find("host")


def group(name: str = "conv", *times: LayerTimes, channels: int = 4) -> CandidateGroup:
    of = layer(name, channels=channels)
    assert of.problem is not None
    return CandidateGroup(of.problem, of, list(times) or [LayerTimes(name)])


def attempt(of: CandidateGroup, model_us: float, name: str = "paced", *, layout: str = "NCHW",
          dtype: str = "float32", precision: str = "fp32", build_seconds: float = 0.0,
          is_required: bool = False) -> Attempt:
    (variant,) = Paced(name, 1.0).variants(of.problem, HOST)  # type: ignore[arg-type]

    def changed(specs: Sequence) -> tuple:
        return tuple(spec.with_format(layout=layout, dtype=dtype) for spec in specs)

    variant = Variant(variant.config, changed(variant.inputs), changed(variant.outputs), precision,
                      build_seconds=build_seconds)
    return Attempt(of, Paced(name, 1.0), variant, model_us, is_required=is_required)


def measure(queue: AttemptQueue, tried: Attempt, time_us: float) -> None:
    tried.measured = Measurement.of(tried.algorithm, tried.variant,
                                    Timing(time_us, time_us, time_us, 1))
    queue.learn(tried)


def queue_of(*attempts: Attempt, everything: bool = False) -> AttemptQueue:
    return AttemptQueue(attempts, Estimates(HOST), everything=everything)


def test_what_is_required_comes_first_whatever_is_expected_of_it() -> None:
    of = group()
    required = attempt(of, 1e6, is_required=True)
    queue = queue_of(attempt(of, 1.0, "quick"), required, attempt(of, 2.0, "other"))
    assert queue.pop() is required and len(queue) == 2


def test_what_is_required_may_wait_for_its_turn() -> None:
    of = group()
    required, quick = attempt(of, 1e6, is_required=True), attempt(of, 1.0, "quick")
    queue = AttemptQueue([required, quick], Estimates(HOST), required_first=False)
    assert queue.pop() is quick
    measure(queue, quick, 1.0)
    assert queue.pop() is None and queue.not_tried == [required]


def test_a_required_one_is_tried_though_it_is_useless() -> None:
    of = group()
    fast, required = attempt(of, 1.0), attempt(of, 1e6, is_required=True)
    queue = queue_of(required)
    measure(queue, fast, 1.0)
    assert queue.pop() is required and not queue.not_tried


def test_only_required_ones_are_left_to_measure_when_time_is_over() -> None:
    of = group()
    attempts = [attempt(of, 10.0 + n, is_required=n in (1, 3)) for n in range(5)]
    queue = queue_of(*attempts)
    popped = {id(queue.pop_required()), id(queue.pop_required())}
    assert popped == {id(attempts[1]), id(attempts[3])}
    assert queue.pop_required() is None and len(queue) == 3 and not queue.not_tried


def test_useless_ones_are_left_with_their_reason() -> None:
    of = group()
    fast, slow = attempt(of, 10.0, "fast"), attempt(of, 100.0, "slow")
    unclear = attempt(of, 20.0, "new")
    queue = queue_of(slow, unclear)
    measure(queue, fast, 12.5)
    assert queue.pop() is unclear, "it may take 0.4 times as long as its model says"
    assert queue.pop() is None and queue.not_tried == [slow]
    assert slow.measured is not None and slow.measured.not_tried and slow.time_us is None
    assert slow.measured.failure == "not tried: at least 40.0 us expected against 12.5 us"


def test_everything_is_tried_where_that_is_asked_for() -> None:
    of = group()
    slow = attempt(of, 1e6, "slow")
    queue = queue_of(slow, everything=True)
    measure(queue, attempt(of, 1.0, "fast"), 1.0)
    assert queue.pop() is slow and queue.pop() is None and queue.not_tried == []


def test_layers_without_a_time_come_first_each_with_what_is_expected_to_be_fastest() -> None:
    known, new = group("known"), group("new")
    first = attempt(known, 100.0)
    gain, slower, faster = attempt(known, 50.0), attempt(new, 7.0, "a"), attempt(new, 3.0, "b")
    queue = queue_of(gain, slower, faster)
    measure(queue, first, 100.0)
    assert [queue.pop(), queue.pop(), queue.pop()] == [faster, gain, None]
    assert queue.pop(is_idle=True) is slower, "it may be faster than what is expected of the other"


def test_an_attempt_waits_for_one_of_its_layer_that_is_expected_to_be_as_fast() -> None:
    new, other = group("new"), group("other")
    first, second = attempt(new, 3.0, "a"), attempt(new, 3.0, "b")
    queue = queue_of(second, first, attempt(other, 9.0))
    assert queue.pop() is second and queue.pop() is not None and queue.pop() is None
    queue.end(second)
    measure(queue, second, 6.0)
    assert queue.pop() is first


def test_an_attempt_waits_for_one_of_its_layer_that_is_surely_faster() -> None:
    known, new = group("known"), group("new")
    faster, slower, gain = attempt(new, 3.0, "b"), attempt(new, 9.0, "a"), attempt(known, 50.0)
    queue = queue_of(gain, slower, faster)
    measure(queue, attempt(known, 100.0), 100.0)
    assert [queue.pop(), queue.pop(), queue.pop(is_idle=True)] == [faster, gain, None]
    assert len(queue) == 1 and queue.has_of(new) and queue.not_tried == []
    queue.end(faster)
    measure(queue, faster, 3.0)
    assert queue.pop() is None and queue.not_tried == [slower]


def test_an_attempt_is_tried_after_one_that_failed_instead() -> None:
    new = group("new")
    faster, slower = attempt(new, 3.0, "b"), attempt(new, 9.0, "a")
    queue = queue_of(slower, faster)
    assert [queue.pop(), queue.pop()] == [faster, None]
    queue.end(faster)
    queue.forget(faster)
    assert queue.pop() is slower and not queue.has_of(new)


def test_attempts_that_need_the_compiler_and_others_are_asked_for_apart() -> None:
    compiled, more, others = group("compiled"), group("more"), group("vendor")
    attempts = [attempt(compiled, 5.0), attempt(more, 6.0), attempt(others, 7.0, "vendor")]
    attempts[2].algorithm.vendor = "a library"
    queue = queue_of(*attempts)
    assert queue.pop(compiles=False) is attempts[2] and queue.pop(compiles=False) is None
    assert [queue.pop(compiles=True), queue.pop()] == attempts[:2]


def test_an_attempt_waits_for_kernels_that_another_one_compiles() -> None:
    sources = [KernelSource.of(Path("a.cl"), name) for name in ("shared", "own")]
    attempts = [attempt(group(name), us) for name, us in (("one", 1.0), ("two", 2.0))]
    attempts[0].kernels, attempts[1].kernels = (sources[0],), (sources[0],)
    queue = queue_of(*attempts)
    assert queue.pop(compiles=False) is None
    assert queue.pop(compiles=True) is attempts[0]
    assert queue.pop() is None and len(queue) == 1, "it would only wait for the compiler"
    queue.end(attempts[0])
    assert queue.pop(compiles=True) is None and queue.pop(compiles=False) is attempts[1]


def test_layers_without_a_time_take_turns() -> None:
    one, other = group("one"), group("other")
    attempts = [attempt(one, 1.0, "a"), attempt(one, 1.1, "b"), attempt(other, 2.0, "a")]
    queue = queue_of(*attempts)
    assert [queue.pop() for _ in attempts] == [attempts[0], attempts[2], None]
    assert queue.pop(is_idle=True) is attempts[1]


def test_the_largest_gain_comes_first() -> None:
    small, large = group("small"), group("large")
    little, much = attempt(small, 5.0), attempt(large, 500.0)
    queue = queue_of(little, much)
    measure(queue, attempt(small, 10.0, "known"), 10.0)
    measure(queue, attempt(large, 1000.0, "known"), 1000.0)
    assert [queue.pop(), queue.pop()] == [much, little]


def test_a_gain_is_weighed_against_the_time_to_build() -> None:
    of = group()
    slow_build = attempt(of, 50.0, "slow to build", build_seconds=60.0)
    quick_build = attempt(of, 60.0, "quick to build")
    queue = queue_of(slow_build, quick_build)
    measure(queue, attempt(of, 100.0, "known"), 100.0)
    assert [queue.pop(), queue.pop()] == [quick_build, slow_build]


def test_what_serves_several_layers_is_worth_more_and_useless_for_none_only() -> None:
    one, two = LayerTimes("one"), LayerTimes("two")
    shared, alone = group("shared", one, two), group("alone", two)
    queue = queue_of()
    measure(queue, attempt(shared, 100.0, "known"), 100.0)
    measure(queue, attempt(alone, 100.0, "sparse"), 10.0)
    useful = attempt(shared, 200.0, "other")
    assert queue.bound(useful) == 100.0
    assert not queue.is_useless(useful), "80 us at least, against 100 us for the first layer"
    assert queue.is_useless(attempt(alone, 200.0, "other"))


def test_a_region_is_no_use_where_its_layers_alone_are_clearly_faster() -> None:
    region = group("region", LayerTimes("region", alone_us=100.0))
    queue = queue_of()
    assert queue.bound(attempt(region, 10.0)) == 125.0, "some more, for conversions that it saves"
    assert queue.is_useless(attempt(region, 400.0))
    assert not queue.is_useless(attempt(region, 200.0))
    measure(queue, attempt(region, 50.0, "fused"), 50.0)
    assert queue.bound(attempt(region, 10.0)) == 50.0


def test_other_formats_are_known_with_their_conversions() -> None:
    of = group()
    queue, estimates = queue_of(), Estimates(HOST)
    first, other = attempt(of, 10.0), attempt(of, 10.0, layout="NHWC")
    measure(queue, first, 10.0)
    conversions = sum(map(estimates.conversion_us, first.specs, other.specs))
    assert queue.bound(other) == pytest.approx(10.0 + conversions)
    assert queue.bound(attempt(of, 10.0, "another")) == 10.0
    measure(queue, other, 4.0)
    assert queue.bound(attempt(of, 10.0, "another", layout="NHWC")) == 4.0
    assert queue.bound(first) == 10.0


def test_a_failure_bounds_nothing() -> None:
    of = group()
    queue, broken = queue_of(), attempt(of, 10.0)
    broken.measured = Measurement.of(broken.algorithm, broken.variant, failure="does not run")
    queue.learn(broken)
    assert queue.bound(attempt(of, 10.0)) == math.inf and of.layers[0].best_us == math.inf


@pytest.mark.parametrize(("is_inner", "keeps", "counts"), [
    (True, False, "alone"), (False, False, "with conversions"), (True, True, "not"),
    (False, True, "not")])
def test_less_precise_candidates_stand_for_more_precise_ones_where_they_may(
        is_inner: bool, keeps: bool, counts: str) -> None:
    of = group("conv", LayerTimes("conv", is_inner, keeps))
    queue = queue_of()
    half = attempt(of, 10.0, dtype="float16", precision="fp16")
    full = attempt(of, 10.0)
    measure(queue, half, 10.0)
    bound = queue.bound(full)
    if counts == "alone":
        assert bound == 10.0
    elif counts == "with conversions":
        assert 10.0 < bound < math.inf
    else:
        assert bound == math.inf
    measure(queue, full, 1.0)
    conversions = sum(map(Estimates(HOST).conversion_us, half.specs, full.specs))
    assert queue.bound(half) == pytest.approx(min(10.0, 1.0 + conversions))


def test_a_later_config_is_judged_by_the_first() -> None:
    of = group()
    leader, later = attempt(of, 10.0), attempt(of, 10.0)
    later.leader = leader
    queue = queue_of()
    assert queue.least_us(later) == pytest.approx(4.0)
    measure(queue, leader, 100.0)
    assert queue.least_us(later) == pytest.approx(25.0)
    measure(queue, attempt(of, 10.0, "fast"), 20.0)
    assert queue.is_useless(later)


def test_all_threads_are_not_judged_by_one() -> None:
    """On many processors they take a small part of the time."""
    of = group()
    paced, (variant,) = Paced("paced", 1.0), Paced("paced", 1.0).variants(of.problem, HOST)
    pairs = [(paced, replace(variant, config=(("tile", tile), ("threads", threads))))
             for threads in (1, "all") for tile in (1, 2)]
    one, other, every, last = attempts_of(of, pairs, Estimates(HOST))
    assert [each.leader for each in (one, other, every, last)] == [None, one, None, every]
    queue = queue_of()
    for number in range(20):
        alone = group(f"layer{number}", channels=number + 1)
        (single,) = attempts_of(alone, pairs[:1], Estimates(HOST))
        measure(queue, single, 5000.0)
    measure(queue, one, 5000.0)
    measure(queue, attempt(of, 10.0, "fast"), 100.0)
    assert queue.is_useless(other) and not queue.is_useless(every)


@pytest.mark.parametrize(("builders", "seconds"), [(1, 4.0), (4, 1.0), (16, 0.5), (64, 0.5)])
def test_building_takes_as_long_as_the_processors_need(builders: int, seconds: float) -> None:
    slow = attempt(group(), 1.0, "slow", build_seconds=4.0)
    queue = AttemptQueue([slow], Estimates(HOST), worth=1.0, costs=KernelCosts(builders))
    measure(queue, attempt(slow.group, 1.0), 2.0)
    assert queue.pop() is None and slow.measured is not None
    assert f"for {seconds + 0.01:.2f} s of building" in str(slow.measured.failure)


def test_layers_of_a_region_that_is_clearly_faster_are_left_to_it() -> None:
    first, second, region = (LayerTimes(name) for name in ("first", "second", "first + second"))
    region.parts = [first, second]
    first.covered_by, second.covered_by = [[region]], [[region]]
    of_first, of_second = group("first", first), group("second", second)
    queue, left = queue_of(), attempt(of_first, 1.0, "left")
    for number in range(5):
        measure(queue, attempt(of_first, 100.0, f"paced{number}"), 100.0)
        measure(queue, attempt(of_second, 100.0, f"paced{number}"), 100.0 + number)
        assert not queue.is_useless(left)
    fused = attempt(group("region", region), 100.0)
    assert queue.bound(fused) == 250.0
    measure(queue, fused, 130.0)
    assert not queue.is_useless(left), "the layers may still become faster than the region"
    measure(queue, attempt(group("region", region), 100.0, "faster"), 110.0)
    assert queue.is_useless(left) and left.is_transient
    assert left.measured is not None and left.measured.failure == (
        "not tried: first + second takes 110.0 us, its layers alone 200.0 us so far")
    measure(queue, attempt(of_second, 100.0, "fast"), 20.0)
    assert not queue.is_useless(left)


def layer_in_a_fast_region(us: float = 10.0) -> tuple[AttemptQueue, CandidateGroup]:
    """Returns a queue and the group of a layer of which nothing was tried, in a measured region."""
    of_layer = group("layer", LayerTimes("layer"))
    (times,), region = of_layer.layers, LayerTimes("region")
    region.parts, times.covered_by = [times], [[region]]
    queue = queue_of()
    measure(queue, attempt(group("region", region), 100.0), us)
    return queue, of_layer


@pytest.mark.parametrize(("us", "tried"), [(10.0, 3), (55.0, 5)])
def test_a_region_is_compared_with_layers_of_which_enough_was_tried(us: float,
                                                                    tried: int) -> None:
    queue, of_layer = layer_in_a_fast_region(us)
    left = attempt(of_layer, 1.0, "left")
    for number in range(tried):
        assert not queue.is_useless(left)
        measure(queue, attempt(of_layer, 100.0, f"paced{number}"), 100.0)
    assert queue.is_useless(left)


def test_a_candidate_that_failed_afterwards_does_not_count_as_tried() -> None:
    queue, of_layer = layer_in_a_fast_region()
    left = attempt(of_layer, 1.0, "left")
    tried = [attempt(of_layer, 100.0, f"paced{number}") for number in range(3)]
    for each in tried:
        measure(queue, each, 100.0)
    assert queue.is_useless(left)
    queue.forget(tried[-1])
    assert not queue.is_useless(left)


def test_what_a_layer_saves_counts_below_its_share_of_a_faster_region() -> None:
    estimates = Estimates(HOST)
    of, region = group("layer"), LayerTimes("region")
    (times,) = of.layers
    region.parts, times.covered_by = [times], [[region]]
    first, other = attempt(of, 100.0), attempt(of, 60.0, "other")
    queue = AttemptQueue([other], estimates, worth=10.0)
    measure(queue, first, 100.0)
    assert times.useful_share == 1.0, "the region has no time yet"
    measure(queue, attempt(group("region", region), 100.0), 60.0)
    assert times.useful_share == 0.6
    measure(queue, attempt(group("region", region), 100.0, "faster"), 20.0)
    assert times.useful_share == 0.2 and not queue.is_useless(other)
    slow = attempt(of, 130.0, "slow")
    queue.extend([slow])
    assert queue.pop() is None and set(queue.not_tried) == {other, slow}
    assert other.is_transient and not slow.is_transient, "one would be tried without the region"


@pytest.mark.parametrize(("keeps", "elsewhere"), [(True, False), (False, True)])
def test_a_layer_that_may_be_needed_alone_is_not_left_to_a_region(
        keeps: bool, elsewhere: bool) -> None:
    of_layer = group("layer", LayerTimes("layer", keeps_precisions=keeps))
    (times,), region = of_layer.layers, LayerTimes("region")
    region.parts, times.covered_by = [times], [[region], *[[]] * elsewhere]
    queue = queue_of()
    measure(queue, attempt(group("region", region), 100.0), 10.0)
    for number in range(5):
        measure(queue, attempt(of_layer, 100.0, f"paced{number}"), 100.0)
    assert not queue.is_useless(attempt(of_layer, 1.0, "left"))


def test_when_time_is_over_what_is_required_is_tried_where_it_may_be_faster() -> None:
    of, other = group("of"), group("other")
    slow, needed = (attempt(each, 1e6, is_required=True) for each in (of, other))
    queue = queue_of(slow, needed)
    measure(queue, attempt(of, 1.0, "fast"), 1.0)
    assert queue.pop_required() is needed and queue.pop_required() is None
    assert list(queue) == [slow]


def test_the_last_candidate_of_a_layer_is_measured_whatever_takes_its_place() -> None:
    of = group()
    region = LayerTimes("region", parts=of.layers, best_us=1.0)
    for times in of.layers:
        times.covered_by.append([region])
        times.tried.update({("a", "", "", ""), ("b", "", "", ""), ("c", "", "", "")})
    last = attempt(of, 1e6, is_required=True)
    queue = AttemptQueue([last], Estimates(HOST), required_first=False)
    assert queue.pop() is last, "a layer without any time is not left to a region"
    fast = attempt(of, 1.0, "quick")
    measure(queue, fast, 1.0)
    queue.extend([last])
    assert queue.pop() is None
    last.is_last = True
    queue.extend([last])
    assert queue.pop() is last
