"""What is read of metadata, formats of inputs and outputs, and what is refused, stays as it was
recorded."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from gossamer.io.images import Preprocessing
from gossamer.model import metadata, outputs
from gossamer.model.builder import GraphBuilder
from gossamer.model.detector_metadata import DetectionHead, DetectorMetadata, detector_of
from gossamer.model.formats import format_lines, with_formats
from gossamer.model.graph import Graph, Tail, ValueInfo, as_called
from gossamer.model.input_format import InputFormat
from gossamer.model.metadata import Column, ModelMetadata, fields_of, metadata_of
from gossamer.model.photos import as_taken, batch_as_taken, taking_photos
from tests.recorded import Recorded, as_text
from tests.recorded.outcomes import outcome
from tests.recorded.varied import varied

INF, NAN, HUGE = float("inf"), float("nan"), 10**400


def test_detectors(recorded: Recorded) -> None:
    options: dict[str, list[Any]] = {
        "heads": [[{"kind": "yolo", "mask": [0, 1]}], [], [{}], [{"kind": "ssd"}], None, "yolo",
                  [{"kind": "yolov8"}, {"kind": "region", "softmax": True}], ({"kind": "yolox"},),
                  [{"kind": "yolo", "mask": 0}], ["yolo"], [{"kind": "yolo", "more": 1}],
                  *[[{"kind": "yolo", name: value}] for name, values in (
                      ("mask", ([2], [-1], [0, 3], [True], [0.0], (1,))),
                      ("scale_x_y", (0, 100, 100.5, -0.1, NAN, True, "1")),
                      ("new_coords", (True, 1, None)), ("softmax", (False, 0)))
                    for value in values]],
        "classes": [2, 0, -1, 2.0, True, None, "2"],
        "resize": ["letterbox", "stretch", "crop", None, []],
        "threshold": [0.25, 0, 1, 1.01, -0.01, NAN, "0.5", True, None],
        "nms": [0.45, 0, 1, 2], "nms_kind": ["greedynms", "diounms", "soft"],
        "beta_nms": [0.6, 0, 100, 101, -1], "more": [None, 1]}
    texts = {}
    for case, found in varied(options, 20):
        if found["more"] is None:
            del found["more"]
        texts[case] = outcome(detector_text, found, 3, text=str)
    for value in (None, [], {}, {"heads": [{"kind": "yolo"}]}, {"classes": 2},
                  {"heads": [{"kind": "yolo"}], "classes": 1}):
        texts[f"value {value}".replace(": ", ":")] = outcome(detector_text, value, 0, text=str)
    recorded("metadata_detectors", texts)


def detector_text(value: Any, anchors: int) -> str:
    return as_text(detector_of(value, anchors))


def test_fields(recorded: Recorded) -> None:
    texts = {}
    for number in (0, 1, -1.5, 1.7e308, 1e308 * 10, NAN, HUGE, -HUGE, True, None, "1"):
        texts[f"number {str(number)[:9]}"] = str(metadata.is_number(number))
    for value in (None, [], [[1, 2]], ((1, 2.5), [3, 4]), [[1]], [[1, 2, 3]], [["1", 2]], [1],
                  [[1, NAN]], {1: 2}, [[True, 1]]):
        texts[f"anchors {value}".replace(": ", ":")] = outcome(metadata.anchors_of, value, text=str)
    for value in (None, [], [{"name": "a"}], [{"name": "a", "fill": 0.5}], [{"fill": 1}],
                  [{"name": "a", "fill": NAN}], [{"name": "a", "values": ["b", "c"]}],
                  [{"name": "a", "values": ("b",), "fill": None}], [{"name": "a", "values": "b"}],
                  [{"name": "a", "values": [1]}], [{"name": 1}], ["a"], [{"name": "a", "x": 1}],
                  {"name": "a"}, [{"name": "a", "values": []}]):
        texts[f"columns {value}".replace(": ", ":")] = outcome(columns_text, value, text=str)
    options: dict[str, list[Any]] = {
        "size": [[4, 6], None, [4], [4, 6, 1], [4.0, 6], [0, 6], "46", [NAN, 1]],
        "resize": [8, None, 8.0, 5, True, 0], "channels": ["rgb", "bgr", "grey", "cmyk", 3],
        "scale": [0.5, 1, NAN, "1", HUGE], "mean": [[0.5], [1, 2, 3], [1, 2], 0.5, ["1"], []],
        "std": [[2.0], [0.0], [1, 2, 3], (1,)], "rounding": ["none", "sign", "up", 1],
        "more": [None, 1]}
    for case, found in varied(options, 20):
        if found["more"] is None:
            del found["more"]
        texts[f"preprocessing {case}"] = outcome(preprocessing_text, found, text=str)
    for value in (None, [], {}, {"scale": 2}):
        texts[f"preprocessing {value}".replace(": ", ":")] = outcome(
            preprocessing_text, value, text=str)
    whole = ModelMetadata(("a", "b"), True, (3, 4), 0.5, Preprocessing((4, 6), 8),
                          ((1.0, 2.0),), DetectorMetadata((DetectionHead("yolo", (0,)),), 2),
                          (Column("c", 1.0), Column("d", None, ("e", "f"))))
    assert metadata_of(fields_of(whole)) == whole
    for name, value in itertools.product(fields_of(whole), (None, "absent", 3, "a", {})):
        fields = {**fields_of(whole), name: value}
        if value == "absent":
            del fields[name]
        texts[f"{name} {value}"] = outcome(metadata_text, fields, text=str)
    recorded("metadata_fields", texts)


def columns_text(value: Any) -> str:
    return as_text(metadata.columns_of(value))


def preprocessing_text(value: Any) -> str:
    return as_text(metadata.preprocessing_of(value))


def metadata_text(fields: dict[str, Any]) -> str:
    return as_text(metadata_of(fields))


FORMAT: dict[str, list[Any]] = {
    "dtype": ["uint8", "float32", "float16", "bfloat16", "int8", None],
    "layout": ["NHWC", "NCHW", "CHWN"],
    "scale": [1 / 255, 1.0, (1, 2, 3), (1.0, 1.0, 1.0), 0, (1, 0, 2), (1, 2), INF, "1", (), 1e-30,
              1e30],
    "mean": [(0.5, 0.25, 0.125), 0.0, 1, 0.5, (0, 0), NAN, None, 1e30, [[1, 2, 3]]],
    "std": [(0.25, 0.5, 2.0), 1.0, 2, 0.0, (1, 1), -1, 1e-30, {}],
}


def test_input_formats(recorded: Recorded) -> None:
    texts = {}
    for case, options in varied(FORMAT, 60):
        texts[case] = outcome(format_text, options, text=str)
    two = [1.0, (2.0, 0.5)]
    for scale, mean, std in itertools.product(two, two, two):
        texts[f"two {scale} {mean} {std}"] = outcome(format_text, {
            "dtype": "float32", "scale": scale, "mean": mean, "std": std}, text=str)
    recorded("metadata_input_formats", texts)


def format_text(options: dict[str, Any]) -> str:
    """Returns all that a format says, the numbers that it makes, and what it is checked for."""
    given = InputFormat(**options)
    dtype = {"bfloat16": "float32"}.get(given.dtype, given.dtype)
    parts = [f"{given} {given.factors} {given.shifts} {given.changes_values:d} "
             f"{given.is_default:d} {given.array_dtype}"]
    for shape in ((1, 2, 2, 3), (1, 3, 2, 2), (1, 2, 2, 2), (2, 3), (3,)):
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        parts.append(f"{given.format(len(shape))} {given.ordered(shape)} "
                     f"{outcome(numbers_taken, given, array, text=str)} "
                     f"{as_text(given.arranged(array.astype(np.float32)))}")
    for sizes, kind in itertools.product(
            ((None, 3, 4, 4), (None, 1, 4, 4), (None, 3), (None, 4, None, 2), (3,)),
            ("float32", "int64")):
        parts.append(outcome(given.check, "x", sizes, kind, text=str))
    return "; ".join(dict.fromkeys(parts))


def numbers_taken(given: InputFormat, array: np.ndarray) -> str:
    return as_text(given.as_network_takes(array))


def test_formats_of_metadata(recorded: Recorded) -> None:
    sources: dict[str, Any] = {
        "nothing": ModelMetadata(), "photos": ModelMetadata(preprocessing=Preprocessing(
            (4, 4), scale=0.5, mean=(1.0,), std=(2.0,))),
        "preparation": Preprocessing(None, None, "bgr", 1.0, (1.0, 2.0, 3.0)),
        "rounded": Preprocessing(rounding="sign"),
        "timm": {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.5, 1), "size": 3},
        "no mean": {"std": 1}, "no std": {"mean": 1}, "none": None}
    texts = {}
    for name, source in sources.items():
        texts[name] = outcome(InputFormat.from_metadata, source, text=str)
        texts[f"{name} floats"] = outcome(InputFormat.from_metadata, source, dtype="float16",
                                          layout="NCHW", text=str)
    recorded("metadata_formats_of_metadata", texts)


def network(*inputs: ValueInfo, tail: bool = False, **described: Any) -> Graph:
    build = GraphBuilder("net", file="net.onnx", metadata=ModelMetadata(**described))
    build.graph.inputs = list(inputs)
    for info in inputs:
        build.output(info.name, info.shape, info.dtype)
    if tail:
        build.graph.tail = Tail(np.zeros(1, np.uint8), {}, (), list(inputs), list(inputs))
    return build.graph


def test_graphs_with_formats(recorded: Recorded) -> None:
    image, row = ValueInfo("x", (None, 3, 8, 6), labels=("N", "C", "H", "W")), ValueInfo(
        "r", (None, 5))
    whole, truth = ValueInfo("w", (2,), "int64"), ValueInfo("t", (), "float16")
    bytes_ = InputFormat("uint8", "NHWC", mean=1.0)
    graphs = {
        "image": network(image), "row": network(row), "both": network(image, row),
        "whole": network(whole), "truth": network(truth), "tail": network(image, tail=True),
        "photos": network(image, preprocessing=Preprocessing((8, 6), scale=0.5)),
        "given": network(replace(image, given=bytes_)), "brightness": network(
            image, brightness=3.0)}
    formats: list[Any] = [
        None, bytes_, InputFormat(), InputFormat("float16"), InputFormat(mean=(1, 2, 3)),
        InputFormat(mean=(1, 2)), "photos", "pictures", 3, {}, {"x": bytes_}, {"z": bytes_},
        {"x": "uint8"}, {"x": InputFormat()}]
    texts = {}
    for (name, graph), (index, given), dtype in itertools.product(
            graphs.items(), enumerate(formats), (None, "float32", "float16", "int64", "float64")):
        if dtype is None or index < 2:
            texts[f"{name} {index} {dtype}"] = outcome(
                graph_with_formats, graph, given, dtype, text=str)
    for (name, graph), (index, prepare) in itertools.product(graphs.items(), enumerate((
            Preprocessing(), Preprocessing((4, 6), scale=0.5, mean=(1.0,)),
            Preprocessing((8, 6), rounding="signed8")))):
        texts[f"{name} photos {index}"] = as_text(taking_photos(graph, prepare).inputs)
    recorded("metadata_graphs_with_formats", texts)


def graph_with_formats(graph: Graph, given: Any, dtype: str | None) -> str:
    found = with_formats(graph, given, dtype)
    called = as_called(found)
    infos = [f"{info.name} {info.shape} {info.dtype} {info.labels} {info.given} "
             f"{info.returned_dtype}" for info in (*called.network_inputs, *called.network_outputs)]
    return f"{format_lines(found)} {infos} {found!r}"


def test_photos(recorded: Recorded) -> None:
    """Photos of two colours, which no scaling changes."""
    texts = {}
    photos = [np.full((4, 4, 3), (value, 2 * value, 3), np.uint8) for value in (10, 60)]
    for (index, prepare), (place, info) in itertools.product(enumerate((
            Preprocessing(), Preprocessing((4, 4), scale=0.5, mean=(1.0,), std=(2.0,)),
            Preprocessing((2, 2), 3, "bgr"), Preprocessing((4, 4), channels="grey"))), enumerate((
            ValueInfo("x", (None, 3, 4, 4)), ValueInfo("x", (None, 48)), ValueInfo("x", (None, 16)),
            ValueInfo("x", (None, 49)), ValueInfo("x", (None, 1, 4, 4)),
            ValueInfo("x", (None, 3, 4, 4), given=InputFormat("uint8", "NHWC")),
            ValueInfo("x", (None, 3, 4, 4), given=InputFormat("float16", "NHWC")),
            ValueInfo("x", (None, 3, 4, 4), given=InputFormat("bfloat16", mean=1.0)),
            ValueInfo("x", (None, 48), given=InputFormat("uint8"))))):
        texts[f"{index} {place}"] = outcome(taken, prepare, info, photos, text=str)
    texts["sizes"] = outcome(taken, Preprocessing(), ValueInfo("x", (None, 3, 4, 4)), [
        photos[0], photos[1][:2]], text=str)
    texts["picture"] = as_text(as_taken(Preprocessing(), ValueInfo("x", (None, 3, 4, 4)),
                                        Image.fromarray(photos[1])))
    recorded("metadata_photos", texts)


def taken(prepare: Preprocessing, info: ValueInfo, photos: list[np.ndarray]) -> str:
    return as_text(batch_as_taken(prepare, info, photos))


def test_outputs(recorded: Recorded) -> None:
    texts = {}
    for shape, dtype, rows in itertools.product(
            ((2, 3), (2, 1), (2, 2), (2,), (2, 3, 1, 1), (2, 3, 1, 2), (2, 3, 0), (0, 3), (1, 3),
             ()), ("float32", "int64", "float16"), (2, 1, 0)):
        array = np.zeros(shape, dtype)
        texts[f"classes {shape} {dtype} {rows}"] = str(outputs.is_class_scores(array, rows))
    rows_of = [[0.0, 1.0, 1.0, -1.0], [0.25, 0.25, 0.5, 0.0], [3.0, NAN, 2.0, INF],
               [0.5, 0.5, 0.0, 0.0005], [0.5, 0.5, 0.0, 0.002], [-0.5, 0.5, 1.0, 0.0], [7.0]]
    for row, count, names, independent in itertools.product(
            rows_of, (1, 2, 4, 5, 33), (None, "abcd"), (False, True)):
        with np.errstate(all="ignore"):
            found = outputs.best_classes(np.float32(row), count, names, independent)
        texts[f"best {row} {count} {names} {independent}"] = " ".join(
            f"{each['class']}{each['name'] or ''} {list(each)[2][0]}{list(each.values())[2]:.4g}"
            for each in found)
    for count in (31, 32, 33, 34):
        scores = np.float16(np.arange(40) * 7 % 40)[None].repeat(2, 0)
        texts[f"best {count} of 40"] = str([[each["class"] for each in found] for found in
                                            outputs.best_classes_of_each(scores, count, None)])
    for right in range(4):
        texts[f"ranks of {right}"] = str(outputs.ranks(np.float32(rows_of[:6]), np.full(
            6, right)).tolist())
    for array in (np.zeros((0, 2)), np.array([[1, -2], [3, 4]]), np.array([True, False]),
                  np.float32([[1, NAN], [2, 3], [INF, 0]]), np.float32(4), np.zeros((2, 0, 3))):
        texts[f"summary {array.tolist()}"] = " ".join(map(str, (
            {name: str(value) for name, value in outputs.summary(array).items()},
            outputs.is_finite(array), outputs.broken_rows(array, 3), outputs.broken_rows(
                array, 2)))).replace(": ", ":")
    recorded("metadata_outputs", texts)
