"""`gossamer train` with few options: what the samples decide, the best epoch, and scaling."""

import json

import numpy as np
import onnx
import pytest

import gossamer
from tests.cli.command_line import fails, json_of, succeeds
from tests.cli.train.small import LABELS, X, save_csv, train

HOST = ("--device", "host")


def facts_of(*words):
    return json_of("train", *words, *HOST)


def test_the_samples_say_the_sizes(tmp_path):
    samples, model = save_csv(tmp_path / "s.csv", LABELS), tmp_path / "m.onnx"
    facts = facts_of(samples, "-o", model, "--epochs", "20", "--hidden", "8,4")
    settings = facts["settings"]
    assert settings["sizes"] == [9, 8, 4, 3] and settings["shuffle"] is True
    assert (settings["loss"], settings["optimiser"], settings["learning_rate"]) == (
        "cross_entropy", "adam", 0.001)
    assert settings["batch"] == 60
    assert facts_of(samples, "-o", model, "--epochs", "1")["settings"]["sizes"] == [9, 100, 3]


def test_the_published_training_is_one_option(tmp_path):
    samples, model = save_csv(tmp_path / "s.csv", LABELS), tmp_path / "m.onnx"
    facts = facts_of(samples, "-o", model, "--sizes", "9,6,3", "--published")
    mlp = gossamer.MLP.published((9, 6, 3), device="host").fit(X, LABELS)
    assert facts["errors"] == mlp.loss_curve_ and facts["epochs_done"] == 10


def test_the_best_epoch_is_kept_and_said(tmp_path):
    labels = np.where(np.arange(60) % 4, LABELS, (LABELS + 1) % 3)  # a quarter of them is wrong
    samples, model = save_csv(tmp_path / "s.csv", labels), tmp_path / "m.onnx"
    words = ("train", samples, "-o", model, "--validation", "0.3", "--patience", "3", "--lr",
             "0.01", *HOST)
    text = succeeds(*words).stdout
    assert "\nstopped early: no improvement in 3 epochs\n" in text
    assert "\nkept: epoch " in text
    assert "; the accuracy on other samples may be lower\n" in text
    assert "  validation accuracy  samples/s\n" in text
    assert text.splitlines()[-1].startswith("validation accuracy: ")
    facts = json_of(*words)
    assert facts["scored_as"] == "validation"
    assert facts["kept_epoch"] == facts["epochs_done"] - 3
    best = max(row["held_out_accuracy"] for row in facts["rows"])
    assert facts["accuracy"] == best
    last = json_of(*words, "--keep", "last")
    assert last["kept_epoch"] == last["epochs_done"] and last["scored_as"] == "test"


def test_samples_to_test_on_choose_no_epoch(tmp_path):
    """Samples that DATA keeps apart are tested on, and are used for nothing else."""
    np.savez(tmp_path / "s.npz", x_train=X[:40], y_train=LABELS[:40], x_test=X[40:],
             y_test=LABELS[40:])
    save_csv(tmp_path / "s.csv", LABELS[:40], X[:40])
    words = ("--patience", "2", "--lr", "0.02")
    with_test = facts_of(tmp_path / "s.npz", "-o", tmp_path / "m.onnx", *words)
    without = facts_of(tmp_path / "s.csv", "-o", tmp_path / "m.onnx", *words)
    assert with_test["held_out_samples"] == 20 and without["held_out_samples"] == 0
    assert with_test["errors"] == pytest.approx(without["errors"], rel=1e-4)
    assert with_test["kept_epoch"] == with_test["epochs_done"]


def test_the_file_takes_numbers_that_are_not_standardised(tmp_path):
    x = X * 1000 + 5000
    samples, model = save_csv(tmp_path / "s.csv", LABELS, x), tmp_path / "m.onnx"
    result = succeeds("train", samples, "-o", model, "--standardise", "--lr", "0.02", *HOST)
    assert result.stderr == "" and "standardised" in result.stdout.splitlines()[0]
    assert json_of("evaluate", model, samples, *HOST)["top1"] > 0.95


def test_numbers_are_learnt(tmp_path):
    y = 1000 * X[:, 0] + 5000
    rows = [",".join(map(str, [*row, target])) for row, target in zip(X, y, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(["a,b,c,d,e,f,g,h,i,price", *rows]))
    np.savez(tmp_path / "s.npz", x=X, y=y)
    words = ("--task", "regression", "--validation", "0.2", "--lr", "0.02")
    for source in (["s.csv", "--label", "last"], ["s.npz"]):
        result = succeeds("train", tmp_path / source[0], *source[1:], *words, "-o",
                          tmp_path / "m.onnx", "--report", tmp_path / "r.json", "--curve",
                          tmp_path / "c.png", *HOST)
        head, *_, last = result.stdout.splitlines()
        assert head.endswith("regression") and last.startswith("validation R^2: 0.9")
        facts = json.loads((tmp_path / "r.json").read_text())
        assert facts["accuracy"] > 0.9 and facts["classes"] is facts["right"] is None
        assert facts["settings"]["sizes"] == [9, 100, 1]
    outputs = gossamer.compile(str(tmp_path / "m.onnx"), "host")(X)
    assert np.corrcoef(outputs[:, 0], y)[0, 1] > 0.95


def test_numbers_that_the_published_training_cannot_learn(tmp_path):
    samples = tmp_path / "s.csv"
    samples.write_text("\n".join(",".join(map(str, [*row, 5 * label])) for label, row in zip(
        LABELS, X, strict=True)))
    line = fails(2, "train", samples, "--label", "last", "--task", "regression", "-o",
                 tmp_path / "m.onnx", "--published", *HOST)
    assert line.startswith("error: y has ")
    assert line.endswith("omit --published, or scale them to that range")


def test_whole_numbers_that_look_like_numbers_to_learn(tmp_path):
    samples = save_csv(tmp_path / "s.csv", np.arange(60) * 3)
    result = succeeds("train", samples, "-o", tmp_path / "m.onnx", "--epochs", "1", *HOST)
    assert result.stderr == (f"notice: {samples}: has 60 different labels in 60 samples, and "
                             "each label becomes a class; use --task regression to predict "
                             "numbers instead\n")


def test_test_samples_of_another_class(samples, model, tmp_path):
    letters = save_csv(tmp_path / "other.csv", np.array(["a", "b", "c"])[LABELS])
    line = fails(2, *train(samples, model, "--validation", letters))
    assert line == (f"error: {letters}: has the label 'a', which does not occur in {samples}")


def test_an_absent_class_keeps_its_place(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.array([0, 1, 3])[LABELS])
    result = succeeds(*train(path, model, "--json", sizes="9,6,5"))
    facts = json.loads(result.stdout)
    assert facts["classes"] == ["0", "1", "2", "3", "4"]
    assert result.stderr == (f"notice: --sizes 9,6,5: ends in 5 outputs, but {path} has samples of "
                             "3 classes; --sizes 9,6,3 has one output per class\n")
    entries = {entry.key: entry.value for entry in onnx.load(model).metadata_props}
    assert json.loads(entries["classes"]) == facts["classes"]


def test_hidden_units_in_place_of_outputs(samples, model):
    assert succeeds(*train(samples, model, sizes="9,6")).stderr == (
        f"notice: --sizes 9,6: ends in 6 outputs, but {samples} has samples of 3 classes; --sizes "
        "9,3 has one output per class, and --sizes 9,6,3 has hidden units too\n")
    assert succeeds(*train(samples, model)).stderr == ""


def test_samples_sorted_by_class_are_told_of(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.sort(LABELS), X[np.argsort(LABELS, kind="stable")])
    assert "the samples are sorted by class" in succeeds(*train(path, model)).stderr
    assert succeeds(*train(path, model, "--shuffle")).stderr == ""
