"""Reads labelled pictures from idx files, MNIST's own format: a file of images and a file of
labels.

A file is a big-endian header (two zero bytes, the type of its numbers, the number of dimensions
and their sizes as int32) and then the numbers, last dimension fastest
(http://yann.lecun.com/exdb/mnist). This module reads files of unsigned bytes: images of shape
(n, height, width) and labels of shape (n,).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gossamer.errors import InputError
from gossamer.io.packed import opened
from gossamer.train.data.dataset import Dataset

_IMAGES, _LABELS = ("images", "idx3"), ("labels", "idx1")
"""Words in the names of files of images, and in the names of files of labels."""
_UNSIGNED_BYTES = 8
"""The number in a file's header that stands for unsigned bytes."""


def is_named_so(name: str) -> bool:
    """Says whether a file has the name of an idx file."""
    return any(word in name.lower() for word in ("ubyte", "idx1", "idx3")) or name.endswith(".idx")


def holds_images(name: str) -> bool:
    """Says whether a file has the name of an idx file of images."""
    return is_named_so(name) and any(word in name.lower() for word in _IMAGES)


def is_one(path: Path) -> bool:
    """Says whether a file begins like an idx file."""
    with opened(path) as file:
        return file.read(3) == bytes((0, 0, _UNSIGNED_BYTES))


def read(path: Path, limit: int | None) -> Dataset:
    """Returns the samples of a file of images and a file of labels, given the path of either file.
    The two names are the same except for the words images and labels, for idx3 and idx1, and for
    the ending .gz.

    limit: largest number of samples; None for all.
    """
    name = path.name.lower()
    given_labels = any(word in name for word in _LABELS)
    if given_labels == any(word in name for word in _IMAGES):
        raise InputError(f"{path}: its name does not say whether it holds images or labels; "
                         "expected two files with names like train-images-idx3-ubyte and "
                         "train-labels-idx1-ubyte")
    partner = _partner(path, given_labels)
    images_path, labels_path = (partner, path) if given_labels else (path, partner)
    images = _array(images_path, 3, "images")
    labels = _array(labels_path, 1, "labels")
    if len(images) != len(labels):
        raise InputError(f"{images_path} has {len(images)} images, {labels_path} has "
                         f"{len(labels)} labels; expected as many")
    if images.size == 0:
        raise InputError(f"{images_path}: has {len(images)} images of {images.shape[1]}x"
                         f"{images.shape[2]}, expected some")
    images, labels = images[:limit], labels[:limit]
    height, width = images.shape[1:]
    x = images.reshape(len(images), -1).astype(np.float32)
    return Dataset(x, labels.astype(np.int64), (height, width), True, str(images_path))


def _partner(path: Path, given_labels: bool) -> Path:
    """Returns the file of images for a file of labels, or the other way round."""
    here, there = (_LABELS, _IMAGES) if given_labels else (_IMAGES, _LABELS)
    name = path.name
    for old, new in zip(here, there, strict=True):
        name = name.replace(old, new)
    name = name.removesuffix(".gz")
    plain, packed = path.with_name(name), path.with_name(f"{name}.gz")
    for candidate in (packed, plain) if path.suffix == ".gz" else (plain, packed):
        if candidate.exists():
            return candidate
    raise InputError(f"{path}: its {there[0]} are missing: there is no {plain} and no "
                     f"{packed.name}")


def _array(path: Path, dimensions: int, what: str) -> np.ndarray:
    """Returns the numbers of an idx file; `what` names them in error messages."""
    with opened(path) as file:
        content = file.read()
    magic = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    if content[:4] != magic:
        raise InputError(f"{path}: begins with the bytes {content[:4].hex(' ') or '(none)'}, "
                         f"expected {magic.hex(' ')}: an idx file of {what}, unsigned bytes in "
                         f"{dimensions} dimension{'s' if dimensions > 1 else ''}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path}: ends at byte {len(content)}, within its header of {start}")
    shape = tuple(map(int, np.frombuffer(content, ">u4", dimensions, 4)))
    end = start + math.prod(shape)
    if len(content) != end:
        sizes = "x".join(map(str, shape))
        raise InputError(f"{path}: ends at byte {len(content)}, expected {end}: a header of "
                         f"{start} and {sizes} {what}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
