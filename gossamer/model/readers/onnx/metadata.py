"""Converts a network's metadata to and from the `metadata_props` of an ONNX file.

The keys of `metadata_props` are listed below, each with the meaning of its text.

classes: JSON list of the names of the classes.
outputs: "scores" if the score of a class does not depend on the other classes.
picture: JSON object of the grey picture that a row of the input holds: height, width, channels
("grey") and the brightness of the pictures that the network was trained on.
preprocessing: JSON object of the fields of a `Preprocessing` of gossamer.io.images: how photos are
prepared.
anchors: JSON list of [width, height], in pixels of the input.
detector: JSON object of the fields of a `DetectorMetadata` of gossamer.model.metadata: how boxes
are decoded from the outputs.
columns: JSON list with an object for each column of the table that the network was trained on: its
name, the number that fills an empty cell, and the texts (values) that its cells may hold.
names: names of the classes as Ultralytics' exporters write them: a dict or, in older files, a list,
in Python's syntax. This key is read if the key `classes` is absent.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import onnx

from gossamer.io.images import Preprocessing
from gossamer.model.metadata import (
    Column,
    DetectorMetadata,
    ModelMetadata,
    from_json,
    is_number,
)

CLASSES, OUTPUTS, PICTURE = "classes", "outputs", "picture"
PREPROCESSING, ANCHORS, DETECTOR = "preprocessing", "anchors", "detector"
COLUMNS = "columns"
_SCORES = "scores"


def read(model: onnx.ModelProto) -> ModelMetadata:
    """Return the metadata stored in a file's `metadata_props`.

    Texts that do not have the format of entries() are ignored, because other programs use the same
    keys for other purposes.
    """
    texts = {entry.key: entry.value for entry in model.metadata_props}
    classes, picture = _parsed(texts.get(CLASSES)), _parsed(texts.get(PICTURE))
    names = classes if isinstance(classes, list) and all(
        isinstance(name, str | int) for name in classes) else _exported_names(texts.get("names"))
    shape = _shape(picture)
    brightness = picture.get("brightness") if shape else None
    anchors = _valid(tuple[tuple[float, float], ...], texts.get(ANCHORS)) or ()
    detector = _valid(DetectorMetadata, texts.get(DETECTOR))
    if detector is not None and not detector.fits(len(anchors)):
        detector = None
    return ModelMetadata(tuple(map(str, names)), texts.get(OUTPUTS) == _SCORES, shape,
                         float(brightness) if is_number(brightness) else None,
                         _valid(Preprocessing, texts.get(PREPROCESSING)), anchors, detector,
                         _valid(tuple[Column, ...], texts.get(COLUMNS)) or ())


def entries(metadata: ModelMetadata) -> Mapping[str, str]:
    """Return the `metadata_props` that store the metadata: a text for each key."""
    texts: dict[str, str] = {}
    if metadata.classes:
        texts[CLASSES] = json.dumps(metadata.classes)
    if metadata.independent_scores:
        texts[OUTPUTS] = _SCORES
    if metadata.picture:
        height, width = metadata.picture
        picture: dict[str, Any] = {"height": height, "width": width, "channels": "grey"}
        if metadata.brightness is not None:
            picture["brightness"] = metadata.brightness
        texts[PICTURE] = json.dumps(picture)
    if metadata.preprocessing is not None:
        texts[PREPROCESSING] = json.dumps(asdict(metadata.preprocessing))
    if metadata.anchors:
        texts[ANCHORS] = json.dumps(metadata.anchors)
    if metadata.detector is not None:
        texts[DETECTOR] = json.dumps(asdict(metadata.detector))
    if metadata.columns:
        texts[COLUMNS] = json.dumps([
            {key: value for key, value in asdict(column).items() if value is not None}
            for column in metadata.columns])
    return texts


def _shape(picture: Any) -> tuple[int, int] | None:
    """Return height and width of a grey picture; None for any other value."""
    if not isinstance(picture, dict) or picture.get("channels") != "grey":
        return None
    height, width = picture.get("height"), picture.get("width")
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        return None
    return height, width


def _exported_names(text: str | None) -> list[str]:
    """Return the class names in the text of a Python dict or list.

    Examples are {0: 'person', 1: 'bicycle'} and ['person', 'bicycle']. The result is empty for any
    other text.
    """
    try:
        names = ast.literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or list(names) != list(range(len(names))) or not all(
            isinstance(name, str) for name in names.values()):
        return []
    return list(names.values())


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None


def _valid(kind: Any, text: str | None) -> Any:
    """Return the value of a type that a JSON text describes; None if it describes none."""
    try:
        return from_json(kind, _parsed(text))
    except ValueError:
        return None
