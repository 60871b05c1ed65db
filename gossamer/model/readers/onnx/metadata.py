"""The metadata of an ONNX file: names of the classes, and the picture that an input holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx

from gossamer.model.graph import ModelMetadata

CLASSES, OUTPUTS, PICTURE = "classes", "outputs", "picture"
_SCORES = "scores"


def read(model: onnx.ModelProto) -> ModelMetadata:
    """Returns the metadata that have the form which entries() writes. Others are ignored, since
    other programs use the same keys for other things."""
    texts = {entry.key: entry.value for entry in model.metadata_props}
    classes, picture = _parsed(texts.get(CLASSES)), _parsed(texts.get(PICTURE))
    names = classes if isinstance(classes, list) and all(
        isinstance(name, str | int) for name in classes) else []
    shape = _shape(picture)
    brightness = picture.get("brightness") if shape else None
    return ModelMetadata(tuple(map(str, names)), texts.get(OUTPUTS) == _SCORES, shape,
                         float(brightness) if isinstance(brightness, int | float) else None)


def entries(metadata: ModelMetadata) -> Mapping[str, str]:
    """Returns the text for each key of an ONNX file's metadata."""
    texts: dict[str, str] = {}
    if metadata.classes:
        texts[CLASSES] = json.dumps(metadata.classes)
    if metadata.independent_scores:
        texts[OUTPUTS] = _SCORES
    if metadata.picture:
        height, width = metadata.picture
        picture: dict[str, Any] = {"height": height, "width": width, "channels": "grey"}
        if metadata.brightness is not None:
            picture["brightness"] = round(metadata.brightness, 2)
        texts[PICTURE] = json.dumps(picture)
    return texts


def _shape(picture: Any) -> tuple[int, int] | None:
    """Returns height and width of a grey picture; None where the value describes none."""
    if not isinstance(picture, dict) or picture.get("channels") != "grey":
        return None
    height, width = picture.get("height"), picture.get("width")
    if type(height) is not int or type(width) is not int or min(height, width) < 1:
        return None
    return height, width


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None
