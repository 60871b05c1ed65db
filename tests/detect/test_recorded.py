"""Records of the parts of a detector, for grids of shapes and for drawn numbers."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.detect import detector, drawing, recognition
from gossamer.detect.box import Box
from gossamer.detect.decoding import Candidates, Grid, cells, decode, join
from gossamer.detect.label_places import Area, places
from gossamer.detect.placement import STYLES, fitted, place
from gossamer.detect.suppression import suppress
from gossamer.expression import apply
from gossamer.io.images import PRESETS
from gossamer.model.detector_metadata import HEAD_KINDS, DetectionHead, DetectorMetadata
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import ModelMetadata
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome, rounded

SIZE = (64, 128)
COUNTS = [cells(SIZE, strides) for strides in ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))]


def graph_of(shapes: list[tuple[int, ...]], nodes: list[Node] | None = None,
             inputs: tuple[tuple[int | None, ...], ...] = ((None, 3, *SIZE),),
             **metadata: Any) -> Graph:
    """Returns a network whose outputs y0, y1 and so on have these shapes for one photo."""
    return Graph("net", [ValueInfo(f"x{index}", shape) for index, shape in enumerate(inputs)],
                 [ValueInfo(f"y{index}", shape) for index, shape in enumerate(shapes)],
                 nodes or [], {}, metadata=ModelMetadata(**metadata))


@pytest.fixture(autouse=True)
def shapes_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the shapes of outputs as a graph states them, so that no network has to make them."""
    monkeypatch.setattr(recognition, "resolve", lambda graph, batch: SimpleNamespace(
        shapes={info.name: info.shape for info in graph.outputs}))


def found_kind(graph: Graph) -> str:
    try:
        metadata, preprocessing = recognition.recognise(graph)
    except Exception as error:
        return f"{type(error).__name__} {digest(str(error))}"
    heads = "+".join(head.kind for head in metadata.heads)
    return f"{heads} {metadata.classes} {preprocessing.channels} {preprocessing.scale:.4f}"


def test_networks_that_are_recognised(recorded: Recorded) -> None:
    found = {}
    lengths = sorted({count * factor + more for count in COUNTS for factor in (1, 3)
                      for more in (-1, 0, 1)})
    others: list[tuple[str, list[tuple[int, ...]]]] = [
        ("alone", []), ("raw", [(1, 3, 8, 16, 6), (1, 3, 4, 8, 7)]), ("few", [(1, 3, 8, 16, 5)]),
        ("anchors", [(1, 4, 8, 16, 6)]), ("one raw", [(1, 3, 8, 16, 6), (1, 3, 8, 16)])]
    for length, width, (name, more) in itertools.product(lengths, (4, 5, 6, 9), others):
        for shape in ((1, length, width), (1, width, length), (1, length, width, 1),
                      (1, width, length, 7)):
            found[f"shape {shape} {name}"] = found_kind(graph_of([shape, *more]))
    for shapes in ([(1, 3, 8, 16, 6)], [(1, 3, 8, 16, 6), (1, 7)], [(1, COUNTS[0] + 1, 6)]):
        for file in ("", "a.onnx"):
            text = outcome(recognition.recognise, replace(graph_of(shapes), file=file))
            found[f"text {shapes} {file}"] = text
    for inputs in (((None, 1, *SIZE),), ((None, 2, *SIZE),), ((None, 4, *SIZE),),
                   ((None, 3, *SIZE), (None, 3, *SIZE)), ((None, 3, 64),),
                   ((None, 3, *SIZE, 1),), ((2, 3, 32, 32),)):
        found[f"input {inputs}"] = outcome(recognition.recognise, graph_of(
            [(1, COUNTS[0], 6)], inputs=inputs))
    for channels, preset in itertools.product((1, 3), (None, "imagenet", "caffe", "binary")):
        preprocessing = PRESETS[preset] if preset else None
        for kind in HEAD_KINDS:
            shape = (1, 6, COUNTS[0]) if kind == "yolov8" else (1, COUNTS[0], 7) if (
                kind.startswith("yolo") and kind != "yolo") else (1, 0, 8, 16)
            graph = graph_of([shape], inputs=((None, channels, *SIZE),),
                             preprocessing=preprocessing,
                             detector=DetectorMetadata((DetectionHead(kind),), 2))
            found[f"prepared {kind} {channels} {preset}"] = found_kind(graph)
    recorded("detect_recognised", found)


def test_metadata_that_do_not_fit(recorded: Recorded) -> None:
    found = {}
    for kind, mask in (*((kind, ()) for kind in HEAD_KINDS), ("yolo", (1,)), ("region", (0, 2))):
        head = DetectionHead(kind, mask)
        for shape in ((1, COUNTS[0], 7), (1, COUNTS[0] + 1, 7), (1, COUNTS[1], 7), (1, 6, 7),
                      (1, COUNTS[0], 8), (1, 7, 8), (1, 7, 9, 1), (1, 14, 9, 1), (1, 14, 9),
                      (1, 6, 8, 8), (1, COUNTS[0], 7, 1), (1, 7, COUNTS[0], 7)):
            graph = graph_of([shape], detector=DetectorMetadata((head,), 2))
            found[f"{kind} {mask} {shape}"] = found_kind(graph)
    for heads, outputs in itertools.product((1, 2, 3), repeat=2):
        graph = graph_of([(1, 6, 8)] * outputs, detector=DetectorMetadata(
            (DetectionHead("yolov8"),) * heads, 2))
        found[f"{heads} heads and {outputs} outputs"] = outcome(recognition.recognise, graph)
    found["text"] = outcome(recognition.recognise, graph_of([(1, 6, 8), (1, 7, 8)], detector=(
        DetectorMetadata((DetectionHead("yolov8"), DetectionHead("yolo", (0, 1))), 2))))
    recorded("detect_metadata", found)


def test_functions_behind_the_last_convolutions(recorded: Recorded) -> None:
    rng = random.Random(0)
    found = {}
    for index in range(150):
        nodes: list[Node] = []
        names = ["x0"]
        for number in range(rng.randint(1, 7)):
            op = rng.choice(["conv2d", "elementwise", "elementwise", "concat"])
            attributes = {}
            if op == "elementwise":
                attributes["expression"] = apply(rng.choice(["exp", "mul", "div", "add", "relu"]))
            elif op == "conv2d" and rng.random() < 0.6:
                attributes["epilogue"] = apply(rng.choice(["exp", "mul", "div", "relu"]))
            reads = rng.sample(names, min(len(names), rng.choice([1, 1, 2])))
            nodes.append(Node(op, f"n{number}", reads, [f"v{number}"], attributes))
            names.append(f"v{number}")
        nodes[-1].outputs = ["y0"]
        graph = graph_of([(1, COUNTS[0], 6)], nodes)
        found[f"network {index}"] = (f"{as_text(recognition._last_functions(graph))} "
                                     f"{found_kind(graph)}")
    recorded("detect_functions", found)


def test_boxes_of_outputs(recorded: Recorded) -> None:
    rng = np.random.default_rng(1)
    anchors = np.array([[10.0, 14], [23, 27], [37, 58]])
    heads = [DetectionHead("yolo", (0, 2), scale_x_y=1.25), DetectionHead("yolo", (1,)),
             DetectionHead("yolo", (0, 1, 2), 2.0, new_coords=True),
             DetectionHead("region", (0, 1), softmax=True), DetectionHead("region", (2,)),
             DetectionHead("region", (0,), new_coords=True),
             DetectionHead("yolo", (0,), softmax=True),
             *(DetectionHead(kind) for kind in HEAD_KINDS if kind not in ("yolo", "region"))]
    found = {}
    for number, head in enumerate(heads):
        for classes, threshold in itertools.product((0, 1, 3), (0.0, 0.25, 0.5, 1.0)):
            grid = Grid((32, 64), anchors[list(head.mask)], classes)
            count = cells((32, 64), (8, 16, 32))
            shape = {"yolov8": (4 + classes, count), "yolo": (
                len(head.mask) * (5 + classes), 2, 3), "region": (
                len(head.mask) * (5 + classes), 2, 3)}.get(head.kind, (count, 5 + classes))
            # few different numbers, so that scores equal the threshold
            output = rng.integers(-1, 5, shape).astype(np.float32) / 4
            if rng.random() < 0.3:
                output[rng.random(shape) < 0.03] = rng.choice([np.nan, np.inf, -np.inf])
            boxes = decode(head, output, grid, threshold)
            joined = join([boxes, boxes])
            if head.softmax and classes:
                output[5::5 + classes] *= 4000
            found[f"{number} {head.kind} {classes} {threshold}"] = (
                f"{len(boxes.scores)} {len(joined.boxes)} "
                f"{digest(rounded([boxes.boxes, boxes.scores, boxes.classes]))} "
                f"{rounded(boxes.boxes[:1]).tolist()}")
    recorded("detect_boxes", found)


def test_boxes_that_stay(recorded: Recorded) -> None:
    rng = np.random.default_rng(2)
    found = {}
    for index, (count, kind) in enumerate(itertools.product(
            (0, 1, 2, 3, 5, 8, 8, 13, 20, 40, 63, 64, 65, 66, 129, 130, 200),
            ("greedynms", "diounms", "diounms"))):
        for limit, classes in ((0.0, 1), (0.25, 1), (0.5, 3), (1.0, 2)):
            corners = rng.integers(0, 8, (count, 2)).astype(float)
            boxes = np.concatenate([corners, corners + rng.integers(0, 5, (count, 2))], axis=1)
            boxes /= (1, 16)[index % 2]
            candidates = Candidates(boxes, rng.integers(0, 9, count) / 8,
                                    rng.integers(0, classes, count))
            beta = (0.6, 1.0, 2.0)[index % 3]
            kept = suppress(candidates, limit, kind, beta)
            shown = kept.tolist() if count < 14 else digest(kept.tolist())
            found[f"{index} {count} {kind} {limit}"] = f"{len(kept)} {shown}"
    recorded("detect_suppressed", found)


def test_places_of_photos(recorded: Recorded) -> None:
    rng = np.random.default_rng(3)
    styles = {key: STYLES[key] for key in ("yolo", "yolox", "yolov5")}
    found = {}
    for kind, resize in itertools.product(styles, ("letterbox", "stretch")):
        for height, width in itertools.product((1, 2, 3, 5, 8, 40), repeat=2):
            image = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
            texts = []
            for size in ((1, 1), (4, 4), (5, 8), (9, 6)):
                placement = place((height, width), size, resize, styles[kind])
                values = fitted(image, placement, size, styles[kind])
                grey = fitted(image[:, :, 0], placement, size, styles[kind])
                boxes = placement.to_photo(np.array([[0.0, 1, 2, 3], [4, 4, 5, 9]]))
                texts.append(f"{placement.left},{placement.top},{placement.width},"
                             f"{placement.height} {digest(rounded([values, grey, boxes]))}")
            found[f"{kind} {resize} {height}x{width}"] = " ".join(texts)
    recorded("detect_placed", found)


def test_places_of_labels(recorded: Recorded) -> None:
    rng = random.Random(4)
    found = {}
    for index in range(60):
        width, height = rng.choice([(20, 16), (30, 30), (9, 40), (12, 6)])
        boxes, sizes = [], []
        for _ in range(rng.choice([1, 2, 3, 5, 9])):
            left, top = rng.randint(0, width), rng.randint(0, height)
            boxes.append(Area(left, top, left + rng.randint(0, 9), top + rng.randint(0, 9)))
            sizes.append((rng.choice([3, 5, 6, 31]), rng.choice([2, 4, 5])))
        found[f"{index} {width}x{height}"] = " ".join(
            ",".join(f"{edge:g}" for edge in area) for area in places(boxes, sizes, width, height))
    recorded("detect_labels", found)


class Drawing:
    """Notes what is drawn on a photo; a letter is as wide as half of its font is high."""

    def __init__(self, _: object = None) -> None:
        self.notes: list[str] = []

    def rectangle(self, edges: tuple[float, ...], **options: Any) -> None:
        self.notes.append(f"[{','.join(f'{edge:g}' for edge in edges)} {as_text(options)}]")

    def textbbox(self, place: tuple[int, int], text: str, font: float) -> tuple[float, ...]:
        return (0.0, 0.0, place[0] + len(text) * font / 2, place[1] + font)

    def text(self, place: tuple[float, ...], text: str, **options: Any) -> None:
        self.notes.append(f"{text} at {place[0]:g},{place[1]:g} {as_text(options)}")


def test_drawings(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing.ImageFont, "load_default", lambda size: size)
    rng = random.Random(5)
    found = {}
    for height, width in ((1, 1), (40, 60), (374, 500), (500, 400), (1200, 375), (400, 1000)):
        for count in (0, 1, 2, 4):
            boxes = []
            for _ in range(count):
                left, top = rng.randint(-20, width + 9), rng.randint(-20, height + 9)
                boxes.append(Box(rng.choice(["cat", "a"]), rng.randrange(12), rng.randrange(8) / 8,
                                 left, top, left + rng.randint(0, width),
                                 top + rng.randint(0, height)))
            canvas = Drawing()
            monkeypatch.setattr(drawing.ImageDraw, "Draw", lambda photo, canvas=canvas: canvas)
            drawing.draw_boxes(np.zeros((height, width, 3), np.uint8), boxes)
            found[f"{height}x{width} {count}"] = " ".join(canvas.notes)
    found["colours"] = as_text([(drawing._colour(index), drawing._ink(drawing._colour(index)))
                                for index in range(20)])
    found["inks"] = as_text([drawing._ink((red, green, blue))[0] for red, green, blue in (
        itertools.product((0, 100, 127, 128, 129, 200, 255), repeat=3))])
    recorded("detect_drawn", found)


def test_detectors(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records options, names of classes, prepared photos and the boxes of detectors."""
    monkeypatch.setattr(detector, "_plan", lambda model, device: model)
    rng = np.random.default_rng(6)
    found = {}

    def plan(classes: int = 2, names: tuple[str, ...] = (), given: InputFormat | None = None,
             channels: int = 3, extra: int = 0) -> Any:
        graph = graph_of([(1, 4 + classes, COUNTS[0])] + [(1, 1)] * extra,
                         inputs=((None, channels, *SIZE),), classes=names)
        if extra:
            graph = replace(graph, outputs=graph.outputs[:1])
        graph.inputs[0] = replace(graph.inputs[0], given=given)

        def run(batch: np.ndarray) -> Any:
            outputs = np.zeros((len(batch), 4 + classes, COUNTS[0]), np.float32)
            outputs[:, 4:, ::9] = rng.integers(0, 5, outputs[:, 4:, ::9].shape) / 4
            outputs[:, :4] = rng.integers(1, 40, outputs[:, :4].shape)
            return (outputs, np.zeros((len(batch), 1))) if extra else outputs

        run.graph = graph  # type: ignore[attr-defined]
        return run

    def described(made: detector.Detector) -> str:
        return as_text([made.threshold, made.nms, made.resize, made.names[:3], len(made.names)])

    for value in (-0.01, 0.0, 0.5, 1.0, 1.01):
        for option in ("threshold", "nms"):
            found[f"{option} {value}"] = outcome(detector.Detector, plan(), text=described,
                                                 **{option: value})
    for resize in ("stretch", "letterbox", "crop"):
        found[f"resize {resize}"] = outcome(detector.Detector, plan(), text=described,
                                            resize=resize)
    for classes, own, names in itertools.product(
            (1, 2, 79, 80, 81), ((), ("a",), ("a", "b"), ("a", "b", "c")),
            (None, ["p"], ["p", "q"], ["p", "", "q"], ["p", "q", "r"], ["p", "q", "", ""])):
        found[f"names {classes} {own} {names}"] = outcome(
            detector.Detector, plan(classes, own), text=described, names=names)
    for shape, dtype in (((3, 4, 3), "uint8"), ((3, 4, 3), "float32"), ((3, 4, 4), "uint8"),
                         ((3, 4), "uint8"), ((1, 3, 4, 3), "uint8"), ((0, 4, 3), "uint8"),
                         ((200, 90, 3), "uint8"), ((3, 4, 1), "uint8")):
        photo = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)
        for name, given in (("own", None), ("float", InputFormat()), ("bytes", InputFormat(
                dtype="uint8")), ("scaled", InputFormat(scale=0.5)), ("last", InputFormat(
                layout="NHWC", dtype="uint8"))):
            for channels in (3, 1):
                made = detector.Detector(plan(given=given, channels=channels))
                found[f"photo {shape} {dtype} {name} {channels}"] = outcome(
                    made.prepare, [photo], text=lambda pair: (
                        f"{pair[0].dtype} {pair[0].shape} {digest(rounded(pair[0]))} {pair[1]}"))
    for photos, extra in itertools.product((0, 1, 2), (0, 1)):
        made = detector.Detector(plan(extra=extra), threshold=0.5)
        images = [np.full((20 + index, 30, 3), 9, np.uint8) for index in range(photos)]
        found[f"boxes of {photos} photos, {extra} more outputs"] = as_text(
            [(len(boxes), digest(rounded([box.as_json() for box in boxes])))
             for boxes in made.detect(images)])
    recorded("detect_detectors", found)
