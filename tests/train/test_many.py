"""Many networks whose training is interrupted and resumed."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gossamer
import gossamer.ray
from gossamer.device.base import Device
from gossamer.errors import InputError, TrainingError
from gossamer.train import MLP, ManyResult, cross_validate, many, sweep, train_many
from gossamer.train.data.samples import samples
from gossamer.train.loop import checkpoint
from gossamer.train.loop.train_loop import TrainLoop
from tests.golden import Golden
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]


def _vector(mlp: MLP) -> np.ndarray:
    return np.concatenate([part.ravel() for part in (*mlp.coefs_, *mlp.intercepts_)])[None]


def test_each_is_trained_as_if_alone(device: Device, blobs: Blobs) -> None:
    x, labels = blobs[0][:60], blobs[1][:60]
    base = MLP.published((4, 5, 3), epochs=2, shuffle=True, device=device)
    configs = [*sweep(base, {"seed": [0, 1], "learning_rate": [0.1, 0.3]}),
               *sweep(base, {"momentum": [0.5, 0.9], "schedule": ["inverse"]}),
               MLP.published((4, 6, 4, 3), activation="tanh", epochs=2, learning_rate=0.05,
                             device=device),
               MLP.published((4, 5, 3), batch=4, weight_decay=1e-3, epochs=3, device=device),
               dict(sizes=(4, 5, 3), epochs=3, shuffle=False, device=device, learning_rate=0.2)]
    result = train_many(configs, x, labels)
    assert [row["config"] for row in result.rows] == list(range(9))
    for config, mlp, row in zip(configs, result.networks, result.rows, strict=True):
        params = config.get_params() if isinstance(config, MLP) else config
        alone = MLP(**params).fit(x, labels)
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
    train_many(sweep(base, {"sizes": [(4, 5, 3), (4, 3)], "learning_rate": [0.1, 0.2, 0.3],
                            "weight_decay": [0, 1e-4]}), *blobs)
    assert together == [6, 6]
    together.clear()
    train_many(sweep(base, {"momentum": [0.0, 0.5, 0.9]}), *blobs, folds=3)
    assert together == [3, 6]


def test_data_are_checked_once(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []

    def recorded(x: Any, y: Any, sizes: tuple[int, ...], *more: Any, **named: Any) -> Any:
        calls.append(sizes)
        return samples(x, y, sizes, *more, **named)

    monkeypatch.setattr("gossamer.train.training_data.samples", recorded)
    monkeypatch.setattr("gossamer.train.data.samples.samples", recorded)
    configs = sweep(MLP.published((4, 3), epochs=1, device="host"), {
        "sizes": [(4, 3), (4, 2, 3)], "seed": range(3)})
    train_many(configs, *blobs, validation=blobs)
    assert calls == [(4, 3), (4, 3)]


def test_a_schedule_is_asked_for_epochs_that_are_trained(blobs: Blobs) -> None:
    configs = [MLP.published((4, 3), epochs=2, device="host",
                             schedule=lambda epochs: [1.0, 0.5][epochs]),
               MLP.published((4, 3), epochs=4, device="host")]
    result = train_many(configs, *blobs)
    assert [row["epochs"] for row in result.rows] == [2, 4]
    for config, mlp in zip(configs, result.networks, strict=True):
        np.testing.assert_array_equal(_vector(mlp), _vector(MLP(**config.get_params()).fit(*blobs)))


def test_each_ends_by_itself(device: Device, blobs: Blobs) -> None:
    base = MLP.published((4, 5, 3), device=device, epochs=4)
    curve = MLP(**base.get_params()).fit(*blobs).loss_curve_
    configs = [base, MLP.published((4, 5, 3), device=device, epochs=1),
               MLP.published((4, 5, 3), device=device, epochs=4, target_error=curve[2] * 1.0001)]
    result = train_many(configs, *blobs)
    assert [row["epochs"] for row in result.rows] == [4, 1, 3]
    assert [row["state"] for row in result.rows] == ["trained", "trained", "target reached"]
    for config, mlp in zip(configs, result.networks, strict=True):
        assert normalised_error(_vector(mlp), _vector(MLP(**config.get_params()).fit(*blobs))) <= (
            tolerance("backprop"))


def test_folds_are_validated_on_what_they_leave_out(device: Device, blobs: Blobs) -> None:
    x, labels = blobs
    mlp = MLP.published((4, 6, 3), epochs=5, shuffle=True, device=device)
    result = cross_validate(mlp, x, labels, folds=7)
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
    result = cross_validate(MLP.published((2, 1), activation="relu", learning_rate=0.1,
                                          device="host"),
                            x, x[:, 0] - x[:, 1], folds=4)
    assert result.scores.min() > 0.99


def test_the_best(blobs: Blobs) -> None:
    x, labels = blobs
    configs = sweep(MLP.published((4, 6, 3), epochs=6, device="host"),
                    {"learning_rate": [1e-6, 0.3, 1e-5]})
    result = train_many(configs, x[:90], labels[:90], validation=(x[90:], labels[90:]))
    assert result.best is result.networks[1]
    assert result.best.learning_rate == 0.3
    assert result.rows[1]["validation_accuracy"] == result.best.score(x[90:], labels[90:])
    folded = train_many(configs, x, labels, folds=3)
    assert folded.scores.shape == (3, 3)
    assert folded.best is folded.networks[3 + int(np.argmax(folded.scores[1]))]
    # of equal scores the one with the smallest loss is the best
    rows = [{"config": index, "fold": None, "loss": loss, "train_accuracy": 0.5,
             "validation_accuracy": None, "is_trained": True} for index, loss in enumerate(
                 [0.3, 0.1, 0.2])]
    assert ManyResult(rows, ["a", "b", "c"]).best == "b"


def test_one_that_diverges_is_marked() -> None:
    x = np.random.default_rng(0).standard_normal((40, 1)).astype(np.float32)
    base = MLP.published((1, 1), activation="relu", epochs=4, device="host")
    configs = sweep(base, {"learning_rate": [0.1, 50.0, 0.2]})
    result = train_many(configs, x, 3 * x[:, 0])
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
        _ = train_many(configs[1:2], x, 3 * x[:, 0]).best


def test_sweeps() -> None:
    base = MLP.published((4, 3), epochs=2)
    networks = sweep(base, {"learning_rate": [0.1, 0.2], "seed": range(3)})
    assert [(network.learning_rate, network.seed) for network in networks] == [
        (0.1, 0), (0.1, 1), (0.1, 2), (0.2, 0), (0.2, 1), (0.2, 2)]
    assert all(network.epochs == 2 for network in networks)
    assert base.learning_rate == 0.3
    assert len(sweep(base, {})) == 1
    with pytest.raises(InputError, match="no parameter 'rate'"):
        sweep(base, {"rate": [1]})
    assert gossamer.train_many is train_many


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 17])
def test_shares_of_a_cluster_are_all_networks_in_order(count: int,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(configs: Any, **given: Any) -> SimpleNamespace:
        return SimpleNamespace(rows=[{"config": index} for index in range(len(configs))],
                               networks=configs)

    monkeypatch.setattr(many, "train_many", trained)
    monkeypatch.setattr(gossamer.ray, "shared_out", lambda work, shares, given, address: [
        work(share, given) for share in shares])
    result = train_many([*range(count)], None, None, ray="local")
    assert [row["config"] for row in result.rows] == result.networks == [*range(count)]


ONE = MLP.published((4, 3))
WRONG: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "none": ([], {}), "a batch of 0": ([ONE, MLP.published((4, 3), batch=0)], {}),
    "other sizes": ([ONE, MLP.published((5, 3))], {}),
    "another name": ([{"sizes": (4, 3), "rate": 1}], {}), "a tuple": ([(4, 3)], {}),
    "both": ([ONE], {"folds": 2, "validation": (1, 2)}),
    **{f"folds {folds}": ([ONE], {"folds": folds}) for folds in (1, 121, 2.5)}}


def test_wrong_configs(blobs: Blobs, golden: Golden) -> None:
    golden.refusals("training: many networks", {
        case: partial(train_many, configs, *blobs, device="host", **options)
        for case, (configs, options) in WRONG.items()})


Stop = Callable[[int], None]


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
    return [*sweep(base, {"seed": [0, 1], "learning_rate": [0.1, 0.3]}),
            MLP.published((4, 5, 3), device=device, epochs=1),
            MLP.published((4, 3), device=device, epochs=3)]


def _assert_same(actual: ManyResult, expected: ManyResult) -> None:
    assert _without_seconds(actual.rows) == _without_seconds(expected.rows)
    for network, reference in zip(actual.networks, expected.networks, strict=True):
        for y, r in zip((*network.coefs_, *network.intercepts_),
                        (*reference.coefs_, *reference.intercepts_), strict=True):
            np.testing.assert_array_equal(y, r)
        assert (network.device_, network.algorithm_) == (reference.device_, reference.algorithm_)


def _without_seconds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _stopped(*arguments: Any, **options: Any) -> tuple[ManyResult, str]:
    with pytest.raises(KeyboardInterrupt) as caught:
        train_many(*arguments, **options)
    result = caught.value.result
    assert isinstance(result, ManyResult)
    return result, "".join(traceback.format_exception_only(caught.value))


def test_what_was_trained_is_in_the_exception(device: Device, blobs: Blobs,
                                              stop_before: Stop) -> None:
    uninterrupted = train_many(_configs(device), *blobs)
    stop_before(3)
    result, error_text = _stopped(_configs(device), *blobs)
    assert error_text.endswith(
        "what was trained before is in this exception's attribute `result`\n")
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
    uninterrupted = train_many(_configs(device), *blobs)
    folder = tmp_path / "sweep"
    stop_before(stop_epoch)
    result, error_text = _stopped(_configs(device), *blobs, checkpoint=folder)
    assert f"and in {folder}: resume=True goes on from there" in error_text
    begun = [f"{row['config']}.checkpoint" for row in result.rows if row["epochs"]]
    assert sorted(path.name for path in folder.iterdir()) == begun
    stop_before(0)
    if not begun:
        with pytest.raises(InputError, match="has no checkpoint of these networks to resume from"):
            train_many(_configs(device), *blobs, checkpoint=folder, resume=True)
        return
    _assert_same(train_many(_configs(device), *blobs, checkpoint=str(folder), resume=True),
                 uninterrupted)
    # once more, where the folder has the checkpoints of all networks
    _assert_same(train_many(_configs(device), *blobs, checkpoint=folder, resume=True),
                 uninterrupted)


def test_stopped_again_before_it_went_on(blobs: Blobs, tmp_path: Path, stop_before: Stop,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    base = MLP.published((4, 5, 3), device="host", epochs=4)
    stop_before(3)
    first, _ = _stopped([base], *blobs, checkpoint=tmp_path / "c")
    stop_before(1)
    monkeypatch.setattr(TrainLoop, "__init__", _interrupted)
    second, _ = _stopped([base], *blobs, checkpoint=tmp_path / "c", resume=True)
    assert second.rows[0]["state"] == "stopped after epoch 2"
    np.testing.assert_array_equal(second.networks[0].predict(blobs[0]),
                                  first.networks[0].predict(blobs[0]))


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_folds_go_on(blobs: Blobs, tmp_path: Path, stop_before: Stop) -> None:
    mlp = MLP.published((4, 5, 3), device="host", epochs=3, shuffle=True)
    uninterrupted = cross_validate(mlp, *blobs, folds=3)
    stop_before(3)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"0-fold{fold}.checkpoint" for fold in range(3)]
    stop_before(0)
    _assert_same(cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path, resume=True),
                 uninterrupted)
    with pytest.raises(InputError, match=r"0-fold0\.checkpoint: .* training on other data"):
        cross_validate(mlp, blobs[0][:90], blobs[1][:90], 3, checkpoint=tmp_path, resume=True)
    (tmp_path / "0-fold0.checkpoint").replace(tmp_path / "0-fold1.checkpoint")
    with pytest.raises(InputError, match=r"0-fold1\.checkpoint: .* training on other data"):
        cross_validate(mlp, *blobs, folds=3, checkpoint=tmp_path, resume=True)


def test_wrong_folders(blobs: Blobs, tmp_path: Path, golden: Golden) -> None:
    configs = [MLP.published((4, 3), epochs=1, device="host")]
    train_many(configs, *blobs, checkpoint=tmp_path / "c")
    (tmp_path / "file").touch()
    golden.refusals("training: folders of checkpoints", {
        case: lambda of=of, options=options: train_many(of, *blobs, **options)
        for case, of, options in (
            ("no folder", configs, {"resume": True}),
            ("absent", configs, {"checkpoint": tmp_path / "absent", "resume": True}),
            ("a file", configs, {"checkpoint": tmp_path / "file"}),
            ("in no folder", configs, {"checkpoint": tmp_path / "a" / "b"}),
            ("another network", sweep(configs[0], {"learning_rate": [0.1]}),
             {"checkpoint": tmp_path / "c", "resume": True}))}, tmp_path)
