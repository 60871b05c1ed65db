"""The option --sweep of the verb `train`."""

import csv
import json

import pytest

from gossamer.cli import train_sweep
from gossamer.train.sweep import SweepResult
from tests.cli.command_line import fails, gossamer_cli, succeeds

GRID = '{"hidden": [5, [4, 4]], "learning_rate": [1e-6, 0.05]}'


def _words(samples, model, *more):
    return ("train", samples, "-o", model, "--device", "host", "--epochs", "4", "--no-scale", *more)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_the_best_is_trained_and_all_are_in_the_table(samples, model, tmp_path, suffix):
    table = tmp_path / f"table{suffix}"
    result = succeeds(*_words(samples, model, "--sweep", GRID, "--folds", "3", "--table", table))
    line = next(line for line in result.stdout.splitlines() if line.startswith("sweep: "))
    assert line.startswith("sweep: 4 settings; best: hidden ")
    assert "learning_rate 0.05 (accuracy" in line and "mean of 3 folds" in line
    assert line.endswith(f"; written: {table}")
    assert "learning rate 0.05" in result.stdout and model.exists()
    if suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(table).to_pylist()
    elif suffix == ".jsonl":
        rows = list(map(json.loads, table.read_text().splitlines()))
    else:
        rows = list(csv.DictReader(table.open()))
    assert [str(row["param_hidden"]) for row in rows] == ["5"] * 6 + ["[4, 4]"] * 6
    assert {float(row["param_learning_rate"]) for row in rows} == {1e-6, 0.05}


def test_samples_to_validate_on_score_the_settings(samples, model, tmp_path):
    grid = tmp_path / "grid.json"
    grid.write_text('[{"seed": [1, 2]}, {"optimiser": ["sgd"], "momentum": [0.5]}]')
    result = succeeds(*_words(samples, model, "--sweep", grid, "--validation", "0.2",
                              "--halving", "2"))
    assert "sweep: 3 settings; best: " in result.stdout and "folds" not in result.stdout


def test_a_sweep_that_is_interrupted_goes_on(samples, model, tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        error = KeyboardInterrupt()
        error.result = SweepResult([{"is_trained": True}, {"is_trained": False}], [])
        raise error

    words = _words(samples, model, "--sweep", GRID, "--checkpoint", tmp_path / "c",
                   "--table", tmp_path / "t.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(train_sweep, "sweep", interrupted)
        result = gossamer_cli(*words)
    assert result.exit_code == 130
    assert result.stderr == (f"error: interrupted after 1 of 2 networks of the sweep; "
                             f"{tmp_path / 'c'}.sweep keeps them for --resume\n")
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 2
    succeeds(*words, "--resume")
    assert len([*(tmp_path / "c.sweep").glob("*.checkpoint")]) == 20
    (tmp_path / "c").unlink()
    assert "already has checkpoints; give --resume" in fails(2, *words)
    succeeds(*words, "--resume")


def test_wrong_sweeps(samples, model, golden, tmp_path):
    golden.table("errors.txt", "train: sweeps", {
        case: fails(2, *_words(samples, model, *more)).replace(f"{tmp_path}/", "")
        for case, more in {
            "no grid": ("--folds", "3"), "no JSON": ("--sweep", "hidden=5"),
            "no file": ("--sweep", tmp_path / "absent.json"), "a number": ("--sweep", "3"),
            "an unknown name": ("--sweep", '{"hiden": [5]}'),
            "no values": ("--sweep", '{"hidden": []}'),
            "two scores": ("--sweep", GRID, "--folds", "3", "--validation", "0.2"),
            "a table of no kind": ("--sweep", GRID, "--table", tmp_path / "t.txt")}.items()})
