"""The text of a file of measurements."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, allow_nan=False)
_DEPTHS = {"device": 0, "made_by": 0, "fields": 0, "plans": 1}
"""Number of levels under a key whose items have lines of their own, where it is not that of the
levels around."""


class Texts:
    """Encodes contents as JSON with sorted keys, and with one candidate or plan in each line.

    The file is written again every few seconds while layers are measured. A line's object that was
    in the previous content too is not encoded again; such objects must not change.
    """

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Any, str]] = {}
        self._before = self._lines

    def of(self, content: Any) -> bytes:
        """Returns the text of a content."""
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
        # the value is stored too, so that no new object gets its id
        line = self._before.get(id(value)) or (value, _ENCODER.encode(value))
        self._lines[id(value)] = line
        return line[1]
