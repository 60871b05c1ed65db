"""The text of a file of measurements."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)
_DEPTHS = {"device": 0, "made_by": 0, "fields": 0, "plans": 1}
"""To which what stands under a key is spread over lines, other than all else."""


class Texts:
    """Contents as they are written: JSON with sorted keys, one candidate or plan a line.

    A file is written anew with each layer that is measured: a line of the one before, the same
    object still, is not encoded again. Lines are not changed once they were written.
    """

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Any, str]] = {}
        self._before = self._lines

    def of(self, content: Any) -> bytes:
        self._before, self._lines = self._lines, {}
        return (self._text(content, 8, "\n") + "\n").encode()

    def _text(self, value: Any, depth: int, newline: str) -> str:
        if not value or not isinstance(value, dict | list):
            return _ENCODER.encode(value)
        if not depth:
            return self._line(value)
        inner = newline + " "
        if isinstance(value, list):
            items = [self._text(item, depth - 1, inner) for item in value]
        else:
            items = [f"{_ENCODER.encode(key)}: "
                     + self._text(item, _DEPTHS.get(key, depth - 1), inner)
                     for key, item in sorted(value.items())]
        opening, closing = "[]" if isinstance(value, list) else "{}"
        return opening + inner + ("," + inner).join(items) + newline + closing

    def _line(self, value: Any) -> str:
        # the value is kept, so that no other has its number
        kept = self._before.get(id(value)) or (value, _ENCODER.encode(value))
        self._lines[id(value)] = kept
        return kept[1]
