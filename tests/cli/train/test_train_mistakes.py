"""The verb `train` with wrong options and with samples that do not fit them: one line says what to
do."""

import json

import numpy as np
import onnx

from tests.cli.command_line import fails, succeeds
from tests.cli.train.small import LABELS, X, save_csv, train


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
