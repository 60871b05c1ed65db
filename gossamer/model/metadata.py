"""The meaning of a network's numbers, and how boxes are decoded from the outputs of a detector."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, TypeGuard, get_args, get_origin, get_type_hints

from gossamer.errors import InputError, quoted
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

    def __post_init__(self) -> None:
        if not (self.kind in HEAD_KINDS and 0 <= self.scale_x_y <= 100
                and min(self.mask, default=0) >= 0):
            raise ValueError(f"{self} does not describe how boxes are decoded")


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

    def __post_init__(self) -> None:
        if not (self.heads and self.classes >= 0 and self.resize in RESIZES
                and self.nms_kind in NMS_KINDS and 0 <= self.threshold <= 1
                and 0 <= self.nms <= 1 and 0 <= self.beta_nms <= 100):
            raise ValueError(f"{self} does not describe how boxes are decoded")

    def fits(self, anchors: int) -> bool:
        """Return whether a network with this number of anchors has all anchors of the heads."""
        return all(index < anchors for head in self.heads for index in head.mask)


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


def metadata_of(value: Any) -> ModelMetadata:
    """Return the metadata that JSON values describe. Raises ValueError for wrong values."""
    metadata: ModelMetadata = from_json(ModelMetadata, value)
    if metadata.detector is not None and not metadata.detector.fits(len(metadata.anchors)):
        raise ValueError(f"{metadata.detector} needs more than {len(metadata.anchors)} anchors")
    return metadata


def from_json(kind: Any, value: Any) -> Any:
    """Return the value of a type that a JSON value describes.

    Dataclasses are described by objects, in which fields with a default may be absent, and tuples
    by lists.

    kind: a dataclass, a tuple type, an optional type, float, int, bool or str.
    Raises ValueError if the value does not describe one of this type.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType and value is None:
        return None
    if origin is UnionType:
        return from_json(parts[0], value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        types = get_type_hints(kind)
        required = {field.name for field in fields(kind) if field.default is MISSING}
        if required <= value.keys() <= types.keys():
            try:
                return kind(**{name: from_json(types[name], each)  # type: ignore[operator]
                               for name, each in value.items()})
            except InputError as error:
                raise ValueError(str(error)) from None
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            return tuple(map(from_json, kinds, value))
    elif is_number(value) if kind is float else type(value) is kind:
        return value
    raise ValueError(f"{quoted(value)} does not describe a {getattr(kind, '__name__', kind)}")


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a JSON value is a finite number that a float can hold."""
    # math.isfinite raises OverflowError for integers beyond the range of floats
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
