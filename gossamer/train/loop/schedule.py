"""Computes the factor by which a schedule changes the learning rate in each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from gossamer.errors import InputError

Schedule = str | Sequence[Any] | Callable[[int], float]
"""A schedule as a user gives it; factor() says what each kind of schedule means."""

_EXPECTED = "expected 'constant', 'inverse', ('step', epochs, factor) or a function of the epoch"


def factor(schedule: Schedule, epochs: int) -> float:
    """Returns the factor of the learning rate in the epoch that follows `epochs` finished epochs.

    schedule: "constant" gives 1; "inverse" gives 1 / (1 + epochs); ("step", every, by) gives
    by ** (epochs // every); a function gives what it returns for `epochs`.
    Raises InputError for another schedule, or a function that does not return a number of at
    least 0.
    """
    if callable(schedule):
        result: Any = schedule(epochs)
        if not _is_number(result) or result < 0:
            raise InputError(f"schedule {name(schedule)}: expected a factor of 0 or more for epoch "
                             f"{epochs}, got {result!r}")
        return float(result)
    if isinstance(schedule, str):
        if schedule == "constant":
            return 1.0
        if schedule == "inverse":
            return 1 / (1 + epochs)
    elif isinstance(schedule, Sequence) and len(schedule) == 3 and schedule[0] == "step":
        every: Any
        by: Any
        _, every, by = tuple(schedule)
        if _is_number(every) and every >= 1 and every == int(every) and _is_number(by) and by >= 0:
            try:
                return float(by) ** (epochs // int(every))
            except OverflowError:
                return math.inf
    raise InputError(f"schedule {schedule!r}: {_EXPECTED}")


def name(schedule: Schedule) -> str:
    """Returns the schedule as text, which is the same in every process."""
    if callable(schedule):
        module = getattr(schedule, "__module__", type(schedule).__module__)
        return f"{module}.{getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
    return schedule if isinstance(schedule, str) else repr(tuple(schedule))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
