"""Which networks are taken as detectors, by the shapes of their outputs or by their metadata.

Inputs are 64x128: 168 cells with the strides 8, 16 and 32; 170 with 64 too, and 680 with 4 too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from gossamer.detect import recognition
from gossamer.errors import UnsupportedError
from gossamer.io.images import PRESETS
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.metadata import DetectionHead, DetectorMetadata, ModelMetadata


def recognised(outputs: str, shape: tuple[int, ...] = (1, 3, 64, 128), **metadata: Any) -> Any:
    """Returns the kind, the classes and the preprocessing of a network with outputs of these
    shapes, which no network has to make."""
    infos = [ValueInfo(f"y{index}", (1, *map(int, sizes.split("x"))))
             for index, sizes in enumerate(outputs.split())]
    graph = Graph("net", [ValueInfo("x", shape)], infos, [], {}, metadata=ModelMetadata(**metadata))
    shapes = SimpleNamespace(shapes={info.name: info.shape for info in infos})
    with patch.object(recognition, "resolve", lambda graph, batch: shapes):
        detector, preprocessing = recognition.recognise(graph)
    return detector.heads[0].kind, detector.classes, preprocessing


@pytest.mark.parametrize(("outputs", "expected"), [
    ("168x6", ("yolox", 1)), ("170x7", ("yolox", 2)), ("680x85", ("yolox", 80)),
    ("5x168", ("yolov8", 1)), ("84x680", ("yolov8", 80)), ("504x6", ("yolov5", 1)),
    ("510x7 3x8x16x6 3x4x8x6", ("yolov5", 2)), ("3x8x16x6 3x4x8x6", "are raw heads"),
    *[(outputs, "tell no boxes") for outputs in (
        "167x6", "168x5", "4x168", "504x5", "168x6x1", "6x168x1", "504x6x1", "168x6 3x8x16x6",
        "6x168 3x8x16x6", "504x6 3x8x16", "504x6 3x8x16x5", "504x6 4x8x16x6")]])
def test_shapes_of_outputs(outputs: str, expected: tuple[str, int] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(UnsupportedError, match=expected):
            recognised(outputs)
        return
    kind, classes, preprocessing = recognised(outputs)
    assert (kind, classes) == expected
    assert preprocessing.channels == ("bgr" if kind == "yolox" else "rgb")


@pytest.mark.parametrize(("head", "fits", "others"), [
    (DetectionHead("yolox"), "168x7", "167x7 168x8 168x7x1"),
    (DetectionHead("yolox_decoded"), "9x7", "9x8 9x7x1"),
    (DetectionHead("yolov5"), "9x7", "9x8 9x7x1"), (DetectionHead("yolov8"), "6x9", "7x9 6x9x1"),
    (DetectionHead("yolo", (0, 2)), "14x8x16", "7x8x16 14x8"),
    (DetectionHead("region", (1,)), "7x8x16", "14x8x16 7x8")])
def test_outputs_have_to_fit_the_metadata(head: DetectionHead, fits: str, others: str) -> None:
    detector = DetectorMetadata((head,), 2)
    assert recognised(fits, detector=detector)[:2] == (head.kind, 2)
    for sizes in others.split():
        with pytest.raises(UnsupportedError, match=f"shape 1x{sizes}, .* a {head.kind} head with "
                                                   f"{len(head.mask)} anchors and 2 classes"):
            recognised(sizes, detector=detector)


def test_inputs_are_photos() -> None:
    assert recognised("504x6", (1, 1, 64, 128))[2].channels == "grey"
    assert recognised("504x6", preprocessing=PRESETS["caffe"])[2] == PRESETS["caffe"]
    for shape in ((1, 2, 64, 128), (1, 3, 64), (1, 3, 64, 128, 1)):
        with pytest.raises(UnsupportedError, match="expected one photo of"):
            recognised("168x6", shape)
