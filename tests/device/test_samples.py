"""Samples of times."""

import numpy as np
import pytest

from gossamer.errors import DeviceError
from gossamer.measure import PreparedTask, sampled


@pytest.mark.parametrize(("repeats", "budget_us", "rounds"), [
    (9, 0, 3), (9, 15, 3), (9, 16, 4), (2, 0, 2)])
def test_samples_end_with_the_budget(repeats: int, budget_us: float, rounds: int) -> None:
    times = [8.0, 4.0, -1.0, 12.0, 6.0]
    timing, *errors = sampled([PreparedTask(iter(times).__next__, 2), PreparedTask(lambda: -1, 1),
                               PreparedTask(lambda: 1 / 0, 1)], repeats, budget_us)
    taken = [time / 2 for time in times[:rounds] if time >= 0]
    assert list(vars(timing).values()) == [*np.percentile(taken, [50, 25, 75]), len(taken)]
    assert [type(error) for error in errors] == [DeviceError, ZeroDivisionError]
