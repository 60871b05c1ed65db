"""What an ONNX file's metadata say of its network: names of classes, and what a row is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx

from gossamer.model.graph import ModelMetadata

CLASSES, OUTPUTS, PICTURE = "classes", "outputs", "picture"
_SCORES = "scores"


def read(model: onnx.ModelProto) -> ModelMetadata:
    """What is said in the form that entries() writes; other programs use these keys too, for
    what is passed over here."""
    found = {entry.key: entry.value for entry in model.metadata_props}
    classes, picture = _parsed(found.get(CLASSES)), _parsed(found.get(PICTURE))
    names = classes if isinstance(classes, list) and all(
        isinstance(name, str | int) for name in classes) else []
    shape = _shape(picture)
    brightness = picture.get("brightness") if shape else None
    return ModelMetadata(tuple(map(str, names)), found.get(OUTPUTS) == _SCORES, shape,
                   float(brightness) if isinstance(brightness, int | float) else None)


def entries(metadata: ModelMetadata) -> Mapping[str, str]:
    """The metadata that say so, by key."""
    found: dict[str, str] = {}
    if metadata.classes:
        found[CLASSES] = json.dumps(metadata.classes)
    if metadata.scores:
        found[OUTPUTS] = _SCORES
    if metadata.picture:
        height, width = metadata.picture
        said: dict[str, Any] = {"height": height, "width": width, "channels": "grey"}
        if metadata.brightness is not None:
            said["brightness"] = round(metadata.brightness, 2)
        found[PICTURE] = json.dumps(said)
    return found


def _shape(picture: Any) -> tuple[int, int] | None:
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
