"""Wrong input to `run` and `inspect` gives one line that says so, and no file is written."""

import os

import numpy as np
import pytest
from onnx import helper

from tests.cli.command_line import fails, save_network, save_photo


@pytest.fixture
def photo(tmp_path):
    return save_photo(tmp_path / "photo.png")


def bad_files(folder):
    np.save(folder / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    (folder / "link").symlink_to(folder)
    os.mkfifo(folder / "pipe.npy")
    save_network(folder / "flat.onnx", weights={}, inputs=("N", 784), outputs=(("y", None),),
                 nodes=[helper.make_node("Relu", ["x"], ["y"])])
    np.save(folder / "objects.npy", np.array([{}]), allow_pickle=True)
    (folder / "text").write_text("no array, no image, no network")
    content = (folder / "tiny.onnx").read_bytes()
    (folder / "cut.onnx").write_bytes(content[: len(content) // 2])
    (folder / "empty.onnx").write_bytes(b"")
    save_network(folder / "unknown.onnx", weights={}, outputs=(("y", None),), nodes=[
        helper.make_node("Frobnicate", ["x"], ["y"], name="odd one")])
    save_network(folder / "open.onnx", inputs=("N", 3, "H", "W"))
    save_network(folder / "any.onnx", weights={}, inputs=("N", 192), outputs=(("y", None),),
                 nodes=[helper.make_node("Relu", ["x"], ["y"])])


BAD = [
    ("run absent.onnx --input x.npy", ["absent.onnx"]),
    ("run absent_name --input x.npy", ["absent_name"]),
    ("run cut.onnx --input x.npy", ["cut.onnx"]),
    ("run empty.onnx --input x.npy", ["empty.onnx"]),
    ("run text --input x.npy", ["text"]),
    ("run unknown.onnx --input x.npy", ["Frobnicate", "odd one"]),
    ("run tiny.onnx --input objects.npy", ["objects.npy"]),
    ("run tiny.onnx --preprocess unit --image text", ["text", "image"]),
    ("run tiny.onnx --preprocess unit --size 100000 --image photo.png",
     ["--size 100000", "tiny.onnx takes 8x8"]),
    ("run any.onnx --preprocess unit --size 100000 --image photo.png",
     ["--size 100000", "1 to 16384"]),
    ("run tiny.onnx --grey --preprocess imagenet --image photo.png", ["--grey", "takes 3"]),
    ("run mobilenet_v2 --grey --image photo.png", ["--grey", "takes 3"]),
    ("run flat.onnx --image photo.png", ["takes 784 numbers", "--grey --size 28"]),
    ("run tiny.onnx --input=", ["--input", "empty"]),
    ("run tiny.onnx --input x.npy --output=", ["--output", "empty"]),
    ("run tiny.onnx --input x.npy --output link/x.npy", ["--output", "reads"]),
    ("run tiny.onnx --input x.npy --output pipe.npy", ["pipe.npy", "regular"]),
    (f"run tiny.onnx --input x.npy --output {'y' * 300}.npy", ["--output", "too long"]),
    (f"run tiny.onnx --input {'y' * 300}.npy", ["--input", "too long"]),
    (f"run {'y' * 300}.onnx --input x.npy", ["too long"]),
    (f"run tiny.onnx --preprocess unit --image {'y' * 300}.png", ["too long"]),
    ("run tiny.onnx --input x.npy --device cuda:99", ["cuda:99"]),
    ("run tiny.onnx --input x.npy --device abacus", ["abacus"]),
    ("inspect cut.onnx", ["cut.onnx"]),
    ("run open.onnx --input x.npy --device host,host", ["open.onnx", "--shape"]),
]


@pytest.mark.parametrize("words, expected", BAD, ids=[words for words, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(words, expected, tiny, photo, monkeypatch):
    bad_files(tiny.parent)
    monkeypatch.chdir(tiny.parent)
    before = sorted(os.listdir())
    extra = ["--device", "host"] if "run" in words and "--device" not in words else []
    line = fails(2, *words.split(" "), *extra)
    for word in expected:
        assert word in line, line
    assert sorted(os.listdir()) == before
