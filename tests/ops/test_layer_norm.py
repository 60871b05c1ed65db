from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check


@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=5), data=st.data())
@settings(max_examples=10)
def test_any_trailing_axes(device: Device, shape: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(shape) - 1))
    check(LayerNormProblem(default_spec(tuple(shape)), tuple(range(first, len(shape))), 1e-3,
                           data.draw(st.booleans())), device)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), (2, 3), (1, 3)])
def test_axes_of_images(device: Device, axes: tuple[int, ...]) -> None:
    """Axes 1 and 3 are neighbours in memory in one of the layouts only."""
    assert check(LayerNormProblem(default_spec((2, 6, 3, 5)), axes), device)


@pytest.mark.parametrize("length", [1, 3, 36, 40, 80, 160, 320, 768, 1000, 4096])
def test_lengths_of_networks(device: Device, length: int) -> None:
    rows = 3 if is_slow(device) else 37
    check(LayerNormProblem(default_spec((rows, length)), (1,)), device)
    check(LayerNormProblem(default_spec((rows, length)), (1,), centred=False), device)


@pytest.mark.parametrize("shape", [(2, 9001), (2, 40_000), (1, 600, 2, 3)])
def test_rows_that_no_registers_hold(quick_device: Device, shape: tuple[int, ...]) -> None:
    check(LayerNormProblem(default_spec(shape), (1,)), quick_device)


def test_a_work_group_normalises_several_blocks_of_rows(quick_device: Device) -> None:
    units = quick_device.limits.compute_units if quick_device.compiles else 1
    # rows of fewer numbers may be nearly equal, so that float16 has none of their digits
    check(LayerNormProblem(default_spec((256 * 16 * units + 300, 8)), (1,)), quick_device)


def test_a_mean_far_from_zero_costs_few_digits(device: Device) -> None:
    x = np.random.default_rng(0).standard_normal((5, 64), np.float32) + 20
    check(LayerNormProblem(default_spec(x.shape), (1,)), device, inputs=[x])


def test_equal_values_give_the_bias(device: Device) -> None:
    check(LayerNormProblem(default_spec((3, 16)), (1,)), device,
          inputs=[np.full((3, 16), 2, np.float32)])


def test_what_cannot_be_normalised_is_refused() -> None:
    for axes in [(), (1, 0), (2,), (1, 1)]:
        with pytest.raises(ValueError, match="ascending dimensions"):
            LayerNormProblem(default_spec((3, 4)), axes)
    with pytest.raises(ValueError, match="float32"):
        LayerNormProblem(default_spec((3, 4), "int32"), (1,))
