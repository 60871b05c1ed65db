"""Samples as texts for tests/recorded."""

from __future__ import annotations

import numpy as np

from gossamer.model.metadata import Column
from gossamer.train.data.dataset import Dataset
from tests.recorded import as_text

_SHOWN = 24
"""The most numbers that are written one by one."""


def array_text(array: np.ndarray) -> str:
    """Returns the numbers of a small array row by row; a digest of a larger one."""
    if array.size > _SHOWN:
        return as_text(array)
    if array.ndim > 1:
        return f"{array.dtype}{list(array.shape)} " + "/".join(map(_row_text, array))
    return f"{array.dtype} {_row_text(array)}"


def _row_text(row: np.ndarray) -> str:
    return ",".join(as_text(value).strip("'") if isinstance(value, bool | int | float | str)
                    else str(value) for value in row.ravel().tolist())


def columns_text(columns: tuple[Column, ...]) -> str:
    """Returns the facts of columns, those that are not known left out."""
    return " ".join(column.name + ("" if column.fill is None else f"={column.fill:.7g}")
                    + ("" if column.values is None else f"<{'|'.join(column.values)}>")
                    for column in columns)


def dataset_text(data: Dataset) -> str:
    """Returns all facts of samples."""
    parts = [f"x {array_text(data.x)}", f"y {array_text(data.y)}",
             "" if data.shape is None else f"{data.shape[0]}x{data.shape[1]}",
             "pixels" if data.pixels else "", data.source,
             f"columns {columns_text(data.columns)}" if data.columns else ""]
    return "; ".join(filter(None, parts))


def both_text(pair: tuple[Dataset, Dataset | None]) -> str:
    """Returns the facts of the samples to train on and to test on."""
    return dataset_text(pair[0]) + ("" if pair[1] is None else f" TEST {dataset_text(pair[1])}")
