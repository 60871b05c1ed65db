"""The verb `train` on pictures: how they are prepared, and what the trained network takes."""

import json

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.command_line import fails, json_of, succeeds
from tests.cli.train.small import LABELS, PICTURES, train


def test_pictures_as_published(model, tmp_path):
    """Pictures are scaled without an option, binarised and padded, and so are the test samples."""
    np.savez(tmp_path / "x.npz", x_train=PICTURES, y_train=LABELS, x_test=PICTURES[:6],
             y_test=LABELS[:6])
    lines = succeeds(*train(tmp_path / "x.npz", model, "--binarise", "--pad", "10x12",
                            sizes="120,4,3")).stdout.splitlines()
    assert lines[0] == (f"data: 60 samples of {tmp_path / 'x.npz'}, 3 classes, scaled to 0..1, "
                        "binarised at 0.5, padded to 10x12")
    assert lines[-1].endswith(f"of 6 samples of {tmp_path / 'x.npz'})")
    shape = onnx.load(model).graph.input[0].type.tensor_type.shape
    assert shape.dim[1].dim_value == 64  # as the samples are, not as they are prepared
    assert ", binarised at 0.4, " in succeeds(*train(
        tmp_path / "x.npz", model, "--binarise", "--threshold", "0.4", "--pad", "10x12",
        sizes="120,4,3")).stdout
    lines = succeeds(*train(tmp_path / "x.npz", model, "--no-scale", sizes="64,4,3")
                     ).stdout.splitlines()
    assert lines[0] == f"data: 60 samples of {tmp_path / 'x.npz'}, 3 classes"


@pytest.mark.parametrize("how", [["--binarise", "--pad", "10x12"], ["--loss", "cross_entropy"]])
def test_what_is_trained_on_pictures_takes_pictures(how, model, tmp_path):
    """The network takes pictures from files, and unprepared samples from an array, with the same
    answers as in training."""
    for index, (label, picture) in enumerate(zip(LABELS, PICTURES, strict=True)):
        folder = tmp_path / "data" / ("ash", "elm", "oak")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{index}.png")
    facts = json_of(*train(tmp_path / "data", model, "--epochs", "30", *how,
                           sizes="120,4,3" if "--pad" in how else "64,4,3"))
    np.save(tmp_path / "x.npy", PICTURES.reshape(60, 64).astype(np.float32))
    listed = json_of("run", model, "--input", tmp_path / "x.npy", "--device", "host")["results"]
    names = [answer["top"][0]["name"] for answer in listed]
    right = np.array(names) == np.array(["ash", "elm", "oak"])[LABELS]
    assert right.sum() == facts["right"] >= 50
    photos = sorted((tmp_path / "data").glob("*/*.png"), key=lambda path: int(path.stem))
    words = ("--device", "host", "--image", *photos)
    assert json_of("run", model, *words, "--batch", 60)["results"] == [
        {**answer, "input": str(path)} for answer, path in zip(listed, photos, strict=True)]
    succeeds("compile", model, "--device", "host", "--effort", "quick", "-o", tmp_path / "m.plan")
    first = listed[0]["top"][0]
    for file in (model, tmp_path / "m.plan"):
        result = succeeds("run", file, photos[0], "--device", "host", "--top", 1)
        assert result.stderr == ""
        value = (f"{first['probability']:8.2%}" if "cross_entropy" in how
                 else f"score {first['score']:.4f}")
        assert result.stdout.splitlines()[-1] == f"{value}  {first['name']}"
    lines = succeeds("run", model, "--input", tmp_path / "x.npy", "--device", "host", "--top", 1)
    assert lines.stdout.splitlines()[-4].endswith("x.npy[19]")
    assert lines.stdout.splitlines()[-1] == "and 40 more inputs (use --json to print all)"


def test_negatives_of_what_was_trained_on(model, tmp_path):
    """A photo of paper is black on white, where the network knows white on black."""
    dark = PICTURES // 3
    np.savez(tmp_path / "x.npz", x=dark, y=LABELS)
    succeeds(*train(tmp_path / "x.npz", model, "--scale", sizes="64,4,3"))
    for name, picture in (("a", dark[0]), ("b", 255 - dark[0]), ("c", 255 - dark[1])):
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
    words = ("run", model, "--device", "host", "--json")
    usual = succeeds(*words, tmp_path / "a.png")
    assert usual.stderr == ""
    assert succeeds(*words, *(tmp_path / f"{name}.png" for name in "abc")).stderr == (
        f"notice: {tmp_path / 'b.png'} and 1 more: looks inverted compared with the training "
        "images; --scale -1 --mean -255 inverts it\n")
    again = succeeds(*words, tmp_path / "b.png", "--scale", "-1", "--mean", "-255")
    assert again.stderr == ""
    assert json.loads(again.stdout)["outputs"] == json.loads(usual.stdout)["outputs"]


def test_pictures_that_are_not_square(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=PICTURES[:, :6], y=LABELS)
    succeeds(*train(tmp_path / "x.npz", model, sizes="48,4,3"))
    Image.fromarray(PICTURES[0, :6]).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", PICTURES[:1, :6].reshape(1, 48).astype(np.float32))
    first, second = (json_of("run", model, *words, "--device", "host")["outputs"]
                     for words in (["--input", tmp_path / "a.npy"], [tmp_path / "a.png"]))
    assert first == second
    line = fails(2, "run", model, tmp_path / "a.png", "--device", "host", "--size", "8")
    assert "expects 48 numbers" in line


def test_samples_that_are_no_pictures(samples, model, tmp_path):
    """The file of such a network does not say how photos are prepared."""
    succeeds(*train(samples, model))
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    assert "expects 9 numbers" in fails(2, "run", model, tmp_path / "a.png", "--device", "host")


def test_pictures_and_the_padding_that_fits_the_sizes(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=PICTURES, y=LABELS)
    line = fails(2, *train(tmp_path / "x.npz", model, sizes="144,4,3"))
    assert line.endswith("has 64 numbers (8x8); use --sizes 64,4,3, or --pad 12x12")
    np.savez(tmp_path / "t.npz", x=PICTURES[:, :7], y=LABELS)
    assert "has 56 numbers (7x8)" in fails(2, *train(
        tmp_path / "x.npz", model, "--validation", tmp_path / "t.npz", sizes="64,4,3"))
