"""Calls are turned into texts: the warnings and the result, or the class and message of the
error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from gossamer.errors import GossamerWarning
from tests.recorded import as_text


def outcome(call: Callable[..., Any], *arguments: Any, text: Callable[[Any], str] = as_text,
            hidden: Any = None, **options: Any) -> str:
    """Returns the text of a call's result, after gossamer's warnings during the call; or the class
    and the message of the error that it raises.

    text: makes the text of the result. hidden: a folder whose name is left out of the text, as it
    differs from run to run.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = text(call(*arguments, **options))
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
    told = [f"[{warning.message}] " for warning in caught
            if issubclass(warning.category, GossamerWarning)]
    whole = "".join([*told, found])
    return whole if hidden is None else whole.replace(str(hidden), "FOLDER")


def rounded(value: Any) -> Any:
    """Returns a value with its floats rounded to six decimals, so that its text does not depend on
    their last digits. Arrays stay arrays."""
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # adding 0 turns -0.0 into 0.0
        return np.round(value.astype(np.float64), 6) + 0.0
    return round(float(value), 6) + 0.0 if isinstance(value, float | np.floating) else value


def properties(value: Any) -> dict[str, Any]:
    """Returns every property of an object, by its name, but the fields that it is made of."""
    return {name: getattr(value, name) for kind in reversed(type(value).__mro__)
            for name, member in vars(kind).items()
            if isinstance(member, property | cached_property)}
