"""The rows and notices that the verb `train` shows while it trains and where it fails."""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from gossamer.cli import train_output
from gossamer.train import network, training_data
from gossamer.train.data import sources
from tests.cli.command_line import fails, gossamer_cli, script, succeeds
from tests.cli.train.small import LABELS, save_csv, train


def rows(lines):
    """Return the number of the epoch of each row."""
    first = next(index for index, line in enumerate(lines)
                 if line.split()[:2] == ["epoch", "error"])
    return [int(line.split()[0]) for line in lines[first + 1:] if line[:4].strip().isdigit()]


def test_each_epoch_is_shown_as_soon_as_it_ends(samples, model, monkeypatch):
    report, shown = train_output.EpochReporter.__call__, []

    def watched(self, progress):
        report(self, progress)
        shown.append(rows(sys.stdout.buffer.getvalue().decode().splitlines()))

    monkeypatch.setattr(train_output.EpochReporter, "__call__", watched)
    lines = succeeds(*train(samples, model, "--epochs", "25")).stdout.splitlines()
    assert shown == [list(range(1, epochs + 1)) for epochs in range(1, 26)]
    assert lines[3].split() == ["epoch", "error", "training", "accuracy", "samples/s"]
    assert lines[-1].startswith("training accuracy: ")


def test_a_terminal_gets_no_more_than_twenty_rows_at_the_end(samples, model):
    lines = on_terminal(0, *train(samples, model, "--epochs", "45"))
    assert rows(lines) == [*range(3, 45, 3), 45]


def test_a_terminal_gets_the_rows_of_what_failed(samples, model):
    """The learning rate of the third epoch is too large."""
    lines = on_terminal(1, *train(samples, model, "--activation", "relu", "--lr", "0.01",
                                  "--schedule", "step:1:1000"))
    assert rows(lines)[0] == 1 and lines[-1].startswith("error: training diverged")


@pytest.mark.parametrize("into_pipe", [False, True])
def test_rows_that_do_not_go_to_the_terminal_are_all_written(samples, model, tmp_path, into_pipe):
    """A program that reads from the pipe may write to the same terminal as the bar."""
    path = tmp_path / "rows"
    path.touch()
    read, write = os.pipe() if into_pipe else (os.open(path, os.O_RDONLY),
                                               os.open(path, os.O_WRONLY))
    shown = content_of_terminal(0, train(samples, model, "--epochs", "45"), stdout=write)
    os.close(write)
    with os.fdopen(read) as file:
        assert rows(file.read().splitlines()) == [*range(1, 46)]
    assert ("45/45" in shown) is not into_pipe


def test_a_terminal_gets_all_rows_where_it_shows_no_bar(samples, model, tmp_path):
    path = tmp_path / "stderr"
    with path.open("w") as file:
        shown = content_of_terminal(0, train(samples, model, "--epochs", "45"), stderr=file)
    assert rows(shown.splitlines()) == [*range(1, 46)]
    assert not path.read_text()


def test_a_terminal_gets_no_rows_of_what_fails_before_the_first_epoch(model, tmp_path):
    path = save_csv(tmp_path / "x.csv", LABELS, np.full((60, 9), np.nan))
    lines = on_terminal(2, *train(path, model))
    assert lines[-1].startswith(f"error: {path}")
    assert "Traceback" not in "".join(lines)


def on_terminal(code, *words):
    """Return the lines that a command shows on a terminal, without those of the bar."""
    return [line.rpartition("\x1b[2K")[2].rstrip()
            for line in content_of_terminal(code, words).splitlines()]


def content_of_terminal(code, words, stdout=None, stderr=None):
    """Return what a command writes to a terminal. stdout, stderr: the files to which its streams
    go in place of the terminal."""
    outside, inside = pty.openpty()
    command = subprocess.Popen([sys.executable, "-m", "gossamer", *map(str, words)], stdin=inside,
                               stdout=stdout or inside, stderr=stderr or inside,
                               env={**os.environ, "TERM": "xterm"})
    os.close(inside)
    content = b""
    while True:
        try:
            content += os.read(outside, 65536)
        except OSError:  # it has ended
            break
    os.close(outside)
    assert command.wait() == code
    return content.decode()


def test_a_reader_that_leaves_costs_no_network(samples, model):
    read, write = os.pipe()
    os.close(read)
    script(*train(samples, model), stdout=write)
    os.close(write)
    assert model.exists()


def test_which_samples_the_accuracy_of_an_epoch_is_taken_from(samples, model, monkeypatch):
    for module in (network, train_output):
        monkeypatch.setattr(module, "JUDGED", 50)
    assert "  training accuracy (of 50 samples)  " in succeeds(*train(samples, model)).stdout
    assert "  test accuracy  " in succeeds(
        *train(samples, model, "--validation", samples)).stdout


def test_an_output_that_cannot_be_written_leaves_the_others(samples, model, tmp_path, monkeypatch):
    replace = os.replace

    def full(source, target):
        if str(target).endswith(".png"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", full)
    picture, report = tmp_path / "c.png", tmp_path / "r.json"
    result = gossamer_cli(*train(samples, model, "--curve", picture, "--report", report))
    assert result.exit_code == 2
    assert result.stderr == f"error: {picture}: cannot be written: No space left on device\n"
    lines = result.stdout.splitlines()
    assert lines[-3:-1] == [f"written: {model}", f"written: {report}"]
    assert lines[-1].startswith("training accuracy: ")
    assert json.loads(report.read_text())["epochs_done"] == 4 and model.exists()


@pytest.mark.parametrize("columns, greatest, words, notice", [
    (64, 255, [], ""),
    (64, 256, [], "range from 0 to 256 and are not scaled, which may hinder learning; "
                  "use --standardise to standardise them, or --no-scale to silence this notice"),
    (16, 255, [], "range from 0 to 255 and are not scaled, which may hinder learning; "
                  "use --scale to map 0..255 to 0..1, or --no-scale to silence this notice"),
    (64, 256, ["--standardise"], ""), (16, 255, ["--no-scale"], ""), (16, 255, ["--scale"], ""),
    (16, 16, [], "")])
def test_numbers_that_nobody_chose_to_leave_unscaled(model, tmp_path, columns, greatest, words,
                                                     notice):
    path = save_csv(tmp_path / "x.csv", LABELS, levels(columns, greatest))
    stderr = succeeds(*train(path, model, *words, sizes=f"{columns},4,3")).stderr
    assert stderr.startswith(f"notice: {path}: its values {notice}") if notice else stderr == ""
    assert stderr.count("\n") == bool(notice)


def test_test_samples_of_another_range(model, tmp_path):
    """Test samples are prepared like those trained on, and a notice tells that they differ."""
    paths = {greatest: save_csv(tmp_path / f"{greatest}.csv", LABELS, levels(64, greatest))
             for greatest in (1, 255)}
    for trained, tested, treatment in ((255, 1, "scaled from 0..255 to 0..1"),
                                       (1, 255, "used unscaled")):
        words = train(paths[trained], model, "--validation", paths[tested], sizes="64,4,3")
        assert succeeds(*words).stderr == (
            f"notice: {paths[tested]}: its values range from 0 to {tested}, those of "
            f"{paths[trained]} from 0 to {trained}; both are {treatment}\n")
        words = train(paths[trained], model, "--validation", paths[trained], sizes="64,4,3")
        assert succeeds(*words).stderr == ""


def levels(columns, greatest):
    """Return samples with numbers from 0 to `greatest`, each equally often."""
    numbers = np.arange(60 * columns).reshape(60, columns) * 7 % 5
    return (numbers * (greatest / 4)).astype(np.float32)


def test_a_demo_that_comes_to_nothing_leaves_no_folder(samples, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "mnist", lambda: (samples, samples))
    words = ("train", "--demo", "--device", "host", "-o", tmp_path / "demo")
    assert "binarising expects values from 0 to 1" in fails(2, *words)
    assert "--pad 32: expected" in fails(2, *words, "--pad", "32")
    assert not (tmp_path / "demo").exists()
    (tmp_path / "demo").mkdir()
    fails(2, *words)
    assert (tmp_path / "demo").is_dir()


@pytest.mark.parametrize("words, there, here", [
    (["--lr", "0.5"], "--lr 1.0", "--lr 0.5"), (["--shuffle"], "--no-shuffle", "--shuffle"),
    (["--sizes", "9,5,3"], "--sizes 9,6,3", "--sizes 9,5,3"),
    (["--weight-decay", "0.1"], "--weight-decay 0.0", "--weight-decay 0.1"),
    (["--schedule", "step:2:0.5"], "--schedule constant", "--schedule step:2:0.5")])
def test_a_checkpoint_of_other_settings(samples, model, tmp_path, words, there, here):
    words = [*words, "--checkpoint", tmp_path / "c.ckpt"]
    succeeds(*train(samples, model, *words[-2:]))
    assert fails(2, *train(samples, model, *words, "--resume")) == (
        f"error: {tmp_path / 'c.ckpt'}: is the checkpoint of a network with {there}, but this one "
        f"has {here}; use {there} or another file, or omit --resume to start from scratch")


def test_a_checkpoint_of_other_samples(samples, model, tmp_path):
    words = ("--checkpoint", tmp_path / "c.ckpt")
    succeeds(*train(samples, model, *words))
    assert fails(2, *train(samples, model, *words, "--resume", "--limit", "30")).endswith(
        "or give another file, or omit --resume to start from scratch")


def test_a_network_that_the_memory_does_not_suffice_for(samples, model, monkeypatch):
    monkeypatch.setattr(training_data, "available_memory", lambda: 10_000)
    assert fails(2, *train(samples, model, sizes="9,60,3")) == (
        "error: --sizes 9,60,3: training 783 parameters needs 15660 bytes (5 copies), but 10000 "
        "bytes of memory are available; use fewer units")
