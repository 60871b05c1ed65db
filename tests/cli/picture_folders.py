"""Folders of pictures, and what `run` makes of them."""

import json
import re

import numpy as np
from PIL import Image

from tests.tolerances import tolerance

RNG = np.random.default_rng(5)
BROKEN = {"a/07.png": "not a readable image", "b/03.png": "damaged image"}
"""The damaged pictures of the fixture `folder`, each with a part of its message."""


def save_picture(path):
    Image.fromarray(RNG.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(path)


def command_of(tiny, *words):
    return ("run", tiny, "--device", "host", "--preprocess", "unit", *words)


def picture_files(folder):
    return sorted(path for path in folder.rglob("[0-9]*.png"))


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def are_same(rows: bytes, others: bytes) -> bool:
    """Return whether rows are the same but for the rounding of their numbers, which depends on how
    many pictures were computed together."""
    number = re.compile(rb"\d+\.\d+(?:e-?\d+)?")
    return number.split(rows) == number.split(others) and np.allclose(
        [float(text) for text in number.findall(rows)],
        [float(text) for text in number.findall(others)], rtol=tolerance("network"), atol=0)
