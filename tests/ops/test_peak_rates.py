"""Devices of other rates order the configs of matrix products for themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.device.host import HostDevice
from gossamer.device.limits import Limits, PeakRates
from gossamer.ops.algorithm import Algorithm
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.wide_gemm import WideGemm
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gpu import H200_UNIT
from gossamer.ops.peak_rates import nominal_rates, rates_of_unit

LAYERS = [Conv2dProblem(batch, channels, size, size, out, (kernel, kernel),
                        (stride, stride), (kernel // 2,) * 4)
          for batch, channels, size, out, kernel, stride in (
              (1, 3, 416, 32, 3, 2), (1, 64, 104, 64, 3, 1), (1, 256, 26, 256, 3, 1),
              (1, 512, 13, 256, 1, 1), (8, 128, 52, 128, 3, 1), (32, 256, 13, 512, 3, 1))]


class Fake(HostDevice):
    """A device of certain limits and rates that runs nothing."""

    compiles = True

    def __init__(self, rates: PeakRates | None, units: int = 132, processor: bool = False) -> None:
        super().__init__()
        self.limits = Limits(units, 2**34, 48 << 10, 48 << 10, 1024, 32)
        self.rates = rates
        self._processor = processor

    @property
    def on_processors(self) -> bool:
        return self._processor


def gpu(multiply_adds: float = 1.0, nbytes: float = 1.0, units: int = 132) -> Fake:
    """Return a GPU whose units do so many times as much as those of an H200."""
    return Fake(PeakRates(H200_UNIT.multiply_adds * multiply_adds * units,
                          H200_UNIT.nbytes * nbytes * units), units)


def order(algorithm: Algorithm, problem: Conv2dProblem, device: Fake) -> list[tuple]:
    return list(dict.fromkeys(variant.config for variant in algorithm.variants(problem, device)))


@pytest.mark.parametrize("algorithm", [Im2colGemm(), Winograd()], ids=lambda a: a.name)
def test_the_gpu_of_the_fit_keeps_its_order(algorithm: Algorithm) -> None:
    for problem in LAYERS:
        if algorithm.supports(problem, gpu()) is None:
            assert order(algorithm, problem, gpu()) == order(algorithm, problem, Fake(None))


@pytest.mark.parametrize("other", [gpu(0.1), gpu(1, 0.1), gpu(0.25, 0.05, 16)],
                         ids=["arithmetic", "memory", "small"])
def test_other_rates_change_the_order_and_nothing_else(other: Fake) -> None:
    changed = 0
    for problem in LAYERS:
        usual = Fake(None, other.limits.compute_units)
        ours, theirs = (order(Im2colGemm(), problem, d) for d in (other, usual))
        assert sorted(ours) == sorted(theirs)
        changed += ours[:2] != theirs[:2]
        times = [Im2colGemm().expected_us(problem, variant, other)
                 for variant in Im2colGemm().variants(problem, other)]
        assert times == sorted(times)
    assert changed


def test_slow_memory_favours_tiles_that_move_less() -> None:
    """A step along K of a tile stages tile_p + tile_m numbers for tile_p * tile_m multiply-adds."""
    def staged(device: Fake) -> list[float]:
        tiles = [dict(order(Im2colGemm(), problem, device)[0]) for problem in LAYERS]
        return [(tile["tile_p"] + tile["tile_m"]) / (tile["tile_p"] * tile["tile_m"])
                for tile in tiles]

    slow, usual = staged(gpu(1, 0.02)), staged(gpu())
    assert all(map(float.__le__, slow, usual)) and slow != usual


def test_a_device_of_half_the_rates_takes_twice_as_long() -> None:
    for problem, algorithm in ((problem, algorithm) for problem in LAYERS
                               for algorithm in (WideGemm(), Im2colGemm())):
        nominal = nominal_rates(Fake(None, 4, processor=True))
        whole, half = (Fake(PeakRates(4 * share * nominal.multiply_adds, nominal.nbytes), 4, True)
                       for share in (1.0, 0.5))
        variant = next(iter(algorithm.variants(problem, whole)))
        ratio = (algorithm.expected_us(problem, variant, half)
                 / algorithm.expected_us(problem, variant, whole))
        # finding where taps lie takes as long as before
        assert 1.5 < ratio <= 2.0 + 1e-9


def test_transforms_take_as_long_as_copies_do() -> None:
    problem = LAYERS[1]
    variant = next(iter(Winograd().variants(problem, gpu())))
    first, second, third = (Winograd().expected_us(problem, variant, gpu(1, share))
                            for share in (1.0, 0.5, 0.25))
    assert third - second > 1.9 * (second - first) > 0


def test_rates_are_of_a_unit() -> None:
    device = Fake(PeakRates(1000.0, 400.0), 8)
    assert rates_of_unit(device) == PeakRates(125.0, 50.0)
    device.limits = replace(device.limits, compute_units=0)
    assert rates_of_unit(device) == PeakRates(1000.0, 400.0)
    assert rates_of_unit(Fake(None)) == H200_UNIT
