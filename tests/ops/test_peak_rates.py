"""Algorithms order the configs of matrix products by the peak rates of a kind of devices."""

from __future__ import annotations

import pytest

from gossamer.device.host import HostDevice
from gossamer.device.limits import Limits
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.peak_rates import H200_UNIT, rates_of_unit

LAYERS = [Conv2dProblem(batch, channels, size, size, out, (kernel, kernel),
                        (stride, stride), (kernel // 2,) * 4)
          for batch, channels, size, out, kernel, stride in (
              (1, 3, 416, 32, 3, 2), (1, 64, 104, 64, 3, 1), (1, 256, 26, 256, 3, 1),
              (1, 512, 13, 256, 1, 1), (8, 128, 52, 128, 3, 1), (32, 256, 13, 512, 3, 1))]


class Fake(HostDevice):
    """A device of certain limits that runs nothing."""

    compiles = True

    def __init__(self, units: int, processor: bool) -> None:
        super().__init__()
        self.limits = Limits(units, 2**34, 48 << 10, 48 << 10, 1024, 32)
        self._processor = processor

    @property
    def on_processors(self) -> bool:
        return self._processor


@pytest.mark.parametrize("kind", [Fake(132, False), Fake(16, False), Fake(4, True)],
                         ids=["gpu", "small", "processor"])
def test_tiles_come_in_the_order_of_their_times(kind: Fake) -> None:
    for problem in LAYERS:
        times = [Im2colGemm().expected_us(problem, variant, kind)
                 + kind.queued_us * Im2colGemm().launch_count(variant)
                 for variant in Im2colGemm().variants(problem, kind)]
        assert times == sorted(times)


def test_rates_are_of_the_kind_of_device() -> None:
    assert rates_of_unit(Fake(16, False)) == H200_UNIT
    assert rates_of_unit(Fake(4, True)).multiply_adds < H200_UNIT.multiply_adds
