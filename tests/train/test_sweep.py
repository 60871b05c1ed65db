"""Sweeps: grids, folds, halving, processes, and trainings that are interrupted and resumed."""

from __future__ import annotations

import ast
import itertools
import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gossamer
import gossamer.ray
from gossamer.device.base import Device
from gossamer.errors import InputError, TrainingError
from gossamer.io.process_pool import ProcessPool
from gossamer.train import MLP
from gossamer.train.data.samples import samples
from gossamer.train.loop import checkpoint
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.sweep import SweepResult, sweep
from tests.golden import Golden
from tests.processes import until
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]
Stop = Callable[[int], None]


def _all(base: MLP, grid: Mapping[str, Sequence[Any]]) -> list[MLP]:
    """Return an MLP for each combination of a grid."""
    return [MLP(**{**base.get_params(), **dict(zip(grid, values, strict=True))})
            for values in itertools.product(*grid.values())]


def _vector(mlp: MLP) -> np.ndarray:
    return np.concatenate([part.ravel() for part in (*mlp.coefs_, *mlp.intercepts_)])[None]


def test_each_is_trained_as_if_alone(device: Device, blobs: Blobs) -> None:
    x, labels = blobs[0][:60], blobs[1][:60]
    base = MLP.published((4, 5, 3), epochs=2, shuffle=True, device=device)
    configs = [*_all(base, {"seed": [0, 1], "learning_rate": [0.1, 0.3]}),
               *_all(base, {"momentum": [0.5, 0.9], "schedule": ["inverse"]}),
               MLP.published((4, 6, 4, 3), activation="tanh", epochs=2, learning_rate=0.05,
                             device=device),
               MLP.published((4, 5, 3), batch=4, weight_decay=1e-3, epochs=3, device=device),
               MLP((4, 5, 3), epochs=3, shuffle=False, device=device, learning_rate=0.2)]
    result = sweep(configs, {}, x, labels)
    assert [row["config"] for row in result.rows] == list(range(9))
    for config, mlp, row in zip(configs, result.networks, result.rows, strict=True):
        alone = MLP(**config.get_params()).fit(x, labels)
        assert mlp.get_params() == alone.get_params()
        assert mlp.n_iter_ == row["epochs"] == alone.n_iter_
        assert normalised_error(_vector(mlp), _vector(alone)) <= tolerance("backprop")
        np.testing.assert_allclose(mlp.loss_curve_, alone.loss_curve_, rtol=1e-5)
        assert row["loss"] == mlp.loss_curve_[-1]
        assert row["train_accuracy"] == mlp.score(x, labels)
        assert row["validation_accuracy"] is None
        assert row["state"] == "trained"
        assert row["seconds"] > 0
        assert mlp.device_ == device.name
    # the configs stay as they were
    assert not hasattr(configs[0], "coefs_")


def test_alike_networks_share_launches(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    together = []

    def recorded(self: TrainLoop, *arguments: Any) -> None:
        together.append(len(arguments[0]))
        original(self, *arguments)

    original = TrainLoop.__init__
    monkeypatch.setattr(TrainLoop, "__init__", recorded)
    base = MLP.published((4, 5, 3), epochs=1, device="host")
    sweep(base, {"sizes": [(4, 5, 3), (4, 3)], "learning_rate": [0.1, 0.2, 0.3],
                 "weight_decay": [0, 1e-4]}, *blobs)
    assert together == [6, 6]
    together.clear()
    sweep(base, {"momentum": [0.0, 0.5, 0.9]}, *blobs, folds=3)
    assert together == [3, 6]


def test_data_are_checked_once(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def recorded(x: Any, y: Any, sizes: tuple[int, ...], *more: Any, **named: Any) -> Any:
        calls.append(sizes)
        return samples(x, y, sizes, *more, **named)

    monkeypatch.setattr("gossamer.train.training_data.samples", recorded)
    monkeypatch.setattr("gossamer.train.data.samples.samples", recorded)
    sweep(MLP.published((4, 3), epochs=1, device="host"), {
        "sizes": [(4, 3), (4, 2, 3)], "seed": range(3)}, *blobs, validation=blobs)
    assert calls == [(4, 3), (4, 3)]


def test_a_schedule_is_asked_for_epochs_that_are_trained(blobs: Blobs) -> None:
    configs = [MLP.published((4, 3), epochs=2, device="host",
                             schedule=lambda epochs: [1.0, 0.5][epochs]),
               MLP.published((4, 3), epochs=4, device="host")]
    result = sweep(configs, {}, *blobs)
    assert [row["epochs"] for row in result.rows] == [2, 4]
    for config, mlp in zip(configs, result.networks, strict=True):
        np.testing.assert_array_equal(_vector(mlp), _vector(MLP(**config.get_params()).fit(*blobs)))


def test_each_ends_by_itself(device: Device, blobs: Blobs) -> None:
    base = MLP.published((4, 5, 3), device=device, epochs=4)
    curve = MLP(**base.get_params()).fit(*blobs).loss_curve_
    configs = [base, MLP.published((4, 5, 3), device=device, epochs=1),
               MLP.published((4, 5, 3), device=device, epochs=4, target_error=curve[2] * 1.0001)]
    result = sweep(configs, {}, *blobs)
    assert [row["epochs"] for row in result.rows] == [4, 1, 3]
    assert [row["state"] for row in result.rows] == ["trained", "trained", "target reached"]
    for config, mlp in zip(configs, result.networks, strict=True):
        assert normalised_error(_vector(mlp), _vector(MLP(**config.get_params()).fit(*blobs))) <= (
            tolerance("backprop"))


def test_folds_are_validated_on_what_they_leave_out(device: Device, blobs: Blobs) -> None:
    x, labels = blobs
    mlp = MLP.published((4, 6, 3), epochs=5, shuffle=True, device=device)
    result = sweep(mlp, {}, x, labels, folds=7)
    assert [row["fold"] for row in result.rows] == list(range(7))
    assert result.scores.shape == (1, 7)
    assert result.scores.mean() >= 0.6
    assert result.scores.tolist() == [[row["validation_accuracy"] for row in result.rows]]
    # by hand: the rows of every class are distributed over the folds in turns
    part = np.empty(120, int)
    part[np.argsort(labels, kind="stable")] = np.arange(120) % 7
    for fold in (0, 6):
        network = result.networks[fold]
        alone = MLP(**mlp.get_params()).fit(x[part != fold], labels[part != fold])
        assert normalised_error(_vector(network), _vector(alone)) <= tolerance("backprop")
        assert result.scores[0, fold] == network.score(x[part == fold], labels[part == fold])


def test_folds_of_numbers() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (31, 2))
    result = sweep(MLP.published((2, 1), activation="relu", learning_rate=0.1, device="host"), {},
                   x, x[:, 0] - x[:, 1], folds=4)
    assert result.scores.min() > 0.99


def test_the_best(blobs: Blobs) -> None:
    x, labels = blobs
    base, grid = MLP.published((4, 6, 3), epochs=6, device="host"), {
        "learning_rate": [1e-6, 0.3, 1e-5]}
    result = sweep(base, grid, x[:90], labels[:90], validation=(x[90:], labels[90:]))
    assert result.best_config == 1
    assert result.best is result.networks[1]
    assert result.best.learning_rate == 0.3
    assert result.rows[1]["validation_accuracy"] == result.best.score(x[90:], labels[90:])
    folded = sweep(base, grid, x, labels, folds=3)
    assert folded.scores.shape == (3, 3)
    assert folded.best is folded.networks[3 + int(np.argmax(folded.scores[1]))]
    # of equal scores the one with the smallest loss is the best
    rows = [{"config": index, "fold": None, "loss": loss, "score": 0.5, "round": 0}
            for index, loss in enumerate([0.3, 0.1, 0.2])]
    assert SweepResult(rows, ["a", "b", "c"]).best == "b"


def test_one_that_diverges_is_marked() -> None:
    x = np.random.default_rng(0).standard_normal((40, 1)).astype(np.float32)
    base = MLP.published((1, 1), activation="relu", epochs=4, device="host")
    configs = _all(base, {"learning_rate": [0.1, 50.0, 0.2]})
    result = sweep(configs, {}, x, 3 * x[:, 0])
    assert [row["state"][:8] for row in result.rows] == ["trained", "diverged", "trained"]
    assert result.rows[1]["state"].startswith("diverged in epoch 1 at sample ")
    assert [row["epochs"] for row in result.rows] == [4, 0, 4]
    assert math.isnan(result.scores[1, 0])
    assert result.best is result.networks[2]
    assert np.isfinite(_vector(result.networks[1])).all()
    for index in (0, 2):
        np.testing.assert_array_equal(
            _vector(result.networks[index]),
            _vector(MLP(**configs[index].get_params()).fit(x, 3 * x[:, 0])))
    with pytest.raises(TrainingError, match=r"no best config: .*: diverged in epoch"):
        _ = sweep(configs[1:2], {}, x, 3 * x[:, 0]).best


def test_grids(blobs: Blobs) -> None:
    base = MLP.published((4, 3), epochs=2, device="host")
    result = sweep(base, {"learning_rate": np.array([0.1, 0.2]), "seed": range(3)}, *blobs)
    assert [(mlp.learning_rate, mlp.seed) for mlp in result.networks] == [
        (0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1), (0.2, 2)]
    assert all(network.epochs == 2 for network in result.networks)
    assert base.learning_rate == 0.3 and not hasattr(base, "coefs_")
    assert [row["param_seed"] for row in result.rows] == [0, 1, 2] * 2
    several = sweep(base, [{"seed": [1, 2]}, {"learning_rate": [0.5]}], *blobs).rows
    assert [(row["param_seed"], row["param_learning_rate"]) for row in several] == [
        (1, 0.3), (2, 0.3), (0, 0.5)]
    bases = [base, MLP.published((4, 2, 3), epochs=1, device="host")]
    rows = sweep(bases, {"momentum": [0, 0.5]}, *blobs).rows
    assert [(row["param_sizes"], row["param_epochs"], row["param_momentum"]) for row in rows] == [
        ((4, 3), 2, 0), ((4, 3), 2, 0.5), ((4, 2, 3), 1, 0), ((4, 2, 3), 1, 0.5)]
    assert len(sweep(base, {}, *blobs).rows) == 1
    assert gossamer.sweep is sweep


def test_a_table_of_pandas(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    result = sweep(MLP((4, 3), epochs=1, device="host"), {"seed": [0, 1]}, *blobs)
    pandas = pytest.importorskip("pandas")
    table = result.table()
    assert isinstance(table, pandas.DataFrame)
    assert table["param_seed"].tolist() == [0, 1] and table["score"].tolist() == [
        row["train_accuracy"] for row in result.rows]
    monkeypatch.setattr("gossamer.train.sweep.find_spec", lambda name: None)
    assert result.table() is result.rows


def test_samples_of_any_number(blobs: Blobs) -> None:
    """One sample, batches larger than the data, and layers of one unit and of many."""
    x = blobs[0]
    result = sweep(MLP(epochs=2, task="regression", device="host"), {
        "hidden": [1, 4096], "batch": [1, 1000]}, x[:1], x[:1, 0])
    assert [row["state"] for row in result.rows] == ["trained"] * 4
    assert np.isfinite([row["loss"] for row in result.rows]).all()


GRID_BASE = {"epochs": 9, "sizes": (4, 5, 3), "shuffle": True}


def test_halving_stops_the_worst(device: Device, blobs: Blobs, tmp_path: Path) -> None:
    """Of nine configs, three go on after an epoch, and one after three epochs."""
    base = MLP.published(device=device, **GRID_BASE)
    grid = {"learning_rate": [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.2, 0.3, 0.4]}
    result = sweep(base, grid, *blobs, folds=2, halving=3)
    assert sorted(row["epochs"] for row in result.rows) == [1] * 12 + [3] * 4 + [9] * 2
    assert sorted(row["round"] for row in result.rows) == [0] * 12 + [1] * 4 + [2] * 2
    early = sweep(MLP.published(device=device, **{**GRID_BASE, "epochs": 1}), grid, *blobs, folds=2)
    losses = np.reshape([row["loss"] for row in early.rows], (9, 2)).mean(axis=1)
    order = sorted(range(9), key=lambda config: (-early.scores[config].mean(), losses[config]))
    assert {row["config"] for row in result.rows if row["round"]} == {*order[:3]}
    assert result.rows[0]["state"] == "stopped by halving after epoch 1"
    assert np.isfinite(result.scores).all()
    whole = MLP(**{**base.get_params(), "learning_rate": grid["learning_rate"][result.best_config]})
    alone = sweep(whole, {}, *blobs, folds=2)
    assert result.rows[2 * result.best_config]["state"] == "trained"
    for fold in range(2):
        np.testing.assert_array_equal(
            _vector(result.networks[2 * result.best_config + fold]), _vector(alone.networks[fold]))
    _assert_same(sweep(base, grid, *blobs, folds=2, halving=3, checkpoint=tmp_path / "c"), result)
    _assert_same(sweep(base, grid, *blobs, folds=2, halving=3, checkpoint=tmp_path / "c",
                       resume=True), result)


@pytest.mark.parametrize("stop_epoch", [2, 3, 6, 9])
def test_halving_goes_on_to_the_same_bits(blobs: Blobs, tmp_path: Path, stop_before: Stop,
                                          stop_epoch: int) -> None:
    base = MLP.published(device="host", **GRID_BASE)
    grid = {"learning_rate": [1e-4, 1e-3, 0.1, 0.2], "seed": [0, 1]}
    uninterrupted = sweep(base, grid, *blobs, halving=2)
    stop_before(stop_epoch)
    _stopped(base, grid, *blobs, halving=2, checkpoint=tmp_path / "c")
    stop_before(0)
    _assert_same(sweep(base, grid, *blobs, halving=2, checkpoint=tmp_path / "c", resume=True),
                 uninterrupted)
    with pytest.raises(InputError, match=r"rounds\.json: has the rounds of a different sweep"):
        sweep(base, grid, *blobs, halving=3, checkpoint=tmp_path / "c", resume=True)


def test_halving_with_one_config_or_epoch_halves_nothing(blobs: Blobs) -> None:
    base = MLP.published((4, 3), epochs=1, device="host")
    assert [row["state"] for row in sweep(base, {"seed": range(4)}, *blobs, halving=2).rows] == [
        "trained"] * 4
    base.epochs = 4
    assert sweep(base, {}, *blobs, halving=2).rows[0]["epochs"] == 4


def _of_processes(folder: Path | None = None, **options: Any) -> SweepResult:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 30)).astype(np.float32)
    return sweep(MLP(epochs=6, patience=None, device="host"), {
        "hidden": [3, (20, 10)], "seed": [0, 1, 2], "standardise": [False, True],
        "optimiser": ["adam", "sgd"]}, x, (x[:, 0] > 0).astype(int), folds=2, checkpoint=folder,
        **options)


def test_processes_train_the_same_bits(tmp_path: Path) -> None:
    alone = _of_processes(processes=1)
    _assert_same(_of_processes(processes=3), alone)
    _assert_same(_of_processes(tmp_path / "c", processes=2, halving=3), _of_processes(halving=3))
    assert len([*(tmp_path / "c").glob("*.checkpoint")]) == len(alone.rows)


def test_a_schedule_that_no_process_can_import(blobs: Blobs) -> None:
    result = sweep(MLP((4, 3), epochs=2, device="host", schedule=lambda epochs: 1.0),
                   {"seed": range(6)}, *blobs, processes=2)
    assert [row["state"] for row in result.rows] == ["trained"] * 6


def test_ctrl_c_leaves_no_process_and_finished_rows_stay(tmp_path: Path) -> None:
    """The program has no guard for __main__, and is not run by the processes again."""
    (tmp_path / "program.py").write_text(
        "import numpy as np\nfrom gossamer import MLP, sweep\nprint('begun', flush=True)\n"
        "x = np.random.default_rng(0).standard_normal((2000, 20)).astype('float32')\n"
        "try:\n"
        "    sweep(MLP(device='host', patience=None), {'epochs': [1, 2, 5, 100000, 100001],\n"
        "          'seed': [0, 1]}, x, x[:, 0], processes=2, checkpoint='kept')\n"
        "except KeyboardInterrupt as error:\n"
        "    print([row['state'] for row in error.result.rows])\n")
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        until(lambda: len([*tmp_path.glob("kept/*.checkpoint")]) >= 8)
        children = [child for file in Path(f"/proc/{process.pid}/task").glob("*/children")
                    for child in file.read_text().split()]
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=60)[0]
    states = ast.literal_eval(printed)
    assert states[:6] == ["trained"] * 6 and "trained" not in states[6:]
    assert len(children) == 1
    until(lambda: not Path(f"/proc/{children[0]}").exists())


def test_a_process_that_is_killed_is_replaced(monkeypatch: pytest.MonkeyPatch,
                                              tmp_path: Path) -> None:
    expected = _of_processes(processes=1)
    submit = ProcessPool.submit

    def killing(self: ProcessPool, *arguments: Any, what: str) -> Future[Any]:
        if not marker.exists():
            marker.touch()
            submit(self, os.kill, 0, signal.SIGKILL, what="is killed")
        return submit(self, *arguments, what=what)

    marker = tmp_path / "killed"
    monkeypatch.setattr(ProcessPool, "submit", killing)
    _assert_same(_of_processes(processes=2), expected)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_a_cluster_trains_all_networks_in_order(count: int, blobs: Blobs,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []

    def shared_out(work: Any, jobs: Any, shared: Any, address: str | None) -> Any:
        pieces.extend(map(len, jobs))
        return [work(pickle.loads(pickle.dumps(job)), pickle.loads(pickle.dumps(shared)))
                for job in jobs]

    monkeypatch.setattr(gossamer.ray, "shared_out", shared_out)
    base, grid = MLP.published((4, 3), epochs=1, device="host"), {"seed": range(count)}
    _assert_same(sweep(base, grid, *blobs, ray="local"), sweep(base, grid, *blobs))
    assert sum(pieces) == count and max(pieces) <= 8


ONE = MLP.published((4, 3))
WRONG: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "no base": ([], {}, {}), "no grid": (ONE, [], {}), "no values": (ONE, {"seed": []}, {}),
    "a batch of 0": ([ONE, MLP.published((4, 3), batch=0)], {}, {}),
    "other sizes": ([ONE, MLP.published((5, 3))], {}, {}),
    "a name of no parameter": (ONE, {"learning_rat": [1]}, {}), "a tuple": ([(4, 3)], {}, {}),
    "a text": (ONE, {"activation": "relu"}, {}), "a number": (ONE, {"seed": 1}, {}),
    "a list in a list": (ONE, [["seed"]], {}),
    "a name of scikit-learn": (ONE, {"max_iter": [1]}, {}),
    "too many": (ONE, {name: range(1000) for name in ("seed", "epochs", "batch")}, {}),
    "a name that is no text": (ONE, {3: [1]}, {}),
    "both": (ONE, {}, {"folds": 2, "validation": (1, 2)}),
    **{f"folds {folds}": (ONE, {}, {"folds": folds}) for folds in (1, 121, 2.5)},
    **{f"halving {halving}": (ONE, {}, {"halving": halving}) for halving in (1, 2.5)},
    "no process": (ONE, {}, {"processes": 0})}


def test_wrong_grids(blobs: Blobs, golden: Golden) -> None:
    golden.refusals("training: sweeps", {
        case: partial(sweep, base, grid, *blobs, device="host", **options)
        for case, (base, grid, options) in WRONG.items()})


def test_wrong_samples(blobs: Blobs, golden: Golden) -> None:
    x, y = blobs
    spoilt = {name: np.where(np.arange(480).reshape(120, 4) == 5, value, x)
              for name, value in (("NaN", math.nan), ("infinity", math.inf))}
    golden.refusals("training: samples of sweeps", {
        **{case: partial(sweep, MLP(device="host"), {}, wrong, y)
           for case, wrong in spoilt.items()},
        "one class": partial(sweep, MLP(device="host"), {}, x, np.ones(120, int)),
        "no sample": partial(sweep, MLP(device="host"), {}, x[:0], y[:0])})


def test_too_many_networks_for_the_memory(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.train.training_data.available_memory", lambda: 10**8)
    grid = {"hidden": [3, (100, 100)], "seed": range(5000)}
    with pytest.raises(InputError, match=r"training 10000 networks with up to 32710 parameters "
                                         r"takes \d+ bytes, \d+ of them for the samples, but "
                                         r"100000000 bytes of memory are available"):
        sweep(MLP(device="host"), grid, *blobs)



@pytest.fixture
def stop_before(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """Return a function that raises Ctrl-C before the n-th epoch of all that are trained, or never
    for n = 0."""
    step = TrainLoop.step
    epochs_begun = 0

    def stopped(self: TrainLoop) -> float:
        nonlocal epochs_begun
        epochs_begun += 1
        if epochs_begun == stop_epoch:
            raise KeyboardInterrupt
        return step(self)

    stop_epoch = 0

    def stop(epoch: int) -> None:
        nonlocal stop_epoch, epochs_begun
        stop_epoch, epochs_begun = epoch, 0

    monkeypatch.setattr(TrainLoop, "step", stopped)
    monkeypatch.setattr(checkpoint.Throttle, "due", True)
    return stop


def _configs(device: Device) -> list[MLP]:
    """Return configs of two groups: five networks, of which one ends after an epoch, and one."""
    base = MLP.published((4, 5, 3), device=device, epochs=4, shuffle=True)
    return [*_all(base, {"seed": [0, 1], "learning_rate": [0.1, 0.3]}),
            MLP.published((4, 5, 3), device=device, epochs=1),
            MLP.published((4, 3), device=device, epochs=3)]


def _assert_same(actual: SweepResult, expected: SweepResult) -> None:
    assert _without_seconds(actual.rows) == _without_seconds(expected.rows)
    for network, reference in zip(actual.networks, expected.networks, strict=True):
        for y, r in zip((*network.coefs_, *network.intercepts_),
                        (*reference.coefs_, *reference.intercepts_), strict=True):
            np.testing.assert_array_equal(y, r)
        assert (network.device_, network.algorithm_) == (reference.device_, reference.algorithm_)


def _without_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _stopped(*arguments: Any, **options: Any) -> tuple[SweepResult, str]:
    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(*arguments, **options)
    result = caught.value.result
    assert isinstance(result, SweepResult)
    return result, "".join(traceback.format_exception_only(caught.value))


def test_what_was_trained_is_in_the_exception(device: Device, blobs: Blobs,
                                              stop_before: Stop) -> None:
    uninterrupted = sweep(_configs(device), {}, *blobs)
    stop_before(3)
    result, error_text = _stopped(_configs(device), {}, *blobs)
    assert error_text.endswith(
        "the networks trained so far are in this exception's attribute `result`\n")
    assert [row["state"] for row in result.rows] == [
        *["stopped after epoch 2"] * 4, "trained", "not begun"]
    assert [row["epochs"] for row in result.rows] == [2, 2, 2, 2, 1, 0]
    assert np.isfinite(result.scores[:5]).all() and np.isnan(result.scores[5, 0])
    assert result.rows[5]["train_accuracy"] is None
    np.testing.assert_array_equal(result.networks[4].coefs_[0],
                                  uninterrupted.networks[4].coefs_[0])
    assert result.networks[0].loss_curve_ == uninterrupted.networks[0].loss_curve_[:2]
    assert result.best in result.networks[:5]
    with pytest.raises(InputError, match="not trained yet"):
        result.networks[5].predict(blobs[0])


@pytest.mark.parametrize("stop_epoch", [1, 2, 4, 5, 6, 7])
def test_it_goes_on_to_the_same_bits(device: Device, blobs: Blobs, tmp_path: Path,
                                     stop_before: Stop, stop_epoch: int) -> None:
    uninterrupted = sweep(_configs(device), {}, *blobs)
    folder = tmp_path / "sweep"
    stop_before(stop_epoch)
    result, error_text = _stopped(_configs(device), {}, *blobs, checkpoint=folder)
    assert f"and in {folder}: resume=True continues from there" in error_text
    begun = [f"{row['config']}.checkpoint" for row in result.rows if row["epochs"]]
    assert sorted(path.name for path in folder.iterdir()) == begun
    stop_before(0)
    if not begun:
        with pytest.raises(InputError, match="has no checkpoint of these networks to resume from"):
            sweep(_configs(device), {}, *blobs, checkpoint=folder, resume=True)
        return
    _assert_same(sweep(_configs(device), {}, *blobs, checkpoint=str(folder), resume=True),
                 uninterrupted)
    # once more, where the folder has the checkpoints of all networks
    _assert_same(sweep(_configs(device), {}, *blobs, checkpoint=folder, resume=True),
                 uninterrupted)


def test_stopped_again_before_it_went_on(blobs: Blobs, tmp_path: Path, stop_before: Stop,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    base = MLP.published((4, 5, 3), device="host", epochs=4)
    stop_before(3)
    first, _ = _stopped([base], {}, *blobs, checkpoint=tmp_path / "c")
    stop_before(1)
    monkeypatch.setattr(TrainLoop, "__init__", Mock(side_effect=KeyboardInterrupt))
    second, _ = _stopped([base], {}, *blobs, checkpoint=tmp_path / "c", resume=True)
    assert second.rows[0]["state"] == "stopped after epoch 2"
    np.testing.assert_array_equal(second.networks[0].predict(blobs[0]),
                                  first.networks[0].predict(blobs[0]))


def test_folds_go_on(blobs: Blobs, tmp_path: Path, stop_before: Stop) -> None:
    mlp = MLP.published((4, 5, 3), device="host", epochs=3, shuffle=True)
    uninterrupted = sweep(mlp, {}, *blobs, folds=3)
    stop_before(3)
    with pytest.raises(KeyboardInterrupt):
        sweep(mlp, {}, *blobs, folds=3, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"0-fold{fold}.checkpoint" for fold in range(3)]
    stop_before(0)
    _assert_same(sweep(mlp, {}, *blobs, folds=3, checkpoint=tmp_path, resume=True),
                 uninterrupted)
    with pytest.raises(InputError, match=r"0-fold0\.checkpoint: .* training on other data"):
        sweep(mlp, {}, blobs[0][:90], blobs[1][:90], folds=3, checkpoint=tmp_path, resume=True)
    (tmp_path / "0-fold0.checkpoint").replace(tmp_path / "0-fold1.checkpoint")
    with pytest.raises(InputError, match=r"0-fold1\.checkpoint: .* training on other data"):
        sweep(mlp, {}, *blobs, folds=3, checkpoint=tmp_path, resume=True)


def test_wrong_folders(blobs: Blobs, tmp_path: Path, golden: Golden) -> None:
    configs = [MLP.published((4, 3), epochs=1, device="host")]
    sweep(configs, {}, *blobs, checkpoint=tmp_path / "c")
    (tmp_path / "file").touch()
    golden.refusals("training: folders of checkpoints", {
        case: lambda of=of, options=options: sweep(of, {}, *blobs, **options)
        for case, of, options in (
            ("no folder", configs, {"resume": True}),
            ("absent", configs, {"checkpoint": tmp_path / "absent", "resume": True}),
            ("a file", configs, {"checkpoint": tmp_path / "file"}),
            ("in no folder", configs, {"checkpoint": tmp_path / "a" / "b"}),
            ("without resume", configs, {"checkpoint": tmp_path / "c"}),
            ("another network", _all(configs[0], {"learning_rate": [0.1]}),
             {"checkpoint": tmp_path / "c", "resume": True}))}, tmp_path)
