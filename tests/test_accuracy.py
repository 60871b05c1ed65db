"""The error of a result is that of its worst image."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gossamer.accuracy import normalised_error
from tests import tolerances


def error_of_an_image(y: tuple[float, ...], expected: tuple[float, ...]) -> float:
    pairs = list(zip(y, expected, strict=True))
    if any(str(a) != str(b) for a, b in pairs if not (math.isfinite(a) and math.isfinite(b))):
        return math.inf
    finite = [(a, b) for a, b in pairs if math.isfinite(b)]
    return math.dist(*zip(*finite, (0, 0), strict=True)) / (
        math.hypot(*(b for _, b in finite)) or 1.0)


def test_it_is_relative_to_each_image() -> None:
    numbers = (0.0, 0.5, -4.0, math.nan, math.inf, -math.inf)
    for y, expected in itertools.product(itertools.product(numbers, repeat=2), repeat=2):
        both = [np.float32([each, (1.0, 2.0)]) for each in (y, expected)]
        error = pytest.approx(error_of_an_image(y, expected))
        assert normalised_error(*both) == normalised_error(*(each[0] for each in both)) == error
        assert tolerances.normalised_error(*both) == error
        assert normalised_error(*(each.reshape(4, 1) for each in both), images=2) == error
        whole = pytest.approx(error_of_an_image((*y, 1.0, 2.0), (*expected, 1.0, 2.0)))
        assert normalised_error(*(each.reshape(-1) for each in both)) == whole


def test_nothing_has_no_error() -> None:
    assert normalised_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0
