"""Defaults of an MLP: sizes, losses, the best epoch, scaling and weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.train import MLP, Preparation
from gossamer.train.data import sources
from gossamer.train.data.dataset import prepared
from gossamer.train.sweep import sweep
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]


def _vector(mlp: MLP) -> np.ndarray:
    return np.concatenate([part.ravel() for part in (*mlp.coefs_, *mlp.intercepts_)])[None]


def _same(first: MLP, second: MLP) -> bool:
    return np.array_equal(_vector(first), _vector(second))


def _noisy(blobs: Blobs) -> tuple[Blobs, Blobs]:
    """Return samples to train on, of which some have a wrong label, and right ones to validate
    on."""
    x, labels = blobs
    wrong = labels[:80].copy()
    wrong[::4] = (wrong[::4] + 1) % 3
    return (x[:80], wrong), (x[80:], labels[80:])


def test_the_data_say_the_sizes(blobs: Blobs) -> None:
    x, labels = blobs
    assert [weight.shape for weight in MLP(epochs=1, device="host").fit(x, labels).coefs_] == [
        (4, 100), (100, 3)]
    one = [MLP(hidden=hidden, epochs=1, device="host").fit(x, labels) for hidden in (
        7, np.int64(7), [7])]
    assert {tuple(array.shape for array in mlp.coefs_) for mlp in one} == {((4, 7), (7, 3))}
    mlp = MLP(hidden=(7, 5), epochs=1, device="host").fit(x, np.array(["a", "b", "c"])[labels])
    assert [weight.shape for weight in mlp.coefs_] == [(4, 7), (7, 5), (5, 3)]
    assert mlp.classes_.tolist() == ["a", "b", "c"]
    numbers = MLP(hidden=(), epochs=1, device="host").fit(x, np.stack([x[:, 0]] * 2, axis=1))
    assert [weight.shape for weight in numbers.coefs_] == [(4, 2)]
    with pytest.raises(InputError, match="only one class, the label 1 in all 5 rows: expected"):
        MLP(device="host").fit(x[:5], np.ones(5, int))


def test_defaults_train_alike_on_every_device(device: Device, blobs: Blobs) -> None:
    settings: dict[str, Any] = dict(hidden=(6,), epochs=5, batch=16, learning_rate=0.01)
    on_device = MLP(device=device, **settings).fit(*blobs)
    on_host = MLP(device="host", **settings).fit(*blobs)
    assert on_device.device_ == device.name
    assert normalised_error(_vector(on_device), _vector(on_host)) <= tolerance("backprop")


def test_defaults_learn(blobs: Blobs) -> None:
    assert MLP(device="host").fit(*blobs).score(*blobs) > 0.98


def test_patience_without_validation(blobs: Blobs) -> None:
    mlp = MLP((4, 3), epochs=1000, patience=3, learning_rate=0.05, device="host").fit(*blobs)
    losses, last = mlp.loss_curve_, mlp.n_iter_
    assert last < 1000 and mlp.kept_epoch_ == last
    assert min(losses[-3:]) > min(losses[:-3]) - 1e-4
    longer = MLP((4, 3), epochs=last + 5, patience=None, learning_rate=0.05, device="host")
    assert longer.fit(*blobs).n_iter_ == last + 5


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_best_epoch_is_kept(blobs: Blobs, keep: str) -> None:
    training, validation = _noisy(blobs)
    settings: dict[str, Any] = dict(hidden=(30,), learning_rate=0.05, batch=8, device="host")
    mlp = MLP(epochs=60, patience=8, keep=keep, **settings).fit(*training, validation=validation)
    scores = mlp.validation_scores_
    assert mlp.n_iter_ == len(scores)
    if keep == "best":
        assert mlp.n_iter_ < 60
        assert mlp.kept_epoch_ == mlp.n_iter_ - 8 and scores[mlp.kept_epoch_ - 1] == max(scores)
    else:
        assert mlp.kept_epoch_ == mlp.n_iter_
    assert mlp.score(*validation) == scores[mlp.kept_epoch_ - 1]
    assert _same(mlp, MLP(epochs=mlp.kept_epoch_, **settings).fit(*training))


def test_the_best_epoch_outlives_a_break(blobs: Blobs, tmp_path: Path) -> None:
    training, validation = _noisy(blobs)

    def fitted(epochs: int, **arguments: Any) -> MLP:
        return MLP(hidden=(30,), learning_rate=0.05, batch=8, epochs=epochs, patience=8,
                   device="host").fit(*training, validation=validation, **arguments)

    whole = fitted(60)
    fitted(whole.kept_epoch_ + 2, checkpoint=tmp_path / "c")
    resumed = fitted(60, checkpoint=tmp_path / "c", resume=True)
    assert resumed.kept_epoch_ == whole.kept_epoch_ and resumed.n_iter_ == whole.n_iter_
    assert _same(resumed, whole)
    with pytest.raises(InputError, match="checkpoint of training on other data"):
        MLP(hidden=(30,), learning_rate=0.05, batch=8, device="host").fit(
            *training, checkpoint=tmp_path / "c", resume=True)


def test_many_keep_their_best_epochs(blobs: Blobs) -> None:
    training, validation = _noisy(blobs)
    result = sweep(MLP(hidden=(30,), batch=8, epochs=30, patience=6, device="host"), {
        "learning_rate": [0.05, 0.01], "standardise": [False, True]}, *training,
        validation=validation)
    for mlp, row in zip(result.networks, result.rows, strict=True):
        alone = MLP(**mlp.get_params()).fit(*training, validation=validation)
        assert _same(mlp, alone)
        assert row["kept_epoch"] == alone.kept_epoch_
        assert row["validation_accuracy"] == alone.score(*validation)
        assert row["state"] == ("trained" if alone.n_iter_ == 30 else "no improvement")


def test_folds_are_scaled_by_their_own_rows(blobs: Blobs) -> None:
    x, y = blobs[0] * 10 + 50, 100 * blobs[0][:, 0]
    mlp = MLP(hidden=(6,), epochs=4, standardise=True, device="host")
    result = sweep(mlp, {}, x, y, folds=4)
    for fold, (trained, row) in enumerate(zip(result.networks, result.rows, strict=True)):
        left_out = np.arange(120) % 4 == fold
        alone = MLP(**mlp.get_params()).fit(x[~left_out], y[~left_out])
        np.testing.assert_allclose(_vector(trained), _vector(alone), rtol=1e-4, atol=1e-4)
        assert row["validation_accuracy"] == pytest.approx(
            alone.score(x[left_out], y[left_out]), abs=1e-4)


def test_numbers_of_any_size_are_learnt(device: Device) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (200, 2))
    y = 5000 + 1000 * x[:, 0] * x[:, 1]
    mlp = MLP(hidden=(30,), learning_rate=0.02, device=device).fit(x, y)
    assert mlp.score(x, y) > 0.95
    outputs = gossamer.compile(mlp.to_graph(), device="host")(x.astype(np.float32))
    np.testing.assert_allclose(outputs[:, 0], mlp.predict(x), rtol=1e-5)


def test_numbers_beyond_a_sigmoid_are_refused(blobs: Blobs) -> None:
    x, labels = blobs
    with pytest.raises(InputError, match=r"y has 2 in row 2, column 0: the outputs have the "
                                         r"activation sigmoid with the range 0 to 1; use output="):
        MLP.published(device="host").fit(x, labels.astype(float))
    with pytest.raises(InputError, match=r"y has -2 in row 2, .* tanh with the range -1 to 1"):
        MLP(output="tanh", device="host").fit(x, -labels.astype(float))
    MLP.published(epochs=1, device="host").fit(x, labels / 2)


@pytest.mark.parametrize("far", [False, True])
def test_standardised_inputs(device: Device, blobs: Blobs, far: bool) -> None:
    """The units in which the inputs are measured change nothing."""
    x, labels = blobs
    moved = (x * [1, 1000, 1e-3, 1] + [0, 500, 0, -30]).astype(np.float32) if far else x
    settings: dict[str, Any] = dict(hidden=(8,), epochs=20, learning_rate=0.01, standardise=True)
    mlp = MLP(device=device, **settings).fit(moved, labels)
    by_hand = MLP(device=device, **{**settings, "standardise": False}).fit(
        (x - x.mean(axis=0)) / x.std(axis=0), labels)
    probabilities = by_hand.predict_proba((x - x.mean(axis=0)) / x.std(axis=0))
    np.testing.assert_allclose(mlp.predict_proba(moved), probabilities, atol=2e-3)


def test_a_constant_column_is_left_alone(blobs: Blobs) -> None:
    x, labels = blobs
    x = np.column_stack([x, np.full(len(x), 1e6)])
    mlp = MLP(hidden=(30,), learning_rate=0.01, standardise=True, device="host").fit(x, labels)
    assert mlp.score(x, labels) > 0.98


def test_more_of_the_same_scale(blobs: Blobs) -> None:
    """partial_fit() scales later samples as the first ones."""
    x, y = blobs[0], 100 * blobs[0][:, 0]
    settings: dict[str, Any] = dict(hidden=(5,), standardise=True, device="host", shuffle=False)
    parts = MLP(**settings)
    for _ in range(3):
        parts.partial_fit(x, y)
    assert _same(parts, MLP(epochs=3, **settings).fit(x, y))
    before = parts.predict(x)
    parts.set_params(learning_rate=1e-9).partial_fit(x[:1], y[:1])
    np.testing.assert_allclose(parts.predict(x), before, rtol=1e-3)


@pytest.mark.parametrize("settings", [
    {}, {"loss": "squared_error"}, {"loss": "squared_error", "output": "sigmoid"},
    {"optimiser": "sgd", "loss": "squared_error", "momentum": 0.5, "learning_rate": 0.001}])
def test_rows_without_weight_do_not_count(device: Device, blobs: Blobs,
                                          settings: dict[str, Any]) -> None:
    x, labels = blobs
    weight = np.where(np.arange(120) < 90, 2.0, 0.0)
    settings = {"hidden": (6,), "epochs": 8, "shuffle": False, "device": device, **settings}
    weighted = MLP(batch=120, **settings).fit(x, labels, weight)
    fewer = MLP(batch=90, **settings).fit(x[:90], labels[:90])
    assert normalised_error(_vector(weighted), _vector(fewer)) <= tolerance("backprop")
    np.testing.assert_allclose(weighted.loss_curve_, fewer.loss_curve_, rtol=1e-4)
    assert weighted.score(x, labels, weight) == weighted.score(x[:90], labels[:90])


def test_weights_of_numbers(blobs: Blobs) -> None:
    x, y = blobs[0], blobs[0][:, 0]
    weight = np.arange(120) % 3
    mlp = MLP(hidden=(6,), epochs=3, device="host").fit(x, y, sample_weight=weight)
    kept = weight > 0
    assert mlp.score(x, y, weight) == pytest.approx(
        mlp.score(np.repeat(x, weight, axis=0), np.repeat(y, weight)))
    assert mlp.score(x[kept], y[kept], np.ones(kept.sum())) == pytest.approx(
        mlp.score(x[kept], y[kept]))


@pytest.mark.parametrize(("weight", "message"), [
    (np.ones(5), r"sample_weight has shape \(5,\) and type float64: expected one number for each"),
    (["a"] * 120, "expected one number for each of the 120 rows"),
    (-np.ones(120), "sample_weight has -1 in row 0: expected finite numbers of 0 or more"),
    (np.full(120, np.nan), "sample_weight has nan in row 0"),
    (np.zeros(120), "sample_weight is zero in every row")])
def test_wrong_weights(blobs: Blobs, weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MLP(device="host").fit(*blobs, weight)


def test_the_task_says_what_y_holds(blobs: Blobs) -> None:
    x, labels = blobs
    numbers = MLP(task="regression", epochs=2, device="host").fit(x, labels)
    assert not hasattr(numbers, "classes_") and numbers.predict(x).dtype == np.float32
    classes = MLP(task="classification", epochs=2, device="host").fit(x, labels.astype(float))
    assert classes.classes_.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match=r"y is continuous, with 0\.5 in row 1: expected"):
        MLP(task="classification", device="host").fit(x, labels / 2)
    with pytest.raises(InputError, match="y holds strings: expected numbers"):
        MLP(task="regression", device="host").fit(x, labels.astype(str))


def test_the_published_settings() -> None:
    assert MLP.published((4, 3), epochs=2).get_params() == MLP(
        (4, 3), activation="sigmoid", output="sigmoid", loss="squared_error", optimiser="sgd",
        learning_rate=0.3, batch=1, epochs=2, patience=None, keep="last", shuffle=False,
        scale_targets=False, initial="uniform").get_params()
    assert MLP.published(loss="cross_entropy").output is None
    assert MLP.published(activation="relu").output == "linear"


_SAMPLES = 2000


@cache
def _mnist(part: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pictures that are padded to 32 x 32 and binarised, as published, and labels."""
    try:
        file = sources.mnist()[part]
    except InputError as error:
        pytest.skip(str(error))
    data = prepared(sources.load(file, limit=count)[0], Preparation(True, 0.5, (32, 32)))
    return data.x, data.y


def test_mnist_as_published(device: Device) -> None:
    """The published training takes squared error, sigmoid, one sample at a time in file order, and
    initial weights within +-0.05."""
    if device.api == "opencl":
        pytest.skip("one launch per step takes long on the processor")
    x, labels = _mnist(0, _SAMPLES)
    assert set(np.unique(x)) == {0.0, 1.0}
    mlp = MLP.published((1024, 32, 10), epochs=4, device=device).fit(x, labels)
    assert mlp.score(*_mnist(1, 1000)) >= 0.8
    assert mlp.loss_curve_ == sorted(mlp.loss_curve_, reverse=True)
