"""The canonical form of a problem.

Equal problems have equal canonical forms, in every process.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from gossamer.ops.algorithm import Problem

_LEFT_OUT = ("dense_groups", "facts", "formats", "result", "scaled_signs")
"""Fields that are omitted if they have their default values."""


def canonical(problem: Problem) -> dict[str, Any]:
    """Return the fields of a problem as JSON values.

    Fields of _LEFT_OUT with default values are omitted.
    """
    return _plain(problem)


def _plain(value: Any) -> Any:
    """Return a field of a problem as JSON values.

    Raises TypeError for a type without a canonical form.
    """
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)
                 if field.name not in _LEFT_OUT or getattr(value, field.name) != field.default}
        return {"op": value.op, **plain} if isinstance(value, Problem) else plain
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a problem holds {value!r}, which has no canonical form")
