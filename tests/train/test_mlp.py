from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer.train import MLP, Progress
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings
from tests.tolerances import normalised_error, tolerance

Blobs = tuple[np.ndarray, np.ndarray]


def _flat(mlp: MLP) -> np.ndarray:
    return np.concatenate([part.ravel() for weight, bias in zip(
        mlp.coefs_, mlp.intercepts_, strict=True) for part in (weight.T, bias)])


def _same(first: MLP, second: MLP) -> bool:
    return np.array_equal(_flat(first), _flat(second)) and (
        first.loss_curve_ == second.loss_curve_)


@pytest.mark.parametrize("settings", [
    {}, {"activation": "tanh", "momentum": 0.8, "learning_rate": 0.02, "shuffle": True},
    {"activation": "relu", "loss": "cross_entropy", "initial": "glorot", "batch": 7,
     "schedule": "inverse"},
    {"loss": "cross_entropy", "weight_decay": 1e-3, "schedule": ("step", 2, 0.5)}])
def test_every_device_trains_as_float64_does(device: Device, blobs: Blobs,
                                             settings: dict[str, Any]) -> None:
    x, labels = blobs
    mlp = MLP.published((4, 5, 3), device=device, epochs=3, **settings).fit(x, labels)
    momentum = settings.get("momentum", 0.0)
    problem = BackpropProblem((4, 5, 3), 120, 120, mlp.activation, mlp.loss, mlp.batch,
                              momentum > 0)
    rng = np.random.default_rng(0)
    parameters = Settings.of(mlp, DataShape(120, 4, 3, True)).start(rng)[None].astype(np.float64)
    factors = {"inverse": [1, 1 / 2, 1 / 3], "constant": [1, 1, 1]}.get(
        str(mlp.schedule), [1, 1, 0.5])
    curve = []
    for factor in factors:
        order = (rng.permutation(120) if mlp.shuffle else np.arange(120)).astype(np.int32)
        rates = np.array([[mlp.learning_rate * factor, momentum, mlp.weight_decay]])
        parameters, losses = reference(
            problem, [x, np.eye(3)[labels], order[None], rates, parameters], {})
        curve.append(losses.mean())
    assert normalised_error(_flat(mlp)[None], parameters[:, :problem.weight_count]) <= (
        tolerance("backprop"))
    np.testing.assert_allclose(mlp.loss_curve_, curve, rtol=tolerance("backprop"))
    assert mlp.n_iter_ == 3
    assert mlp.device_ == device.name


def test_it_learns(device: Device, blobs: Blobs) -> None:
    x, labels = blobs
    reports: list[tuple[Progress, float | None]] = []
    mlp = MLP.published((4, 6, 3), epochs=20, shuffle=True, device=device)
    assert mlp.fit(x[:90], labels[:90], validation=(x[90:], labels[90:]),
                   on_epoch=lambda p: reports.append((p, p.score))) is mlp
    assert mlp.score(x[90:], labels[90:]) >= 0.95
    assert mlp.loss_curve_[-1] < mlp.loss_curve_[0] / 2
    assert [p.epoch for p, _ in reports] == list(range(1, 21))
    last, accuracy = reports[-1]
    assert last.epochs == 20
    assert last.loss == mlp.loss_curve_[-1]
    assert last.validation_score == mlp.score(x[90:], labels[90:])
    assert mlp.validation_scores_ == [p.validation_score for p, _ in reports]
    assert accuracy == mlp.score(x[:90], labels[:90])
    assert last.samples_per_second > 0
    assert (last.device, last.algorithm) == (device.name, mlp.algorithm_)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
def test_the_loss_of_validation(blobs: Blobs, loss: str) -> None:
    x, labels = blobs
    losses: list[float | None] = []
    mlp = MLP.published((4, 6, 3), loss=loss, epochs=2, device="host").fit(
        x, labels, validation=(x[::-7], labels[::-7]),
        on_epoch=lambda p: losses.append(p.validation_loss))
    hidden = 1 / (1 + np.exp(-(x[::-7] @ mlp.coefs_[0] + mlp.intercepts_[0])))
    sums = hidden @ mlp.coefs_[1] + mlp.intercepts_[1]
    targets = np.eye(3)[labels[::-7]]
    if loss == "squared_error":
        expected = 0.5 * np.square(targets - 1 / (1 + np.exp(-sums))).sum(axis=1)
    else:
        expected = -np.log((np.exp(sums) * targets).sum(axis=1) / np.exp(sums).sum(axis=1))
    assert losses[-1] == pytest.approx(expected.mean(), rel=1e-5)
    assert len(losses) == 2


def test_seeds(blobs: Blobs) -> None:
    def trained(seed: int | None) -> MLP:
        return MLP.published((4, 5, 3), epochs=2, device="host", shuffle=True,
                             seed=seed).fit(*blobs)

    assert _same(trained(3), trained(3))
    assert not _same(trained(3), trained(4))
    assert not _same(trained(None), trained(None))


def test_stops_at_a_target_error(device: Device, blobs: Blobs) -> None:
    full = MLP.published((4, 6, 3), epochs=5, device=device).fit(*blobs)
    target = full.loss_curve_[2]
    mlp = MLP.published((4, 6, 3), epochs=5, device=device, target_error=target).fit(*blobs)
    assert mlp.n_iter_ == 3
    assert mlp.loss_curve_ == full.loss_curve_[:3]
    assert _same(mlp, MLP.published((4, 6, 3), epochs=3, device=device).fit(*blobs))


@pytest.mark.parametrize("labels", [
    lambda y: np.array(["oak", "ash", "elm"])[y], lambda y: ["b\u00fcche", "ash", "elm"] * 40,
    lambda y: y - 1, lambda y: y * 10, lambda y: y.astype(np.uint8), lambda y: y[:, None],
    lambda y: np.array(["oak", "ash", "elm"], object)[y]])
def test_labels_of_any_kind(blobs: Blobs, labels: Callable[[np.ndarray], Any]) -> None:
    x, y = blobs
    y_as_labels = labels(y)
    mlp = MLP.published((4, 6, 3), epochs=15, device="host").fit(x, y_as_labels)
    expected = np.asarray(y_as_labels).ravel()
    assert mlp.classes_.tolist() == sorted(set(expected.tolist()))
    assert (mlp.predict(x) == expected).mean() >= 0.95
    assert mlp.score(x, y_as_labels) == (mlp.predict(x) == expected).mean()


def test_a_class_may_be_absent(blobs: Blobs) -> None:
    x, y = blobs
    mlp = MLP.published((4, 4), epochs=2, device="host").fit(x, y)
    assert mlp.classes_.tolist() == [0, 1, 2, 3]
    assert mlp.predict_proba(x).shape == (120, 4)


@pytest.mark.parametrize(("activation", "loss"), [
    ("sigmoid", "squared_error"), ("tanh", "squared_error"), ("relu", "squared_error"),
    ("relu", "cross_entropy")])
def test_probabilities(blobs: Blobs, activation: str, loss: str) -> None:
    mlp = MLP.published((4, 6, 3), activation=activation, loss=loss, epochs=3, learning_rate=0.02,
              device="host").fit(*blobs)
    probabilities = mlp.predict_proba(blobs[0])
    assert probabilities.shape == (120, 3)
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(mlp.classes_[probabilities.argmax(axis=1)],
                                  mlp.predict(blobs[0]))


def test_regression(device: Device) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (100, 2)).astype(np.float32)
    y = np.stack([x[:, 0] - 2 * x[:, 1], 0.5 * x[:, 0]], 1)
    mlp = MLP.published((2, 2), activation="relu", learning_rate=0.3, epochs=5,
                        device=device).fit(x, y)
    assert mlp.predict(x).shape == (100, 2)
    assert not hasattr(mlp, "classes_")
    assert mlp.score(x, y) > 0.999
    assert mlp.score(x, y[:, ::-1]) < 0
    one = MLP.published((2, 1), activation="relu", learning_rate=0.3, epochs=3, device=device)
    one.fit(x, y[:, 0], validation=(x, y[:, 0]))
    assert one.predict(x).shape == (100,)
    assert one.validation_scores_[-1] == pytest.approx(
        1 - np.square(y[:, 0] - one.predict(x)).sum() / np.square(y[:, 0] - y[:, 0].mean()).sum())
    with pytest.raises(InputError, match="this network was made for regression"):
        one.predict_proba(x)


@pytest.mark.parametrize("settings", [
    {}, {"momentum": 0.7, "shuffle": True, "schedule": "inverse", "batch": 8}])
def test_partial_fits_are_epochs(device: Device, blobs: Blobs, settings: dict[str, Any]) -> None:
    single = MLP.published((4, 6, 3), epochs=3, device=device, **settings).fit(*blobs)
    parts = MLP.published((4, 6, 3), device=device, target_error=1e9, **settings)
    for epoch in range(3):
        assert parts.partial_fit(*blobs) is parts
        assert parts.n_iter_ == epoch + 1
    assert _same(single, parts)


def test_partial_fits_keep_their_classes(blobs: Blobs) -> None:
    x, y = blobs
    names = np.array(["ash", "elm", "oak"])[y]
    mlp = MLP.published((4, 6, 3), device="host")
    with pytest.raises(InputError, match="y has 2 different labels, but sizes end in 3"):
        mlp.partial_fit(x[y < 2], names[y < 2])
    mlp.partial_fit(x[y < 2], names[y < 2], classes=["oak", "elm", "ash"])
    mlp.partial_fit(x, names, classes=["ash", "elm", "oak", "oak"])
    for classes in (["ash", "elm"], ["ash", "elm", "oak", "fir"], [0, 1, 2]):
        with pytest.raises(ValueError, match="trained with 'ash', 'elm', 'oak'"):
            mlp.partial_fit(x, names, classes=classes)
    with pytest.raises(ValueError, match="classes: y holds regression targets"):
        MLP().partial_fit(x, x[:, 0], classes=[0, 1])
    assert mlp.classes_.tolist() == ["ash", "elm", "oak"]
    with pytest.raises(InputError, match="label 'fir' in row 0: expected one of 'ash', 'elm'"):
        mlp.partial_fit(x[:1], ["fir"])
    with pytest.raises(InputError, match="call fit to start from scratch"):
        mlp.set_params(sizes=(4, 7, 3)).partial_fit(x, names)
    with pytest.raises(InputError, match="regression targets in another"):
        mlp.set_params(sizes=(4, 6, 3)).partial_fit(x, np.eye(3)[y])
    with pytest.raises(InputError, match="classes has 2"):
        MLP.published((4, 3)).partial_fit(x, y, classes=[0, 1])


def test_momentum_may_begin_and_end_between_partial_fits(blobs: Blobs) -> None:
    mlp = MLP.published((4, 6, 3), device="host").partial_fit(*blobs)
    mlp.set_params(momentum=0.5).partial_fit(*blobs)
    mlp.set_params(momentum=0.0).partial_fit(*blobs)
    assert mlp.n_iter_ == 3
    assert len(mlp.loss_curve_) == 3


def test_ctrl_c_keeps_what_was_trained(device: Device, blobs: Blobs) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.epoch == 2:
            raise KeyboardInterrupt

    mlp = MLP.published((4, 6, 3), epochs=9, momentum=0.5, shuffle=True, device=device)
    with pytest.raises(KeyboardInterrupt):
        mlp.fit(*blobs, on_epoch=interrupt)
    assert mlp.n_iter_ == 2
    assert _same(mlp, MLP.published((4, 6, 3), epochs=2, momentum=0.5, shuffle=True,
                                    device=device).fit(*blobs))


def test_ctrl_c_at_any_line(blobs: Blobs, tmp_path: Path) -> None:
    """Epochs, parameters and checkpoint fit together wherever an epoch is interrupted."""
    x, labels = blobs[0][:6], blobs[1][:6]

    def mlp(epochs: int = 2) -> MLP:
        return MLP.published((4, 3), epochs=epochs, momentum=0.5, shuffle=True, device="host")

    trained = {epochs: mlp(epochs).fit(x, labels) for epochs in (1, 2)}
    lines = 0
    interrupted: set[int] = set()
    for line in range(1000):
        stopped = mlp()
        file = tmp_path / f"{line}"
        tracer = _Interrupting(line)
        with tracer, suppress(KeyboardInterrupt):
            stopped.fit(x, labels, checkpoint=file)
        if not tracer.interrupted:
            break
        lines += 1
        epochs = getattr(stopped, "n_iter_", 0)
        interrupted.add(epochs)
        if epochs:
            assert _same(stopped, trained[epochs])
            assert _same(mlp().fit(x, labels, checkpoint=file, resume=True), trained[2])
        else:
            assert not file.exists()
    assert lines > 50
    assert interrupted == {0, 1, 2}


class _Interrupting:
    """Raises Ctrl-C before the n-th line of the loop or of a training state that runs, counted over
    all epochs."""

    def __init__(self, line: int) -> None:
        self.lines_left = line
        self.interrupted = False

    def __enter__(self) -> _Interrupting:
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if self.interrupted or not frame.f_code.co_filename.endswith(
                ("train_loop.py", "train_state.py")):
            return None
        if event == "call" and frame.f_code.co_name == "__init__":
            return None
        if event == "line":
            if self.lines_left == 0:
                self.interrupted = True
                raise KeyboardInterrupt
            self.lines_left -= 1
        return self


def test_what_is_not_trained_says_so() -> None:
    for use in (lambda m: m.predict([[1.0]]), lambda m: m.to_graph(),
                lambda m: m.score([[1]], [1])):
        with pytest.raises(InputError, match="not trained yet: call fit first"):
            use(MLP.published((1, 2)))


def test_a_wrong_input_of_predict(blobs: Blobs) -> None:
    mlp = MLP.published((4, 3), epochs=1, device="host").fit(*blobs)
    with pytest.raises(InputError, match="X has 3 features, but MLP is expecting 4 features"):
        mlp.predict(blobs[0][:, :3])
    with pytest.raises(InputError, match="x has 2 rows, but y has 1 labels"):
        mlp.score(blobs[0][:2], [1])
    with pytest.raises(InputError, match="y is of type <U1"):
        mlp.score(blobs[0][:1], ["a"])
    assert mlp.predict(np.empty((0, 4))).shape == (0,)
    # labels that did not occur in training count as wrong answers
    assert mlp.score(blobs[0], blobs[1] + 7) == 0.0


def test_repeated_fits_begin_anew(device: Device, blobs: Blobs) -> None:
    mlp = MLP.published((4, 6, 3), epochs=2, shuffle=True, device=device).fit(*blobs)
    first = _flat(mlp)
    mlp.fit(blobs[0], np.eye(3)[blobs[1]])
    np.testing.assert_array_equal(_flat(mlp), first)
    assert not hasattr(mlp, "classes_")


def test_the_debug_level_reports_epochs(blobs: Blobs, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GOSSAMER_DEBUG", "2")
    MLP.published((4, 3), epochs=2, device=find("host")).fit(*blobs)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"4-3 sigmoid squared_error, 120 samples: numpy on host: [\d.]+ [mu]s, "
                        r"[\d.]+ us per sample", lines[0])
