"""A data frame as an MLP sees it, without a library of data frames."""

from __future__ import annotations

from typing import Any

import numpy as np


class Frame:
    """Named columns that NumPy makes an array of.

    columns: name of each column. rows: the values, (rows, columns).
    """

    def __init__(self, columns: list[Any], rows: Any) -> None:
        self.columns = columns
        self._rows = rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = np.array(self._rows, object)
        return values if dtype is None else values.astype(dtype)

    def __getitem__(self, names: Any) -> Frame:
        places = [self.columns.index(name) for name in names]
        return Frame([self.columns[place] for place in places],
                     np.array(self._rows, object)[:, places])
