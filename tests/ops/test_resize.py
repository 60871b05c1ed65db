from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.resize.problem import ResizeProblem, reference
from gossamer.resampling import COORDINATES, NEAREST_MODES, between, nearest
from gossamer.tensor import default_spec
from tests.ops.harness import check


@st.composite
def problems(draw: st.DrawFn) -> ResizeProblem:
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    size = (draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    shape = (draw(st.sampled_from([0, 1, 2, 3])), draw(st.sampled_from([3, 4])), height, width)
    return ResizeProblem(default_spec(shape), size, (size[0] / height, size[1] / width),
                         draw(st.sampled_from(["nearest", "linear"])),
                         draw(st.sampled_from(COORDINATES)), draw(st.sampled_from(NEAREST_MODES)))


@given(problem=problems())
@settings(max_examples=25)
def test_any_size_and_mode(device: Device, problem: ResizeProblem) -> None:
    check(problem, device)


def exact(formula: str, size: int, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Positions by a formula of ONNX's standard, and what each mode makes of them.

    The positions are fractions of integers, whose rounding is exact.
    """
    x = np.arange(length)
    above, below = {"align_corners": (x * (size - 1), max(length - 1, 1)),
                    "asymmetric": (x * size, length),
                    "half_pixel": ((2 * x + 1) * size - length, 2 * length)}[formula]
    rounded = {"floor": above // below, "ceil": -(-above // below),
               "round_prefer_floor": -((below - 2 * above) // (2 * below)),
               "round_prefer_ceil": (2 * above + below) // (2 * below)}
    return {name: np.clip(array, 0, size - 1) for name, array in rounded.items()}, above / below


@pytest.mark.parametrize("coordinates", COORDINATES[:-1])
def test_positions_of_all_sizes_are_exact(coordinates: str) -> None:
    for size, length in itertools.product(range(1, 65), repeat=2):
        formula = "align_corners" if length == 1 and coordinates == "pytorch_half_pixel" else (
            "half_pixel" if "half_pixel" in coordinates else coordinates)
        rounded, positions = exact(formula, size, length)
        for mode, expected in rounded.items():
            np.testing.assert_array_equal(
                nearest(size, length, length / size, coordinates, mode), expected)
        low, part = between(size, length, length / size, coordinates)
        np.testing.assert_allclose(low + part, positions, atol=1e-12)


@pytest.mark.parametrize("scale", [0.7, 1.3, 1.5, 2.5])
def test_symmetric_positions_are_centred(scale: float) -> None:
    """The resized axis covers as much to the left of the original axis's centre as to the right."""
    for size in range(1, 65):
        length = max(int(size * scale), 1)
        low, part = between(size, length, scale, "half_pixel_symmetric")
        np.testing.assert_allclose((low + part) + (low + part)[::-1], size - 1, atol=1e-5 * size)
    assert nearest(5, 7, 1.5, "half_pixel_symmetric", "ceil")[0] == 0  # the position is exactly 0


def test_infinite_elements_beside_a_border_stay_infinite(device: Device) -> None:
    problem = ResizeProblem(default_spec((1, 3, 1, 3)), (2, 6), (2.0, 2.0), "linear", "half_pixel")
    x = np.full((1, 3, 1, 3), [-np.inf, 1, 2], np.float32)
    assert reference(problem, [x], {})[0][0, 0, 0, :2].tolist() == [-np.inf, -np.inf]
    check(problem, device, inputs=[x])


def test_nearest_positions_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for size, length in itertools.product(range(1, 97), repeat=2):
        y = torch.nn.functional.interpolate(torch.arange(size)[None, None].float(), size=length)
        np.testing.assert_array_equal(
            nearest(size, length, length / size, "pytorch_nearest", "floor"), y[0, 0])


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot resize"):
        ResizeProblem(default_spec((1, 1, 0, 2)), (2, 2), (1.0, 1.0))
    with pytest.raises(ValueError, match="coordinates"):
        ResizeProblem(default_spec((1, 1, 2, 2)), (2, 2), (1.0, 1.0), "linear", "middle")
