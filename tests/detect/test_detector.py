"""Detector: what it takes, how it reads networks of other programs, and its messages."""

from __future__ import annotations

import math
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import gossamer
from gossamer.detect.decoding import cells
from gossamer.detect.drawing import draw_boxes
from gossamer.errors import GossamerWarning, UnsupportedError
from tests.detect.networks import CELLS, save_detector
from tests.golden import Golden
from tests.model.readers.darknet.networks import NETWORKS, conv, net, section
from tests.model.readers.darknet.test_reader import load_text

PHOTO = np.random.default_rng(0).integers(0, 256, (50, 40, 3), dtype=np.uint8)


@pytest.mark.parametrize("given", [
    gossamer.InputFormat("uint8", "NHWC", scale=1 / 255), gossamer.InputFormat("float16", "NHWC"),
    gossamer.InputFormat("float32", "NCHW", scale=1 / 255)], ids=str)
def test_plans_that_take_other_forms_get_them(given: gossamer.InputFormat,
                                              tmp_path: Path) -> None:
    graph = load_text(tmp_path, NETWORKS["yolov3_tiny"])
    _, _, height, width = graph.inputs[0].shape
    # bytes hold such a photo as it is
    photo = np.resize(PHOTO, (height, width, 3))
    expected, _ = gossamer.Detector(graph, "host").prepare([photo])
    detector = gossamer.Detector(gossamer.compile(graph, "host", inputs=given), threshold=0.1)
    batch, _ = detector.prepare([photo])
    (taken,) = detector.plan.inputs
    assert (batch.dtype, batch.shape[1:]) == (taken.dtype, taken.shape[1:])
    np.testing.assert_allclose(given.as_network_takes(batch), expected,
                               atol=1e-3 if given.dtype == "float16" else 1e-6)
    assert detector(photo)


@pytest.mark.parametrize("form", ["yolox", "yolox_decoded", "yolov5", "yolov6", "yolov8"])
def test_networks_of_other_programs(form: str, tmp_path: Path) -> None:
    detector = gossamer.Detector(
        save_detector(tmp_path / "net.onnx", form, names={0: "cat", 1: "dog"}), "host")
    assert (detector.names, detector.resize) == (["cat", "dog"], "letterbox")
    boxes = detector(PHOTO)
    scores = [0.9, 0.8] if form == "yolov8" else [0.72, 0.72]
    assert [box.score for box in boxes] == pytest.approx(scores, abs=1e-6)
    assert {box.name for box in boxes} == {"cat", "dog"}
    # cell 35 is the fourth of the grid of stride 16, which is in row 0 and column 3
    (cat,) = [box for box in boxes if box.name == "cat"]
    x, y, w, h = 0.5, 0.25, 0.7, 0.2
    if form == "yolox":
        x, y, w, h = (3 + x) * 16, y * 16, math.exp(w) * 16, math.exp(h) * 16
    # a photo of 50x40 becomes one of 32x25, on the left for YOLOX and in the middle for others
    left = 0 if form.startswith("yolox") else 19
    scale = np.array([40 / 25, 50 / 32] * 2)
    corners = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
    expected = (corners - [left, 0, left, 0]) * scale
    assert [cat.left, cat.top, cat.right, cat.bottom] == pytest.approx(expected, abs=1e-4)
    x, _ = detector.prepare([np.full((50, 40, 3), (10, 20, 30), np.uint8)])
    colour, grey = ((30, 20, 10), 114) if left == 0 else (np.divide((10, 20, 30), 255), 114 / 255)
    assert x[0, :, 5, left + 3] == pytest.approx(colour)
    assert x[0, :, 5, 60] == pytest.approx(grey)


@pytest.mark.filterwarnings("ignore::gossamer.errors.GossamerWarning")
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_networks_of_other_floats(dtype: str, tmp_path: Path) -> None:
    for form in ("yolox", "yolov5", "yolov8"):
        boxes = []
        for each in (dtype, "float32"):
            path = save_detector(tmp_path / f"{each}.onnx", form, dtype=each)
            boxes.append(gossamer.Detector(path, "host")(PHOTO))
        assert len(boxes[0]) == len(boxes[1]) == 2
        for box, expected in zip(*boxes, strict=True):
            assert astuple(box)[1:] == pytest.approx(astuple(expected)[1:], rel=2e-3)


def test_networks_that_are_no_detectors(tmp_path: Path, golden: Golden) -> None:
    save_detector(tmp_path / "net.onnx", "yolox", cells=CELLS + 1)
    graphs = {name: load_text(tmp_path, NETWORKS[name])
              for name in ("darknet19", "yolov3_tiny", "yolov2")}
    graphs["yolov3_tiny"].outputs.pop()
    graphs["yolov2"].metadata = load_text(tmp_path, NETWORKS["yolov4_csp"]).metadata
    graphs["4 channels"] = load_text(tmp_path, net(8, 8, 4) + conv(2))
    golden.refusals("detectors: networks", {
        "a cell more": lambda: gossamer.Detector(tmp_path / "net.onnx", "host"),
        **{name: lambda graph=graph: gossamer.Detector(graph, "host")
           for name, graph in graphs.items()}}, tmp_path, UnsupportedError)


def test_raw_heads_beside_decoded_boxes(tmp_path: Path) -> None:
    save_detector(tmp_path / "net.onnx", "yolov5")
    expected = gossamer.Detector(tmp_path / "net.onnx", "host")(PHOTO)
    model = onnx.load(tmp_path / "net.onnx")
    for name, shape in (("large", (1, 3, 4, 8, 7)), ("small", (1, 3, 2, 4, 7))):
        zeros = numpy_helper.from_array(np.zeros(shape, np.float32), f"zeros_{name}")
        model.graph.initializer.append(zeros)
        model.graph.node.append(helper.make_node("Add", ["nothing", zeros.name], [name]))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    onnx.save(model, tmp_path / "net.onnx")
    assert gossamer.Detector(tmp_path / "net.onnx", "host")(PHOTO) == expected
    del model.graph.output[0]
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match="raw heads, but the file does not contain their"):
        gossamer.Detector(tmp_path / "net.onnx", "host")


def test_numbers_of_a_box_that_are_no_classes(tmp_path: Path) -> None:
    path = save_detector(tmp_path / "net.onnx", "yolov8", names={0: "person"})
    with pytest.raises(UnsupportedError, match=r"net.onnx: names 1 classes, but its output has 2 "
                                               r"numbers per box .* key points"):
        gossamer.Detector(path, "host")
    assert gossamer.Detector(path, "host", names=["a", "b"])(PHOTO)


def test_grids_of_small_objects(tmp_path: Path) -> None:
    """Names may be in a list."""
    path = save_detector(tmp_path / "net.onnx", "yolov8", cells=cells((32, 64), (4, 8, 16, 32)),
                         names=["cat", "dog"])
    assert {box.name for box in gossamer.Detector(path, "host")(PHOTO)} == {"cat", "dog"}


def test_options_replace_what_the_network_says(tmp_path: Path) -> None:
    graph = load_text(tmp_path, NETWORKS["yolov4_tiny"])
    detector = gossamer.Detector(graph, "host")
    assert (detector.threshold, detector.nms, detector.resize) == (0.25, 0.45, "stretch")
    assert detector.names == ["class 0", "class 1"]
    detector = gossamer.Detector(graph, "host", names=["a", "b"], threshold=0.0, nms=1.0,
                                 resize="letterbox")
    boxes = detector(PHOTO)
    # each of 3 anchors of 8x8 cells tells 2 classes, and nothing is dropped
    assert len(boxes) == 3 * 64 * 2
    assert [box.score for box in boxes] == sorted((box.score for box in boxes), reverse=True)
    assert {box.name for box in boxes} == {"a", "b"}
    fewer = gossamer.Detector(graph, "host", threshold=0.0, nms=0.1)(PHOTO)
    assert 0 < len(fewer) < len(boxes)
    assert boxes[0].as_json() == {
        "class": boxes[0].class_index, "name": boxes[0].name, "score": boxes[0].score,
        "box": [boxes[0].left, boxes[0].top, boxes[0].right, boxes[0].bottom]}


WRONG: list[dict[str, Any]] = [
    {"names": ["a"]}, {"threshold": 1.5}, {"nms": -0.1}, {"nms": math.nan}, {"resize": "crop"}]


def test_what_a_detector_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                               golden: Golden) -> None:
    monkeypatch.chdir(tmp_path)
    graph = load_text(tmp_path, NETWORKS["yolov3_tiny"])
    plan = gossamer.compile(graph, "host")
    plan.save(tmp_path / "net.plan")
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    expected = gossamer.Detector(graph, "host", threshold=0.1)(PHOTO)
    assert expected
    for model in (plan, tmp_path / "net.cfg", str(tmp_path / "net.plan")):
        detector = gossamer.Detector(model, None if model is plan else "host", threshold=0.1)
        assert detector(tmp_path / "photo.png") == expected
        assert detector.detect([PHOTO[:9, :7], PHOTO])[1] == expected
        assert detector.detect([]) == []
    golden.refusals("detectors: what they take", {
        "a plan on a device": lambda: gossamer.Detector(plan, "host"),
        "weights": lambda: gossamer.Detector("net.weights", "host"),
        "a grey photo": lambda: detector(PHOTO[:, :, 0]), "no rows": lambda: detector(PHOTO[:0]),
        "floats": lambda: detector(PHOTO.astype(np.float32)),
        **{str(options): lambda options=options: gossamer.Detector(graph, "host", **options)
           for options in WRONG}}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (1, 20_000), (20_000, 1), (20_000, 30)])
def test_photos_of_any_size(shape: tuple[int, int], tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    graph = load_text(tmp_path, NETWORKS["yolov3_tiny"])
    for resize in ("stretch", "letterbox"):
        boxes = gossamer.Detector(graph, "host", threshold=0.1, resize=resize)(image)
        assert boxes
        drawn = draw_boxes(image, boxes)
        assert drawn.shape == image.shape and (drawn != image).any()


def test_grey_networks(tmp_path: Path) -> None:
    text = NETWORKS["yolov4_tiny"].replace("channels=3", "channels=1")
    detector = gossamer.Detector(load_text(tmp_path, text), "host")
    x, _ = detector.prepare([PHOTO])
    assert x.shape == (1, 1, 32, 32)
    grey = np.asarray(Image.fromarray(PHOTO).convert("L"))
    assert x[0, 0, 0, 0] == pytest.approx(grey[0, 0] / 255)


def test_names_of_coco_where_a_network_has_its_classes(tmp_path: Path) -> None:
    text = net() + conv(4, 3, 2) + section(
        "convolutional", size=1, filters=85, activation="linear") + section(
        "yolo", anchors="10,14", num=1, classes=80)
    names = gossamer.Detector(load_text(tmp_path, text), "host").names
    assert len(names) == 80 and (names[0], names[5], names[79]) == ("person", "bus", "toothbrush")


def test_numbers_that_are_none_are_told(tmp_path: Path) -> None:
    graph = load_text(tmp_path, NETWORKS["yolov4_tiny"])
    name = next(name for name in graph.constants if name.endswith("10.biases"))
    graph.constants[name] = np.full_like(graph.constants[name], np.nan)
    with pytest.warns(GossamerWarning, match="NaN or infinite values; boxes with such values are"):
        assert gossamer.Detector(graph, "host")(PHOTO) == []


def test_boxes_are_drawn_in_the_colour_of_their_class() -> None:
    image = np.full((100, 120, 3), 128, np.uint8)
    boxes = [gossamer.detect.decoding.Box("cat", 0, 0.9, 20, 30, 60, 80),
             gossamer.detect.decoding.Box("dog", 1, 0.8, -50, -50, 500, 500)]
    drawn = draw_boxes(image, boxes)
    assert (image == 128).all()
    assert drawn[55, 20].tolist() != drawn[99, 60].tolist() != [128] * 3
    assert drawn[55, 40].tolist() == [128] * 3
    assert (draw_boxes(image, []) == image).all()


def test_labels_of_one_place_are_all_seen() -> None:
    """The best box hides other boxes with its outline, whose colours only their labels show."""
    image = np.full((200, 240, 3), 128, np.uint8)
    boxes = [gossamer.detect.decoding.Box(name, index, 0.9 - index / 10, 60, 60, 180, 160)
             for index, name in enumerate(["cat", "dog", "cow"])]
    outlines = [draw_boxes(image, [box])[110, 60] for box in boxes]
    drawn = draw_boxes(image, boxes)
    assert (drawn[110, 60] == outlines[0]).all()
    assert min((drawn == outline).all(axis=2).sum() for outline in outlines) > 150
