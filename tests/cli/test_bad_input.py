"""Names that no file and no device can have give one line that says so; tests/golden has what else
is refused."""

import os

import numpy as np
import pytest

from tests.cli.command_line import fails

LONG = "y" * 300
BAD = [
    (f"tiny.onnx --device host --input x.npy --output {LONG}.npy", ["--output", "too long"]),
    (f"tiny.onnx --device host --input {LONG}.npy", ["--input", "too long"]),
    (f"{LONG}.onnx --device host --input x.npy", ["too long"]),
    (f"tiny.onnx --device host --preprocess unit --image {LONG}.png", ["too long"]),
    ("tiny.onnx --input x.npy --device cuda:99", ["cuda:99"]),
    ("tiny.onnx --input x.npy --device abacus", ["abacus"]),
]


@pytest.mark.parametrize("words, expected", BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(words, expected, tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    before = sorted(os.listdir())
    line = fails(2, "run", *words.split(" "))
    for word in expected:
        assert word in line, line
    assert sorted(os.listdir()) == before
