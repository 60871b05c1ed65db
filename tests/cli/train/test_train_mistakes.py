"""The verb `train` with wrong options and with samples that do not fit them: one line says what to
do."""

import json

import numpy as np
import onnx
import pytest

from tests.cli.command_line import fails, succeeds
from tests.cli.train.small import LABELS, X, save_csv, train


@pytest.mark.parametrize("words, expected", [
    (["--lr", "nan"], "--lr nan: expected a finite number"),
    (["--momentum", "1"], "--momentum 1.0: expected 0 or more, and below 1"),
    (["--schedule", "step:two:1"], "--schedule step:two:1: expected constant, inverse, or"),
    (["--sizes", "9,x,3"], "--sizes 9,x,3: expected the units of all layers, like 784,32,10"),
    (["--binarise"], "SAMPLES: has numbers from -0."),
    (["--scale"], "SAMPLES: has numbers from -0."),
    (["--label", "last"], "SAMPLES: the last column has "),
    (["--validation", ""], "--validation : expected a share of the samples"),
    (["--device", "cuda:9"], "cuda:9"),
    (["--resume", "--checkpoint", "absent.ckpt"], "absent.ckpt: there is no checkpoint to resume"),
    (["--checkpoint", "SAMPLES"], "--checkpoint SAMPLES: is a file that this command"),
    (["-o", "folder.onnx"], "--output folder.onnx: is a folder"),
    (["--checkpoint", "same.onnx", "-o", "same.onnx"], "--output same.onnx: is the file of "
                                                       "--checkpoint too; give another name"),
    (["--threshold", "nan"], "--threshold nan: expected a number above 0, and 1 at most"),
    (["--schedule", "steps:1:1"], "--schedule steps:1:1: expected constant, inverse, or step:"),
    (["--sizes", "9,6,1"], "--sizes 9,6,1: ends in 1; expected an output for each class, of which "
                           "SAMPLES has 3"),
    (["--sizes", "9,999999999999999999999,3"], "--sizes 9,999999999999999999999,3: "),
])
def test_what_a_user_can_get_wrong(samples, model, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    words = [word.replace("SAMPLES", str(samples)) for word in words]
    before = sorted(tmp_path.iterdir())
    line = fails(2, *train(samples, model, *words))
    assert line.startswith(f"error: {expected.replace('SAMPLES', str(samples))}"
                           ) or (words[0] == "--device" and expected in line)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_left_out(samples, model):
    assert "give DATA to train on" in fails(2, "train", "", "--sizes", "9,3", "-o", model)


def test_one_class_only(model, tmp_path):
    for labels in (np.ones(60, int), np.full(60, "cat")):
        path = save_csv(tmp_path / "s.csv", labels)
        assert fails(2, *train(path, model)) == (
            f"error: {path}: the label of all 60 samples that are trained on is {str(labels[0])!r};"
            " expected two classes or more")


def test_numbers_in_place_of_labels(model, tmp_path):
    """The labels are numbers of lines, so that there are too many classes."""
    path = save_csv(tmp_path / "s.csv", np.arange(60))
    assert fails(2, *train(path, model)).endswith(
        "has samples of 60 classes: --sizes 9,6,60; of a .csv file --label says which column they "
        "are in")


def test_test_samples_of_another_class(samples, model, tmp_path):
    letters = save_csv(tmp_path / "other.csv", np.array(["a", "b", "c"])[LABELS])
    line = fails(2, *train(samples, model, "--validation", letters))
    assert line == (f"error: {letters}: has the label 'a', which no sample of {samples} has")


def test_an_absent_class_keeps_its_place(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.array([0, 1, 3])[LABELS])
    result = succeeds(*train(path, model, "--json", sizes="9,6,5"))
    facts = json.loads(result.stdout)
    assert facts["classes"] == ["0", "1", "2", "3", "4"]
    assert result.stderr == (f"notice: --sizes 9,6,5: ends in 5 outputs, {path} has samples of 3 "
                             "classes; --sizes 9,6,3 has an output for each\n")
    entries = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
    assert json.loads(entries["classes"]) == facts["classes"]


def test_hidden_units_in_place_of_outputs(samples, model):
    assert succeeds(*train(samples, model, sizes="9,6")).stderr == (
        f"notice: --sizes 9,6: ends in 6 outputs, {samples} has samples of 3 classes; --sizes 9,3 "
        "has an output for each, --sizes 9,6,3 hidden units too\n")
    assert succeeds(*train(samples, model)).stderr == ""


def test_samples_sorted_by_class_are_told_of(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.sort(LABELS), X[np.argsort(LABELS, kind="stable")])
    assert "the samples are sorted by class" in succeeds(*train(path, model)).stderr
    assert succeeds(*train(path, model, "--shuffle")).stderr == ""
