"""ModelMetadata: the meaning of a network's numbers, for networks of all kinds of files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from gossamer.errors import InputError, quoted
from gossamer.model.detector_metadata import DetectorMetadata, detector_of

if TYPE_CHECKING:
    from gossamer.io.images import Preprocessing


@dataclass(frozen=True)
class Column:
    """A column of the table that a network was trained on.

    name: heading of the column; empty where the column had none.
    fill: number that stands for an empty cell; None where no cell may be empty.
    values: texts that the cells may hold; None for a column of numbers. A column of numbers is one
    input of the network. A column of texts is one input for each text: 1 where the cell holds the
    text, else 0.
    """

    name: str
    fill: float | None = None
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ModelMetadata:
    """The meaning of a network's numbers, as far as the network's file states the meaning.

    classes: the names of the classes: one name for each column of the first output or, in a
    detector, one name for each kind of object that it finds.
    independent_scores: whether the first output holds, for each class, a score that does not depend
    on the other classes. Otherwise the first output holds probabilities, or numbers that softmax
    turns into probabilities.
    picture: height and width of the grey picture that a row of the first input holds, with
    numbers from 0 (black) to 255 (white).
    brightness: mean of all pixels of the pictures that the network was trained on.
    preprocessing: how photos are prepared for the first input; None where the preparation is
    unknown.
    anchors: width and height of each anchor of a detecting network, in pixels of the input.
    detector: how boxes are decoded from the outputs; None for a network that detects no objects, or
    whose file does not say how.
    columns: the columns of the table that the network was trained on, in the order of the network's
    inputs; empty where the columns are unknown.
    """

    classes: tuple[str, ...] = ()
    independent_scores: bool = False
    picture: tuple[int, int] | None = None
    brightness: float | None = None
    preprocessing: Preprocessing | None = None
    anchors: tuple[tuple[float, float], ...] = ()
    detector: DetectorMetadata | None = None
    columns: tuple[Column, ...] = ()


def fields_of(metadata: ModelMetadata) -> dict[str, Any]:
    """Returns the metadata as values for JSON, from which metadata_of() makes the metadata
    again."""
    return asdict(metadata)


def metadata_of(fields: Mapping[str, Any]) -> ModelMetadata:
    """Returns the metadata that fields_of() turned into JSON values. Raises LookupError for an
    absent field or number, and TypeError or ValueError for a field with a wrong type or value."""
    picture, preprocessing = fields["picture"], fields["preprocessing"]
    anchors, detector = anchors_of(fields["anchors"]), fields["detector"]
    return ModelMetadata(
        tuple(fields["classes"]), fields["independent_scores"],
        None if picture is None else (picture[0], picture[1]), fields["brightness"],
        None if preprocessing is None else preprocessing_of(preprocessing),
        anchors, None if detector is None else detector_of(detector, len(anchors)),
        columns_of(fields.get("columns", ())))


def preprocessing_of(fields: Any) -> Preprocessing:
    """Returns the preprocessing that JSON values describe; fields with a default may be left out.
    Raises ValueError where the values are no fields of a preprocessing."""
    from gossamer.io.images import Preprocessing

    if not isinstance(fields, Mapping):
        raise ValueError(f"{quoted(fields)} is no preprocessing")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list | tuple) else value
              for name, value in fields.items()}
    for name, value in values.items():
        if name not in _PREPROCESSING_FORMS or not _PREPROCESSING_FORMS[name](value):
            raise ValueError(f"a preprocessing whose {name} is {quoted(value)}")
    try:
        return Preprocessing(**values)
    except InputError as error:
        raise ValueError(str(error)) from None


def anchors_of(value: Any) -> tuple[tuple[float, float], ...]:
    """Returns the anchors that a JSON value lists. Raises ValueError where the value is no list of
    pairs of numbers."""
    if not isinstance(value, list | tuple) or not all(
            _is_numbers(pair) and len(pair) == 2 for pair in value):
        raise ValueError(f"anchors {quoted(value)}: expected pairs of width and height")
    return tuple((width, height) for width, height in value)


def columns_of(value: Any) -> tuple[Column, ...]:
    """Returns the columns that a JSON value lists. Raises ValueError where the value is no list of
    columns, each with a name, and optionally a number for empty cells and a list of texts."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{quoted(value)} are no columns")
    columns = []
    for entry in value:
        if not isinstance(entry, Mapping) or not {"name"} <= {*entry} <= {"name", "fill", "values"}:
            raise ValueError(f"{quoted(entry)} is no column")
        name, fill, values = (entry.get(key) for key in ("name", "fill", "values"))
        if not isinstance(name, str) or not (fill is None or is_number(fill)) or not (
                values is None or (isinstance(values, list | tuple) and all(
                    isinstance(text, str) for text in values))):
            raise ValueError(f"{quoted(entry)} is no column")
        columns.append(Column(name, fill, None if values is None else tuple(values)))
    return tuple(columns)


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a JSON value is a finite number that a float can hold."""
    # math.isfinite raises OverflowError for integers that no float can hold; a comparison does not
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(is_number, value))


_PREPROCESSING_FORMS: dict[str, Callable[[Any], bool]] = {
    "size": lambda value: value is None or (
        _is_numbers(value) and len(value) == 2 and all(type(side) is int for side in value)),
    "resize": lambda value: value is None or type(value) is int,
    "channels": lambda value: isinstance(value, str),
    "scale": is_number,
    "mean": _is_numbers,
    "std": _is_numbers,
    "rounding": lambda value: isinstance(value, str),
}
"""For each field of a preprocessing, a function that returns whether a value has a type that the
field may have."""
