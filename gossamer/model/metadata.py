"""The meaning of a network's numbers, and how boxes are decoded from the outputs of a detector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeGuard

from gossamer.errors import InputError, quoted

if TYPE_CHECKING:
    from gossamer.io.images import Preprocessing


HEAD_KINDS = ("yolo", "region", "yolox", "yolox_decoded", "yolov5", "yolov8")
RESIZES = ("stretch", "letterbox")
NMS_KINDS = ("greedynms", "diounms")


@dataclass(frozen=True)
class DetectionHead:
    """How one output of a network encodes boxes.

    kind: one of HEAD_KINDS.
    "yolo" and "region" are Darknet's raw heads (N, anchors * (5 + classes), H, W): the inputs of
    the layers that Darknet calls [yolo] and [region].
    "yolox" is the head of YOLOX (N, cells, 5 + classes), with boxes in units of their cells;
    "yolox_decoded" is the same head with boxes in pixels.
    "yolov5" is the head of YOLOv5 and YOLOv7 (N, anchors * cells, 5 + classes), with boxes in
    pixels.
    "yolov8" is the head of YOLOv8 (N, 4 + classes, cells).
    mask: for each box of a cell, in order, the index of the network's anchor that the box adjusts.
    scale_x_y: factor s of the offset of a box's centre from the centre of its cell. For an output
    v, the offset is (sigmoid(v) - 0.5) * s, in units of cells.
    new_coords: whether the network computes all sigmoids itself. For an output v, the size of a box
    is its anchor times (2 * v)^2 if `new_coords` is set, else its anchor times exp(v).
    softmax: whether the classes of a region head share a softmax; else each has a sigmoid.
    """

    kind: str
    mask: tuple[int, ...] = ()
    scale_x_y: float = 1.0
    new_coords: bool = False
    softmax: bool = False


@dataclass(frozen=True)
class DetectorMetadata:
    """How the outputs of a detection network are decoded.

    heads: the head of each output, in the order of the outputs.
    classes: number of classes.
    resize: how a photo is resized to the input's size: "stretch", or "letterbox", which keeps the
    proportions and fills the rest with grey.
    threshold: minimum score of a box.
    nms: maximum overlap (intersection over union) of two boxes of a class. If two boxes overlap
    more, the box with the lower score is dropped.
    nms_kind: "greedynms", or "diounms", which subtracts (d^2 / c^2)^beta_nms from the overlap: d is
    the distance of the two centres, and c the diagonal of the smallest box around both boxes.
    """

    heads: tuple[DetectionHead, ...]
    classes: int
    resize: str = "letterbox"
    threshold: float = 0.25
    nms: float = 0.45
    nms_kind: str = "greedynms"
    beta_nms: float = 0.6


def detector_of(value: Any, anchors: int) -> DetectorMetadata:
    """Return the metadata that a JSON object describes.

    Fields with a default may be absent from the object.

    anchors: number of anchors of the network.
    Raises ValueError if a field is absent or unknown, or has a wrong value.
    """
    wrong = ValueError(f"{value!r} does not describe how boxes are decoded")
    if not _has_fields(value, DetectorMetadata):
        raise wrong
    heads = value["heads"]
    if not isinstance(heads, list | tuple) or not heads or not all(
            _has_fields(head, DetectionHead) and isinstance(head.get("mask", []), list | tuple)
            for head in heads):
        raise wrong
    detector = DetectorMetadata(**{**value, "heads": tuple(
        DetectionHead(**{**head, "mask": tuple(head.get("mask", ()))}) for head in heads)})
    if not (type(detector.classes) is int and detector.classes >= 0
            and detector.resize in RESIZES and detector.nms_kind in NMS_KINDS
            and _is_between(detector.threshold, 0, 1) and _is_between(detector.nms, 0, 1)
            and _is_between(detector.beta_nms, 0, 100)
            and all(_is_head(head, anchors) for head in detector.heads)):
        raise wrong
    return detector


def _has_fields(value: Any, of: type[DetectorMetadata] | type[DetectionHead]) -> bool:
    """Return whether a JSON value is an object with the fields of a class.

    Fields with a default in the class may be absent. All other fields must be present, and further
    fields are not allowed.
    """
    if not isinstance(value, Mapping):
        return False
    required = {"heads", "classes"} if of is DetectorMetadata else {"kind"}
    return required <= value.keys() <= {field.name for field in fields(of)}


def _is_head(head: DetectionHead, anchors: int) -> bool:
    return (head.kind in HEAD_KINDS and _is_between(head.scale_x_y, 0, 100)
            and type(head.new_coords) is bool and type(head.softmax) is bool
            and all(type(index) is int and 0 <= index < anchors for index in head.mask))


def _is_between(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


@dataclass(frozen=True)
class Column:
    """A column of the table that a network was trained on.

    name: heading of the column; empty if the column had none.
    fill: number used for an empty cell; None if no cell may be empty.
    values: texts that the cells may hold; None for a column of numbers. A column of numbers is one
    input of the network. A column of texts is one-hot encoded: one input for each text, which is 1
    if the cell holds the text, else 0.
    """

    name: str
    fill: float | None = None
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ModelMetadata:
    """The meaning of a network's numbers, as far as the network's file states it.

    classes: the names of the classes. There is one name for each column of the first output or, for
    a detector, one name for each kind of object that the detector finds.
    independent_scores: whether the first output holds, for each class, a score that does not depend
    on the other classes. Otherwise it holds probabilities, or logits whose softmax is the
    probabilities.
    picture: height and width of the grey picture that a row of the first input holds, with
    numbers from 0 (black) to 255 (white).
    brightness: mean of all pixels of the pictures that the network was trained on.
    preprocessing: how photos are prepared for the first input; None if the preparation is unknown.
    anchors: width and height of each anchor of a detection network, in pixels of the input.
    detector: how boxes are decoded from the outputs; None if the network detects no objects, or if
    its file does not say how.
    columns: the columns of the table that the network was trained on, in the order of the network's
    inputs; empty if the columns are unknown.
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
    """Return the metadata as JSON values; metadata_of() is the inverse."""
    return asdict(metadata)


def metadata_of(fields: Mapping[str, Any]) -> ModelMetadata:
    """Return the metadata for JSON values that fields_of() made.

    Raises LookupError for an absent field or number, and TypeError or ValueError for a field with a
    wrong type or value.
    """
    picture, preprocessing = fields["picture"], fields["preprocessing"]
    anchors, detector = anchors_of(fields["anchors"]), fields["detector"]
    return ModelMetadata(
        tuple(fields["classes"]), fields["independent_scores"],
        None if picture is None else (picture[0], picture[1]), fields["brightness"],
        None if preprocessing is None else preprocessing_of(preprocessing),
        anchors, None if detector is None else detector_of(detector, len(anchors)),
        columns_of(fields.get("columns", ())))


def preprocessing_of(fields: Any) -> Preprocessing:
    """Return the preprocessing that JSON values describe.

    Fields with a default may be absent. Raises ValueError for unknown fields and wrong values.
    """
    from gossamer.io.images import Preprocessing

    if not isinstance(fields, Mapping):
        raise ValueError(f"{quoted(fields)} does not describe how photos are prepared")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list | tuple) else value
              for name, value in fields.items()}
    for name, value in values.items():
        if name not in _PREPROCESSING_FORMS or not _PREPROCESSING_FORMS[name](value):
            raise ValueError(f"a preprocessing cannot have {name} {quoted(value)}")
    try:
        return Preprocessing(**values)
    except InputError as error:
        raise ValueError(str(error)) from None


def anchors_of(value: Any) -> tuple[tuple[float, float], ...]:
    """Return the anchors that a JSON value lists.

    Raises ValueError if the value is not a list of pairs of numbers.
    """
    if not isinstance(value, list | tuple) or not all(
            _is_numbers(pair) and len(pair) == 2 for pair in value):
        raise ValueError(f"anchors {quoted(value)}: expected pairs of width and height")
    return tuple((width, height) for width, height in value)


def columns_of(value: Any) -> tuple[Column, ...]:
    """Return the columns that a JSON value lists.

    Raises ValueError unless the value is a list of columns. Each column has a name, and optionally
    a number for empty cells and a list of texts.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"{quoted(value)} is not a list of columns")
    columns = []
    for entry in value:
        if not isinstance(entry, Mapping) or not {"name"} <= {*entry} <= {"name", "fill", "values"}:
            raise ValueError(f"{quoted(entry)} does not describe a column")
        name, fill, values = (entry.get(key) for key in ("name", "fill", "values"))
        if not isinstance(name, str) or not (fill is None or is_number(fill)) or not (
                values is None or (isinstance(values, list | tuple) and all(
                    isinstance(text, str) for text in values))):
            raise ValueError(f"{quoted(entry)} does not describe a column")
        columns.append(Column(name, fill, None if values is None else tuple(values)))
    return tuple(columns)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number that a float can hold."""
    # math.isfinite raises OverflowError for integers beyond the range of floats
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
"""For each field of a preprocessing, a function that checks the type of a value."""
