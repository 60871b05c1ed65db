"""How the learning rate changes from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from gossamer.errors import InputError

Schedule = str | Sequence[Any] | Callable[[int], float]
"""What a user gives: see `factor`."""

_EXPECTED = "expected 'constant', 'inverse', ('step', epochs, factor) or a function of the epoch"


def factor(schedule: Schedule, epochs: int) -> float:
    """What the learning rate is multiplied by, after so many epochs (0 for the first).

    "constant": 1. "inverse": 1 / (1 + epochs). ("step", every, by): by, raised to how often
    `every` epochs have gone by. A function: what it returns for `epochs`.
    Raises InputError for another schedule, or a function's result that is no factor.
    """
    if callable(schedule):
        found: Any = schedule(epochs)
        if not _is_number(found) or found < 0:
            raise InputError(f"schedule {name(schedule)}: expected a factor of 0 or more for epoch "
                             f"{epochs}, got {found!r}")
        return float(found)
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
    """The schedule as text: the same for the same schedule in another process."""
    if callable(schedule):
        module = getattr(schedule, "__module__", type(schedule).__module__)
        return f"{module}.{getattr(schedule, '__qualname__', type(schedule).__qualname__)}"
    return schedule if isinstance(schedule, str) else repr(tuple(schedule))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
