"""Saved plans and ONNX files keep the meaning of a network's numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import onnx
import pytest

import gossamer
from gossamer.io.images import PRESETS, Preprocessing
from gossamer.model.builder import GraphBuilder
from gossamer.model.graph import Graph
from gossamer.model.metadata import (
    Column,
    DetectionHead,
    DetectorMetadata,
    ModelMetadata,
    metadata_of,
)
from gossamer.model.onnx_writer import to_onnx
from tests.plan.small import reloaded

FULL = ModelMetadata(
    ("ash", "elm"), True, (3, 4), 1 / 3,
    Preprocessing((3, 4), 5, "bgr", 1 / 255, (0.1, 0.2, 1 / 3), (1.5, 2.0, 0.3), "signed8"),
    ((10, 13.25), (1 / 3, 30)),
    DetectorMetadata((DetectionHead("yolo", (1, 0), 1.05, True, True), DetectionHead("region")), 2,
                     "stretch", 0.1, 0.9, "diounms", 1 / 3),
    (Column("age", 1 / 3), Column("city", None, ("Oslo", "Rome")), Column("")))
"""Metadata in which nothing is as by default."""

HUGE = 10**400
"""An integer that no float can hold."""


def network(metadata: ModelMetadata) -> Graph:
    build = GraphBuilder("net", metadata=metadata)
    build.output(build.apply("relu", build.input("x", (None, 3)), output="y"), (None, 3))
    return build.finish()


def metadata_with(metadata: ModelMetadata, key: str, value: str) -> ModelMetadata:
    """Returns what is read of an ONNX model that has metadata and a property besides."""
    model = to_onnx(network(metadata))
    model.metadata_props.add(key=key, value=value)
    return gossamer.load(model).metadata


@pytest.mark.parametrize("metadata", [
    ModelMetadata(), FULL, *(ModelMetadata(preprocessing=preset) for preset in PRESETS.values())])
def test_metadata_travels_with_the_network(metadata: ModelMetadata, tmp_path: Path) -> None:
    onnx.save(to_onnx(network(metadata)), tmp_path / "net.onnx")
    loaded = gossamer.load(tmp_path / "net.onnx")
    assert loaded.metadata == metadata
    assert reloaded(gossamer.compile(loaded, "host"), tmp_path).graph.metadata == metadata
    assert metadata_of(json.loads(json.dumps(asdict(metadata)))) == metadata


@pytest.mark.parametrize(("key", "value"), [
    ("preprocessing", "resize to 224"), ("preprocessing", "[]"), ("preprocessing", '{"crop": 1}'),
    ("preprocessing", '{"size": [8]}'), ("preprocessing", '{"size": [8, 0]}'),
    ("preprocessing", '{"size": [8.5, 8]}'), ("preprocessing", '{"channels": ["rgb"]}'),
    ("preprocessing", '{"channels": "cmyk"}'), ("preprocessing", '{"mean": ["a"]}'),
    ("preprocessing", '{"std": [0]}'), ("preprocessing", '{"scale": NaN}'),
    ("preprocessing", '{"resize": true}'), ("preprocessing", "[" * 100_000),
    *(("columns", text) for text in (
        '"age"', '["age"]', '[{"fill": 1}]', '[{"name": 1}]', '[{"name": "a", "fill": "1"}]',
        '[{"name": "a", "values": [1]}]', '[{"name": "a", "mean": 1}]', '{"name": "a"}',
        f'[{{"name": "a", "fill": {HUGE}}}]')),
    ("anchors", "[10, 13]"), ("anchors", "[[1, 2, 3]]"), ("anchors", '[["a", "b"]]'),
    ("anchors", '{"a": 1}'), ("anchors", "[[1, NaN]]"), ("anchors", f"[[{HUGE}, 1]]"),
    *(("detector", text) for text in (
        "yolo", "[]", "{}", '{"heads": [], "classes": 2}', '{"heads": [{"kind": "yolo"}]}',
        '{"heads": [{"kind": "yolo"}], "classes": -1}',
        '{"heads": [{"kind": "ssd"}], "classes": 2}',
        '{"heads": ["yolo"], "classes": 2}', '{"heads": {"kind": "yolo"}, "classes": 2}',
        '{"heads": [{"kind": "yolo", "mask": [0]}], "classes": 2}',
        '{"heads": [{"kind": "yolo", "mask": 0}], "classes": 2}',
        '{"heads": [{"kind": "yolo", "mask": ["a"]}], "classes": 2}',
        '{"heads": [{"kind": ["yolo"]}], "classes": 2}',
        '{"heads": [{"kind": "yolo", "scale_x_y": NaN}], "classes": 2}',
        '{"heads": [{"kind": "yolo", "new_coords": 1}], "classes": 2}',
        '{"heads": [{"kind": "yolo"}], "classes": 2, "nms": 2}',
        '{"heads": [{"kind": "yolo"}], "classes": 2, "resize": []}',
        '{"heads": [{"kind": "yolo"}], "classes": 2, "fantasy": 1}')),
    ("names", "['a']"), ("names", "{1: 'a'}"), ("names", "{0: 1}"), ("names", "__import__('os')"),
    ("names", "{0: 'c', 1: 'd'}"),
    ("preprocessing", f'{{"mean": [{HUGE}]}}'), ("preprocessing", f'{{"scale": {HUGE}}}')],
    ids=lambda text: text[:20])
def test_metadata_of_other_programs_is_ignored(key: str, value: str) -> None:
    metadata = ModelMetadata(("a", "b"))
    assert metadata_with(metadata, key, value) == metadata


@pytest.mark.parametrize(("key", "value", "expected"), [
    *(("picture", f'{{"height": 3, "width": 4, "channels": "grey", "brightness": {brightness}}}',
       ModelMetadata(picture=(3, 4))) for brightness in ("NaN", f"{HUGE}", "true", '"dark"')),
    ("names", "{0: 'cat', 1: 'dog'}", ModelMetadata(("cat", "dog"))),
    ("detector", '{"heads": [{"kind": "yolov8"}], "classes": 3}',
     ModelMetadata(detector=DetectorMetadata((DetectionHead("yolov8"),), 3)))],
    ids=["NaN", "huge", "truth value", "text", "names of other exporters", "only the necessary"])
def test_what_is_taken_of_other_metadata(key: str, value: str, expected: ModelMetadata) -> None:
    assert metadata_with(ModelMetadata(), key, value) == expected
