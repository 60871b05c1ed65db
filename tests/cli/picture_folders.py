"""Folders of pictures, and what `run` makes of them."""

import csv
import json
import re

import numpy as np
from PIL import Image

from tests.tolerances import tolerance

RNG = np.random.default_rng(5)
BROKEN = {"a/07.png": "not a readable image", "b/03.png": "damaged image"}
"""The damaged pictures of the fixture `folder`, each with a part of its message."""


def save_picture(path, height=9, width=11):
    Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def save_pictures(folder, *names):
    """Make a folder of pictures."""
    folder.mkdir()
    for name in names:
        save_picture(folder / name)
    return folder


def command_of(tiny, *words):
    return ("run", tiny, "--device", "host", "--preprocess", "unit", *words)


def picture_files(folder):
    return sorted(path for path in folder.rglob("[0-9]*.png"))


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def table_of(path):
    """Return the rows of a CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def are_same(rows: bytes, others: bytes) -> bool:
    """Return whether rows are the same but for the rounding of their numbers, which depends on how
    many pictures were computed together."""
    number = re.compile(rb"\d+\.\d+(?:e-?\d+)?")
    return number.split(rows) == number.split(others) and np.allclose(
        [float(text) for text in number.findall(rows)],
        [float(text) for text in number.findall(others)], rtol=tolerance("network"), atol=0)
