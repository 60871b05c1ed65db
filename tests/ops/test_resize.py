from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.resize.problem import ResizeProblem
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


@cache
def exact(coordinates: str, size: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions by the formulas of ONNX's standard: each rounded down, twice it rounded down, and
    the rest of both."""
    half, scale = Fraction(1, 2), Fraction(length, size)
    positions = [Fraction(x * (size - 1), max(length - 1, 1)) if coordinates == "align_corners" else
                 x / scale if coordinates == "asymmetric" else (x + half) / scale - half
                 for x in range(length)]
    rest = [(position % 1, position % half) for position in positions]
    return (np.array([math.floor(position) for position in positions]),
            np.array([math.floor(2 * position) for position in positions]),
            np.array(rest, float))


@pytest.mark.parametrize("coordinates", COORDINATES[:-1])
def test_positions_of_all_sizes_are_exact(coordinates: str) -> None:
    for size, length in itertools.product(range(1, 65), repeat=2):
        formula = "align_corners" if length == 1 and coordinates == "pytorch_half_pixel" else (
            "half_pixel" if "half_pixel" in coordinates else coordinates)
        low, twice, rest = exact(formula, size, length)
        is_upper, is_tie = twice % 2, (rest[:, 1] == 0) & (rest[:, 0] != 0)
        for mode, expected in (("floor", low), ("ceil", low + (rest[:, 0] != 0)),
                               ("round_prefer_ceil", low + is_upper),
                               ("round_prefer_floor", low + (is_upper & ~is_tie))):
            np.testing.assert_array_equal(nearest(size, length, length / size, coordinates, mode),
                                          np.clip(expected, 0, size - 1))
        lower, part = between(size, length, length / size, coordinates)
        np.testing.assert_array_equal(lower, low)
        np.testing.assert_allclose(part, rest[:, 0], atol=1e-13)


def test_nearest_positions_of_torch() -> None:
    interpolate = pytest.importorskip("torch.nn.functional").interpolate
    torch = pytest.importorskip("torch")
    for size in range(1, 97):
        x = torch.arange(size, dtype=torch.float32)[None, None]
        for arguments in [*({"size": length} for length in range(1, 97)),
                          *({"scale_factor": scale} for scale in (0.7, 7 / 3, 1.1, 1.9999))]:
            if int(size * arguments.get("scale_factor", 1)):
                y = interpolate(x, **arguments)[0, 0].numpy()
                scale = arguments.get("scale_factor", len(y) / size)
                np.testing.assert_array_equal(
                    nearest(size, len(y), scale, "pytorch_nearest", "floor"), y)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot resize"):
        ResizeProblem(default_spec((1, 1, 0, 2)), (2, 2), (1.0, 1.0))
    with pytest.raises(ValueError, match="coordinates"):
        ResizeProblem(default_spec((1, 1, 2, 2)), (2, 2), (1.0, 1.0), "linear", "middle")
