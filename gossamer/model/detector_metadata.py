"""DetectorMetadata: how boxes are decoded from the outputs of a network that detects objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

HEAD_KINDS = ("yolo", "region", "yolox", "yolox_decoded", "yolov5", "yolov8")
RESIZES = ("stretch", "letterbox")
NMS_KINDS = ("greedynms", "diounms")


@dataclass(frozen=True)
class DetectionHead:
    """How one output of a network encodes boxes.

    kind: "yolo" and "region" are Darknet's raw heads (N, anchors * (5 + classes), H, W), the inputs
    of Darknet's layers with these names. "yolox" and "yolox_decoded" (N, cells, 5 + classes) are
    heads of YOLOX, the first with boxes in units of their cells, the second with boxes in pixels.
    "yolov5" (N, anchors * cells, 5 + classes), with boxes in pixels, is the head of YOLOv5 and
    YOLOv7. "yolov8" (N, 4 + classes, cells) is the head of YOLOv8.
    mask: for each box of a cell, in order, the index of the network's anchor that the box adjusts.
    scale_x_y: factor s of the offset of a box's centre from the centre of its cell: for an output
    v, the offset is (sigmoid(v) - 0.5) * s cells.
    new_coords: whether the network computes all sigmoids itself. For an output v, the size of a box
    is then (2 * v)^2 times its anchor, else exp(v) times its anchor.
    softmax: whether the classes of a region head share a softmax; else each has a sigmoid.
    """

    kind: str
    mask: tuple[int, ...] = ()
    scale_x_y: float = 1.0
    new_coords: bool = False
    softmax: bool = False


@dataclass(frozen=True)
class DetectorMetadata:
    """How the outputs of a network that detects objects are read.

    heads: the head of each output, in the order of the outputs.
    classes: number of classes.
    resize: how a photo is brought to the input's size: "stretch", or "letterbox", which keeps the
    proportions and fills the rest with grey.
    threshold: least score of a box.
    nms: limit of the overlap (intersection over union) of two boxes of a class; above the limit,
    the box with the lower score is dropped.
    nms_kind: "greedynms", or "diounms", which subtracts (d^2 / c^2)^beta_nms from the overlap: d is
    the distance of the two centres, and c the diagonal of the smallest box round both boxes.
    """

    heads: tuple[DetectionHead, ...]
    classes: int
    resize: str = "letterbox"
    threshold: float = 0.25
    nms: float = 0.45
    nms_kind: str = "greedynms"
    beta_nms: float = 0.6


def detector_of(value: Any, anchors: int) -> DetectorMetadata:
    """Returns the metadata that a JSON object describes. Fields that have a default may be left out
    of the object.

    anchors: number of anchors that the network has. Raises ValueError where a field is absent,
    unknown or has a wrong value.
    """
    wrong = ValueError(f"{value!r} does not tell how boxes are decoded")
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
    """Returns whether a JSON value is an object with the fields of a class. Fields that have a
    default in the class may be absent. All other fields must be present, and further fields are not
    allowed."""
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
