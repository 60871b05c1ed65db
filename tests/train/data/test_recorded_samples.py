"""What becomes of arrays of many kinds as samples, and the errors for wrong ones, is recorded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import scipy.sparse

from gossamer.train.data.dataset import (
    Dataset,
    are_pixels,
    has_grey_levels,
    picture_shape,
    prepared,
    split,
)
from gossamer.train.data.matrix import check_feature_names, matrix
from gossamer.train.data.preparation import Preparation
from gossamer.train.data.samples import Samples, found_classes, samples, validation_samples
from gossamer.train.data.scaling import Scaling
from gossamer.train.data.weights import checked_weights, with_classes
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome
from tests.train.dataset_texts import array_text, dataset_text
from tests.train.frames import Frame

NAN, INF = np.nan, np.inf
X = np.array([[0.0, 3, 1], [2, 5, 1], [1, 0, 1], [4, 4, 1]])


def _short(array: np.ndarray | None) -> str:
    return "-" if array is None else array_text(array)


def samples_text(data: Samples) -> str:
    """Returns all that samples consist of, of which x and targets are digests."""
    scaling = f"{_short(data.scaling.x)} {_short(data.scaling.y)}"
    return (f"{digest([data.x, data.targets])} {data.shape.outputs} labels {_short(data.labels)} "
            f"classes {_short(data.classes)} weights {_short(data.weights)} names "
            f"{_short(data.names)} scaling {scaling} {data.digest()[:8]}")


LABELS: dict[str, Any] = {
    "0 to 2": [0, 1, 2, 1], "0 and 1": [0, 1, 0, 1], "1 and 2": [1, 2, 1, 2], "-1": [-1, 0, 1, 1],
    "all 1": [1, 1, 1, 1], "all 0": [0, 0, 0, 0], "0 to 3": [3, 0, 2, 1], "booleans":
    [True, False, True, True], "texts": ["b", "a", "b", "c"], "two texts": ["b", "a", "b", "b"],
    "bytes": [b"x", b"y", b"x", b"x"], "objects": np.array(["b", "a", "b", "c"], object),
    "mixed": np.array(["b", 1, "b", 2], object), "whole objects": np.array([1, 0, 1, True], object),
    "floats": [0.5, 1, -3, 0], "whole floats": [1.0, 0, 2, 1], "nan": [1, NAN, 0, 1],
    "inf": [1, 0, INF, 1], "huge": [1, 0, 1e39, 1], "unsigned": np.array([0, 1, 2, 1], np.uint8),
    "column": [[0], [1], [2], [1]], "column of floats": [[0.5], [1], [2], [1]],
    "column of whole floats": [[0.0], [1], [2], [1]],
    "one-hot": np.eye(4, 3, dtype=int), "two columns": [[1, 0], [0, 1], [1, 1], [2, 0]],
    "targets": np.eye(4, 3) / 2, "two targets": [[0.5, 1], [1, 2], [2, 2], [1, 0]],
    "no columns": np.zeros((4, 0)), "cube": np.zeros((4, 3, 1)), "whole cube":
    np.zeros((4, 1, 1), int), "complex": np.array([1j, 0, 1, 1]), "short": [0, 1, 2], "long":
    [0, 1, 2, 1, 0], "one": 3, "none": None, "dates": np.array([0, 1, 2, 1], "M8[s]"),
    "large labels": [10**12, 5, 5, 5], "twelve": [0, 1, 2, 12]}
CLASSES: dict[str, np.ndarray | None] = {
    "": None, "0 to 2": np.arange(3), "texts": np.array(["a", "b", "c"]), "0 and 5":
    np.array([0, 5])}


def test_labels_and_targets(recorded: Recorded) -> None:
    found = {}
    for (name, y), sizes, task, (class_name, classes) in itertools.product(
            LABELS.items(), ((), (3, 1), (3, 2), (3, 5, 3)),
            (None, "classification", "regression"), CLASSES.items()):
        if classes is None or (task is None and sizes in ((), (3, 5, 3))):
            found[f"{name}, {'-'.join(map(str, sizes))}, {task}, {class_name}"] = outcome(
                lambda y=y, sizes=sizes, task=task, classes=classes: samples(
                    X, y, sizes, classes, "validation " * (classes is not None), task),
                text=samples_text)
    for count in (9, 10, 11, 12):
        for outputs in (None, count - 1, count, count + 1):
            for first in (0, 1, -1):
                labels = np.arange(first, first + count)
                found[f"{count} classes from {first}, {outputs}"] = outcome(
                    lambda labels=labels, outputs=outputs: found_classes(labels, outputs))
        found[f"{count} texts, 3"] = outcome(
            lambda count=count: found_classes(np.arange(count).astype(str), 3))
    recorded("labels", found)


MATRICES: dict[str, Any] = {
    "list": X.tolist(), "float32": X.astype(np.float32), "int": X.astype(int), "bool": X > 1,
    "complex": X * 1j, "row": X[0], "number": 3.5, "cube": X[:, :, None], "texts": X.astype(str),
    "objects": X.astype(object), "numbers as texts": X.astype(str).astype(object),
    "words": np.array([["1", "2", "3"], ["1", "two", "3"]], object),
    "nothing": np.array([[1, 2, 3], [1, 2, None]], object), "no columns": X[:, :0],
    "no rows": X[:0], "two columns": X[:, :2], "nan": np.where(X == 5, NAN, X),
    "inf": np.where(X == 4, -INF, X), "huge": X * 1e39, "greatest": X * 6.8e37,
    "sparse": scipy.sparse.csr_matrix(X), "dates": X.astype("M8[s]"), "turned": X.T.copy().T,
    "half": X.astype(np.float16), "frame": Frame(["a", "b", "c"], X.tolist()),
    "frame with nan": Frame(["a", "b", "c"], np.where(X == 2, NAN, X).tolist()),
    "frame of words": Frame(["a", "b", "c"], [[1, 2, "x"]]),
    "frame of numbers": Frame([1, 2, 3], X.tolist()), "frame of both":
    Frame(["a", 2, "c"], X.tolist())}


def test_matrices(recorded: Recorded) -> None:
    found = {}
    for (name, values), columns, what in itertools.product(
            MATRICES.items(), (None, 3, 4), ("x", "validation y")):
        found[f"{name}, {columns}, {what}"] = outcome(
            lambda values=values, columns=columns, what=what: matrix(values, columns, what),
            text=lambda array: f"{array_text(array)} {array.flags.c_contiguous}")
    for name, values in MATRICES.items():
        for sizes in ((), (3, 2), (2, 2)):
            found[f"samples of {name}, {sizes}"] = outcome(
                lambda values=values, sizes=sizes: samples(values, [0, 1, 0, 1], sizes),
                text=samples_text)
    large = np.zeros((65538, 1))
    for row in (65534, 65535, 65536, 65537):
        large[row] = NAN
        found[f"row {row}"] = outcome(lambda: matrix(large, 1, "x"))
        large[row] = 0
    frames = {"none": X, "abc": Frame(["a", "b", "c"], X), "acb": Frame(["a", "c", "b"], X),
              "ab": Frame(["a", "b"], X[:, :2]), "abcd": Frame([*"abcd"], X),
              "a": Frame(["a"], X[:, :1]),
              "many": Frame([f"c{index}" for index in range(6)], X), "xyz": Frame([*"xyz"], X),
              "five": Frame([f"d{index}" for index in range(5)], X)}
    names = {"none": None, **{key: np.array(frame.columns, object)
                              for key, frame in frames.items() if isinstance(frame, Frame)}}
    for (given, x), (known, columns), what in itertools.product(
            frames.items(), names.items(), ("x", "validation x")):
        found[f"{given} for {known}, {what}"] = outcome(
            lambda x=x, columns=columns, what=what: check_feature_names(x, columns, what))
    recorded("matrices", found)


def test_weights(recorded: Recorded) -> None:
    found, labels, classes = {}, np.array([0, 1, 1, 0]), np.array([3, 7, 9])
    for index, weights in enumerate((
            [1, 2, 3, 4], [0, 0, 0, 4], [0, 0, 0, 0], [1, -1, 1, 1], [1, NAN, 1, 1],
            [1, 1, INF, 1], [1, 2, 3], [[1, 2, 3, 4]], 2.0, [True, False, True, True],
            ["1", "2", "3", "4"], [1j, 1, 1, 1], [1e-30, 1e30, 0, 0], [0, 0, 0, 1e-9])):
        found[f"sample {index} {weights}".replace(": ", " ")] = outcome(
            lambda weights=weights: checked_weights(weights, 4), text=array_text)
    for given in (None, np.array([1, 3, 0, 0], np.float32)):
        for by_class in ("balanced", "equal", None, {}, {3: 2}, {7: 0}, {3: 0, 7: 0}, {9: 5},
                         {8: 1}, {3: -1}, {3: INF}, {3: NAN}, {3: "2"}, {3: np.float32(2)},
                         {3: True, 7: 3}, {"3": 1}, 2, {3: 0.5, 7: 2, 9: 0}):
            found[f"class {by_class} {given is None}".replace(": ", "=")] = outcome(
                lambda given=given, by_class=by_class: with_classes(
                    given, by_class, labels, classes), text=array_text)
    for name, y in (("labels", [3, 7, 7, 3]), ("numbers", [0.5, 1, 2, 3])):
        data = samples(X, y, (), sample_weight=[1, 0, 2, 1])
        for loss in ("cross_entropy", "squared_error"):
            found[f"targets for {loss}, {name}"] = array_text(data.targets_for(loss))
            found[f"targets for {loss}, {name}, no weights"] = array_text(
                samples(X, y, ()).targets_for(loss))
        found[f"rows of {name}"] = samples_text(data.rows(np.array([3, 0])))
        found[f"rows of {name}, no weights"] = samples_text(
            samples(X, y, ()).rows(np.array([3, 0])))
    recorded("weights", found)


def test_scaling(recorded: Recorded) -> None:
    """All numbers are such that float32 holds them without rounding."""
    found = {}
    columns = np.array([[1, 0.0], [3, 8], [1, 0], [3, 8]])
    for index, x in enumerate((columns, columns * [4, 0], columns[:1], columns * [0, 1] - [0, 4],
                               columns + np.array([1e7, 0]), columns / 1e7 + [8, 0],
                               columns / 1e5 + [64, 0], columns / 1e5 + [-64, 0],
                               columns / 2**20 - 2**-19)):
        for name, scaling in (("x", Scaling.of(x, None)), ("y", Scaling.of(None, x)),
                              ("both", Scaling.of(x, x[:, :1])), ("none", Scaling.of(None, None))):
            case = f"{index} {name}"
            found[case] = f"{_short(scaling.x)} {_short(scaling.y)} {scaling.is_trivial}"
            if index in (0, 1, 3):
                layers = [(np.array([[2, 4.0], [8, 16]]), np.array([1.0, 2])),
                          (np.array([[1, 2.0]] if name == "both" else [[1, 2.0], [4, 8]]),
                           np.array([3.0, 5][:1 if name == "both" else 2]))]
                data = Samples(x, x[:, :1] if name == "both" else x).scaled(scaling)
                found[f"{case} folded"] = " ".join(
                    array_text(part) for layer in scaling.folded(layers) for part in layer)
                found[f"{case} scaled"] = f"{array_text(data.x)} {array_text(data.targets)}"
    recorded("scaling", found)


def test_validation_samples(recorded: Recorded) -> None:
    found = {}
    trained = {
        "labels": samples(X, [0, 1, 2, 1], ()), "texts": samples(X, [*"abca"], ()),
        "numbers": samples(X, [0.5, 1, 2, 1], ()),
        "named": samples(Frame([*"abc"], X), [0, 1, 2, 1], ()),
        "scaled": samples(X, [0.0, 2, 0, 2], (3, 1)).scaled(Scaling.of(
            np.array([[1, 0, 3.0], [3, 8, 3]]), np.array([[0.0], [2]])))}
    for (kind, data), (name, y), task in itertools.product(
            trained.items(), {"labels": [0, 1, 1, 2], "other": [0, 1, 5, 1], "texts": [*"abca"],
                              "numbers": [0.5, 1, 2, 0]}.items(), (None, "regression")):
        for x_name, x in (("array", X), ("frame", Frame([*"abc"], X)), ("narrow", X[:, :2])):
            found[f"{kind}, {name}, {task}, {x_name}"] = outcome(
                lambda x=x, y=y, data=data, task=task: validation_samples(
                    (x, y), (3, data.shape.outputs), data, task), text=samples_text)
    for index, pair in enumerate((X, (X,), (X, 1, 2), [X, [0, 1, 2, 0]], None, "xy")):
        found[f"pair {index}"] = outcome(lambda pair=pair: validation_samples(
            pair, (3, 3), trained["labels"]), text=samples_text)
    recorded("validation_samples", found)


def test_parts_of_data(recorded: Recorded) -> None:
    found = {}
    for count, fraction, seed in itertools.product(
            (1, 2, 3, 4, 9, 10), (-0.1, 0.0, 0.1, 0.24, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2), (0, 7)):
        data = Dataset(np.arange(count, dtype=np.float32)[:, None],
                       np.arange(count) % 3 if count % 2 else np.arange(count) / 2, None, False,
                       "FILE")
        found[f"split {count} {fraction} {seed}"] = outcome(
            lambda data=data, fraction=fraction, seed=seed: split(data, fraction, seed),
            text=lambda parts: f"{array_text(parts[0].x[:, 0])} {array_text(parts[1].y)} "
                          f"{parts[1].source} {parts[0].labelled} {parts[0].names}")
    for features in (0, 1, 4, 49, 63, 64, 65, 80, 81, 784, 785):
        found[f"features {features}"] = str(picture_shape(features))
    for index, values in enumerate((
            [], [0], [127], [127.5], [128], [255], [255.5], [256], [-0.5, 200], [0, 200], [-1, 0],
            [1, 255], [0, 1], [0, 16], [300, 1])):
        x = np.array(values, np.float32)
        found[f"levels {values}"] = f"{has_grey_levels(x)} {are_pixels(x, (1, 1))} {index}"
    recorded("parts_of_data", found)


def test_preparations(recorded: Recorded) -> None:
    found = {}
    for x_values, scale, threshold, pad, shape in itertools.product(
            ((0, 0.25, 0.5, 1), (0, 127, 128, 255), (-0.5, 0, 0, 1), (0, 0, 0, 256), (0, 1, 0, 2),
             ()), (False, True), (None, 0.5, 0.0, 1.0),
            (None, (2, 2), (3, 5), (1, 4), (4, 1), (2, 1)), (None, (2, 2), (1, 4), (2, 3))):
        if shape is None and pad not in (None, (2, 2)):
            continue
        if not x_values and (scale is False or threshold is None):
            continue
        if threshold in (0.0, 1.0) and pad is not None:
            continue
        preparation = Preparation(scale, threshold, pad, shape)
        x = np.array([x_values] * 2 if x_values else np.zeros((0, 4)), np.float32)
        found[f"{x_values} {scale} {threshold} {pad} {shape}"] = outcome(
            lambda x=x, preparation=preparation: preparation(x, "FILE"), text=array_text)
    data = Dataset(np.full((2, 4), 255, np.float32), np.arange(2), (2, 2), True, "FILE")
    for scale, pad, shape in itertools.product((False, True), (None, (3, 3)), ((2, 2), None)):
        steps = Preparation(scale, None, pad, (1, 4))
        given = Dataset(data.x, data.y, shape, True, "FILE")
        found[f"prepared {scale} {pad} {shape}"] = outcome(
            lambda given=given, steps=steps: prepared(given, steps), text=dataset_text)
    shown = {name: as_text(vars(Preparation())[name]) for name in vars(Preparation())}
    found["default"] = str(shown).replace(": ", "=")
    recorded("preparations", found)
