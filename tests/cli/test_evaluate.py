"""`gossamer evaluate`: samples of which it is known how many a network gets right."""

import numpy as np
import pytest
from onnx import helper
from PIL import Image

from tests.cli.command_line import fails, json_of, save_network, succeeds

COLOURS = {"red": (255, 0, 0), "dark_green": (0, 255, 0), "Blue": (0, 0, 255)}
DEVICE = ("--device", "host")


def save_product(folder, weights):
    """Save a network whose seven scores are a product of its seven inputs and the weights."""
    return save_network(
        folder / "product.onnx", nodes=[helper.make_node("MatMul", ["x", "w"], ["y"])],
        inputs=("N", 7), outputs=(("y", ["N", 7]),), weights={"w": weights})


@pytest.fixture
def colours(tmp_path):
    """A network that tells red, green and blue photos of 4x4, and four of each in folders, of
    which one red photo is blue."""
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["p"]),
             helper.make_node("Flatten", ["p"], ["y"])]
    network = save_network(tmp_path / "colours.onnx", nodes=nodes, inputs=("N", 3, 4, 4),
                           outputs=(("y", ["N", 3]),), weights={})
    folder = tmp_path / "photos"
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (4, 4), colour).save(folder / name / f"{index}.png")
    Image.new("RGB", (4, 4), (0, 0, 255)).save(folder / "red" / "0.png")
    labels = tmp_path / "labels.txt"
    labels.write_text("Red\ndark green\nblue\n")
    return network, folder, labels


def test_ranks_of_numbers(tmp_path):
    """The right class of row n is the class that comes n-th."""
    identity = save_product(tmp_path, np.eye(7))
    x = np.tile(np.arange(7, 0, -1, dtype=np.float32), (7, 1))
    np.savez(tmp_path / "s.npz", x=x, y=np.arange(7))
    rows = [",".join(map(str, [label, *row])) for label, row in enumerate(x)]
    (tmp_path / "s.csv").write_text("\n".join(rows))
    for file in ("s.npz", "s.csv"):
        found = json_of("evaluate", identity, tmp_path / file, "--batch", "3", *DEVICE)
        assert (found["samples"], found["top1_right"], found["top5_right"]) == (7, 1, 5)
    result = succeeds("evaluate", identity, tmp_path / "s.csv", "--limit", "4", *DEVICE)
    assert result.stdout.splitlines()[-2:] == ["top-1: 25.00% (1 of 4)", "top-5: 100.00% (4 of 4)"]


def test_scores_that_are_no_numbers_are_not_right(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.full((2, 7), 3e38, np.float32), y=[0, 6])
    network = save_product(tmp_path, np.full((7, 7), 3e38) * np.where(np.arange(7) % 2, 1, -1))
    result = succeeds("evaluate", network, tmp_path / "s.npz", *DEVICE)
    assert "top-1: 0.00% (0 of 2)" in result.stdout
    assert "warning: 2 of 2 samples: the scores contain NaN or infinite values" in result.stderr


def test_folders_of_photos(colours):
    network, folder, labels = colours
    words = ("evaluate", network, folder, "--preprocess", "none", *DEVICE)
    result = succeeds(*words, "--labels", labels)
    assert result.stdout.splitlines()[-1] == "top-1: 91.67% (11 of 12)"
    assert "12 samples of" in result.stdout and result.stderr == ""
    # without names the folders are classes in their order: Blue, dark_green, red
    result = succeeds(*words)
    assert result.stdout.splitlines()[-1] == "top-1: 41.67% (5 of 12)"
    assert "used as classes in sorted order; use --labels FILE to set names" in result.stderr


def test_a_saved_plan(colours, tmp_path):
    network, folder, labels = colours
    succeeds("compile", network, "-o", tmp_path / "c.plan", "--effort", "quick", *DEVICE)
    result = succeeds("evaluate", tmp_path / "c.plan", folder, "--preprocess", "none", "--labels",
                      labels)
    assert result.stdout.splitlines()[-1] == "top-1: 91.67% (11 of 12)"


def test_labels_without_a_class(colours):
    network, folder, labels = colours
    labels.write_text("red\nred\nblue\n")
    words = ("evaluate", network, folder, "--preprocess", "none", "--labels", labels, *DEVICE)
    assert "the label 'dark_green' is not a class of the network" in fails(2, *words)
    labels.write_text("dark green\nBLUE\nblue\n")
    assert "the label 'Blue' is the name of several classes" in fails(2, *words)


def test_outputs_that_are_no_scores(tmp_path):
    network = save_network(tmp_path / "n.onnx", outputs=(("c", ["N", 4, 8, 8]),))
    np.savez(tmp_path / "s.npz", x=np.zeros((2, 3, 8, 8), np.float32), y=[0, 1])
    line = fails(2, "evaluate", network, tmp_path / "s.npz", *DEVICE)
    assert line.endswith("output 'c' is 2x4x8x8 float32, expected one score per "
                         "class")


def test_tables_are_made_numbers_as_those_trained_on(tmp_path):
    """A column found by its name, gaps and texts are those of training, in a plan too."""
    rng = np.random.default_rng(0)
    rows = [(city, age, "yes" if age + 30 * (city == "Oslo") > 40 else "no")
            for city, age in zip(rng.choice(["Oslo", "Rome"], 200), rng.uniform(0, 80, 200),
                                 strict=True)]
    rows[7] = ("", rows[7][1], rows[7][2])
    (tmp_path / "t.csv").write_text("\n".join(
        ["city,age,buys", *(f"{city},{age},{buys}" for city, age, buys in rows), "Rome,,no"]))
    (tmp_path / "later.csv").write_text("\n".join(
        ["age,buys,city", *(f"{age},{buys},{city}" for city, age, buys in rows), ",no,Rome"]))
    network, plan = tmp_path / "m.onnx", tmp_path / "m.plan"
    text = succeeds("train", tmp_path / "t.csv", "--label", "buys", "--impute", "zero",
                    "--one-hot", "--standardise", "--lr", "0.01", "-o", network, *DEVICE).stdout
    assert "\none-hot encoded: city: Oslo, Rome\n" in text
    trained = float(text.splitlines()[-1].split()[2].rstrip("%"))
    assert trained > 90
    succeeds("compile", network, "-o", plan, *DEVICE)
    for model in (network, plan):
        found = json_of("evaluate", model, tmp_path / "later.csv", "--label", "2")
        assert round(100 * found["top1"], 2) == trained and found["samples"] == 201
    (tmp_path / "other.csv").write_text("years,buys,city\n3,no,Rome\n")
    assert fails(2, "evaluate", network, tmp_path / "other.csv", "--label", "buys").endswith(
        "has no column 'age', which the network was trained on; has the column 'years', which the "
        "network was not trained on")
