"""What small trainings give is recorded: epochs, kept epochs, warnings, errors, predictions.

The host computes in float64 here, so that the digits that are recorded are the same on all
machines.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.ops.backprop.reference import Layers, forward, reference
from gossamer.train import MLP, ManyResult, many_on_ray, sweep, train_many
from gossamer.train.data.samples import Samples
from gossamer.train.estimator import _OF_SCIKIT_LEARN, shared_with_scikit_learn
from gossamer.train.loop import train_loop
from gossamer.train.network import TrainedNetwork, determination
from tests.outcomes import outcome
from tests.recorded import Recorded, as_text, digest
from tests.train.frames import Frame

X = np.array([[0, 3, 1], [2, 5, 1], [1, 0, 1], [4, 4, 1], [3, 1, 1], [5, 2, 1], [0, 0, 1],
              [1, 4, 1], [2, 2, 1], [4, 0, 1], [3, 3, 1], [5, 5, 1]], float) / 4
Y: dict[str, Any] = {
    "labels": [0, 1, 0, 1, 1, 2, 0, 1, 0, 2, 1, 2], "texts": [*"abacbcabacbc"],
    "numbers": (X @ [[1.0], [-0.5], [0]])[:, 0], "two numbers": X @ np.eye(3)[:, :2],
    "few numbers": [0.0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]}


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the host train and predict in float64."""
    def compute(algorithm: NumpyBackprop, problem: BackpropProblem, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [result.astype(np.float32) for result in reference(problem, inputs, weights)]

    def outputs(problem: BackpropProblem, layers: Layers, x: np.ndarray) -> list[np.ndarray]:
        exact_layers = [(weight.astype(np.float64), bias.astype(np.float64))
                        for weight, bias in layers]
        return [array.astype(x.dtype)
                for array in forward(problem, exact_layers, x.astype(np.float64))]

    monkeypatch.setattr(NumpyBackprop, "compute", compute)
    monkeypatch.setattr("gossamer.train.network.forward", outputs)


def _numbers(values: Any, digits: int = 3) -> str:
    return ",".join(f"{value:.{digits}g}" for value in np.ravel(values))


def _trained(mlp: MLP, x: Any = X) -> str:
    """Returns a text of a trained network."""
    parameters = [f"{value:.5g}" for part in (*mlp.coefs_, *mlp.intercepts_)
                  for value in part.ravel()]
    shapes = "-".join(str(part.shape[0]) for part in mlp.coefs_)
    predicted = mlp.predict(x)
    return (f"{mlp.n_iter_} epochs, {mlp.kept_epoch_} kept, {shapes} {digest(parameters)} "
            f"losses {_numbers(mlp.loss_curve_)} scores "
            f"{_numbers(getattr(mlp, 'validation_scores_', []))} "
            f"{'classes ' + as_text(mlp.classes_.tolist()) if hasattr(mlp, 'classes_') else ''} "
            f"{as_text(getattr(mlp, 'feature_names_in_', np.array([])).tolist())} "
            f"{mlp.n_features_in_} {mlp.device_} {mlp.algorithm_} predicts "
            f"{_numbers(predicted, 2) if predicted.dtype.kind == 'f' else digest(predicted)}")


def _mlp(**values: Any) -> MLP:
    return MLP(**{"hidden": (3,), "epochs": 4, "learning_rate": 0.125, "device": "host",
                  "batch": 5, **values})


SETTINGS: list[dict[str, Any]] = [
    {}, {"patience": 1, "epochs": 9}, {"patience": 2, "keep": "last", "epochs": 9},
    {"patience": None}, {"target_error": 0.5, "epochs": 20}, {"standardise": True},
    {"scale_targets": False}, {"optimiser": "sgd", "momentum": 0.5}, {"loss": "squared_error"},
    {"shuffle": False, "seed": 3}, {"task": "classification"}, {"task": "regression"},
    {"task": "other"}, {"class_weight": "balanced"}, {"class_weight": {0: 2, "a": 2}},
    {"class_weight": {1: 3}}, {"activation": "sigmoid", "output": "tanh"}, {"sizes": (3, 4, 3)},
    {"sizes": (3, 4, 3), "hidden": None}, {"sizes": (3, 1), "hidden": None},
    {"learning_rate": 1e30, "optimiser": "sgd"}, {"learning_rate": 4.0, "optimiser": "sgd",
                                                  "schedule": ("step", 1, 64.0)},
    {"algorithm": "blocked"}, {"effort": "huge"}, {"batch": 50}]


def test_trainings(tmp_path: Path, recorded: Recorded) -> None:
    found = {}
    for (index, values), kind in itertools.product(enumerate(SETTINGS), Y):
        for validation in (None, "same", "other"):
            if validation and index > 4 and (index + len(kind)) % 3:
                continue
            weights = None if (index + len(kind)) % 2 else [1, 2, 0, 1] * 3
            x = Frame(["p", "q", "r"], X.tolist()) if index % 4 == 1 else X
            pair = None if validation is None else (x, Y[kind]) if validation == "same" else (
                X[::-1] + 0.25, Y[kind])
            mlp = _mlp(**values)
            found[f"{index} {kind} {validation} {weights is None}"] = outcome(
                lambda mlp=mlp, x=x, kind=kind, pair=pair, weights=weights: mlp.fit(
                    x, Y[kind], weights, validation=pair), tmp_path, _trained) + (
                f" then {mlp.n_iter_} epochs" if hasattr(mlp, "n_iter_") and index > 19 else "")
    recorded("trainings", found)


def test_progress_and_checkpoints(tmp_path: Path, recorded: Recorded) -> None:
    found = {}
    for case, (keep, validates, stop, kind) in enumerate(itertools.product(
            ("best", "last"), (False, True), (0, 1, 3), ("labels", "numbers"))):
        file, lines = tmp_path / str(case), []

        def told(progress: Any, lines: list[str] = lines, stop: int = stop) -> None:
            lines.append(f"{progress.epoch}/{progress.epochs} {progress.score:.2g} "
                         f"{progress.validation_score and format(progress.validation_score, '.2g')}"
                         f" {progress.validation_loss is None} {progress.device} "
                         f"{progress.algorithm} {progress.samples_per_second > 0}")
            if progress.epoch == stop:
                raise ValueError("stopped")

        pair = (X + 0.25, Y[kind]) if validates else None
        first = outcome(partial(_mlp(keep=keep).fit, X, Y[kind], validation=pair, on_epoch=told,
                                checkpoint=file), tmp_path, _trained)
        resumed = outcome(partial(_mlp(keep=keep, epochs=5).fit, X, Y[kind], validation=pair,
                                  checkpoint=file, resume=True), tmp_path, _trained)
        other = outcome(partial(_mlp(keep=keep).fit, X, Y[kind], validation=(X, Y[kind]),
                                checkpoint=file, resume=True), tmp_path, _trained)
        found[f"{keep} {validates} {stop} {kind}"] = " / ".join([*lines, first, resumed, other])
    found["no file"] = outcome(lambda: _mlp().fit(X, Y["labels"], resume=True))
    recorded("trainings_resumed", found)


def test_partial_trainings(recorded: Recorded) -> None:
    """Calls follow each other on the same network, with other samples or settings."""
    frame, other = Frame([*"pqr"], X.tolist()), Frame([*"rqp"], X.tolist())
    calls: dict[str, tuple[Any, ...]] = {
        "labels": (X, Y["labels"]), "texts": (X, Y["texts"]), "numbers": (X, Y["numbers"]),
        "two": (X, Y["two numbers"]), "frame": (frame, Y["labels"]), "turned": (other, Y["labels"]),
        "narrow": (X[:, :2], Y["labels"]), "classes": (X[:3], [0, 1, 0], [2, 1, 0]),
        "other classes": (X[:3], [0, 1, 0], [0, 1]), "a class": (X[:2], [0, 0]),
        "weights": (X, Y["labels"], None, [1, 0, 2] * 4), "unknown": (X[:2], [0, 7])}
    settings: dict[str, dict[str, Any]] = {
        "": {}, "scaled": {"standardise": True}, "sgd": {"optimiser": "sgd", "momentum": 0.5},
        "sized": {"sizes": (3, 2, 3), "hidden": None}, "weighted": {"class_weight": {0: 2}},
        "balanced": {"class_weight": "balanced"}, "wide": {"hidden": (4,)}}
    found = {}
    for turn, (first, second) in enumerate(itertools.product(calls, repeat=2)):
        for name, later in (("", ""), (list(settings)[turn % 7], list(settings)[turn // 2 % 7])):
            mlp = _mlp(**settings[name])
            texts = [outcome(lambda mlp=mlp, first=first: mlp.partial_fit(*calls[first]), None,
                             lambda mlp: "fine")]
            mlp.set_params(**settings[later])
            texts.append(outcome(lambda mlp=mlp, second=second: mlp.partial_fit(*calls[second]),
                                 None, lambda mlp, second=second: _trained(mlp, calls[second][0])))
            found[f"{first}, {second}, {name}, {later}"] = "; ".join(texts)
    recorded("trainings_in_parts", found)


def test_predictors(recorded: Recorded) -> None:
    found = {}
    networks = {kind: _mlp(**values).fit(X, Y[kind.split()[0]]) for kind, values in (
        ("labels", {}), ("texts", {}), ("numbers", {}), ("labels squared",
                                                         {"loss": "squared_error"}),
        ("labels sigmoid", {"loss": "squared_error", "activation": "sigmoid", "output": "tanh"}))}
    networks["two"] = _mlp().fit(X, Y["two numbers"])
    networks["framed"] = _mlp().fit(Frame([*"pqr"], X.tolist()), Y["labels"])
    networks["untrained"], networks["to be of numbers"] = _mlp(), _mlp(task="regression")
    inputs: dict[str, Any] = {"x": X[:3], "frame": Frame([*"pqr"], X[:3].tolist()),
                              "narrow": X[:, :2], "empty": X[:0], "row": X[0]}
    for (name, mlp), (given, x) in itertools.product(networks.items(), inputs.items()):
        for method in ("predict", "predict_proba", "predict_log_proba"):
            found[f"{name} {method} {given}"] = outcome(
                lambda mlp=mlp, method=method, x=x: getattr(mlp, method)(x), None,
                lambda y: f"{y.dtype}{list(y.shape)} " + (
                    _numbers(y, 2) if y.dtype.kind == "f" else as_text(y.tolist())))
        for wanted, weights in (([0, 1, 0], None), ([0, 1, 0], [1, 2, 0]), ([[0], [1], [2]], None),
                                ([*"aba"], None), ([0.5, 1, 2], [1, 1, 2]), ([0, 1], None),
                                ([], None), (np.eye(3)[:, :2], None)):
            found[f"{name} score {given} {as_text(np.asarray(wanted).tolist())} {weights}"] = (
                outcome(lambda mlp=mlp, x=x, wanted=wanted, weights=weights: mlp.score(
                    x, wanted, weights), None, lambda score: f"{score:.3g}"))
        found[f"{name} facts"] = f"{mlp._learns_numbers} {mlp.__sklearn_is_fitted__()} {mlp!r}"
    outputs = np.array([[1, -1, 3.0], [0, 0, 0], [-1, -2, -3], [2, 0, 2]], np.float32)
    mlp = networks["labels squared"]
    mlp._outputs = lambda x: outputs  # type: ignore[method-assign]
    found["shares"] = _numbers(mlp.predict_proba(X))
    recorded("predictors", found)


def _rows(result: Any) -> str:
    keys = ("config", "fold", "epochs", "kept_epoch", "state", "is_trained")
    lines = ["{} {} {} {} {} {}".format(*(row[key] for key in keys)) + (
        f" {row['loss']:.3g} {_score(row['train_accuracy'])} {_score(row['validation_accuracy'])}")
        for row in result.rows]
    best = outcome(lambda: result.networks.index(result.best))
    return " / ".join([*lines, f"best {best}", str(result.scores.shape),
                       _numbers(result.scores, 2)])


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def test_many_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                       recorded: Recorded) -> None:
    base = _mlp(epochs=3, patience=None)
    configs: dict[str, list[Any]] = {
        "one": [base], "rates": sweep(base, {"learning_rate": [0.125, 0.5], "seed": [0, 1]}),
        "unlike": [base, dict(hidden=(2,), epochs=2, device="host"), _mlp(epochs=1),
                   _mlp(standardise=True, patience=1)],
        "diverging": [_mlp(learning_rate=1e30, optimiser="sgd"), _mlp(target_error=9.0)],
        "all diverge": sweep(_mlp(optimiser="sgd"), {"learning_rate": [1e30, 1e31]}),
        "none": [], "number": [3], "unknown": [{"layers": 3}],
        "wrong": [base, _mlp(momentum=3.0)], "sized": [_mlp(sizes=(3, 2), hidden=None)]}
    found = {}
    for (name, many), kind, folds in itertools.product(
            configs.items(), ("labels", "numbers"), (None, 1, 2, 3, 12, 13, 2.5)):
        if folds in (1, 12, 13, 2.5) and name != "one":
            continue
        found[f"{name}, {kind}, {folds} folds"] = outcome(
            lambda many=many, kind=kind, folds=folds: train_many(many, X, Y[kind], folds=folds),
            None, _rows)
        if folds is None:
            found[f"{name}, {kind}, validated"] = outcome(
                lambda many=many, kind=kind: train_many(
                    many, X, Y[kind], validation=(X + 0.5, Y[kind]), sample_weight=[1, 2] * 6),
                None, _rows)
    for index, values in enumerate(({"resume": True}, {"folds": 2, "validation": (X, Y["labels"])},
                                    {"resume": True, "checkpoint": tmp_path / "none"},
                                    {"checkpoint": tmp_path / "no" / "folder"})):
        found[f"wrong {index}"] = outcome(
            lambda values=values: train_many([base], X, Y["labels"], **values), tmp_path, _rows)
    step = train_loop.TrainLoop.step
    for stop, folds in itertools.product((1, 2, 3, 4, 5), (None, 2)):
        folder, begun = tmp_path / f"{stop}{folds}", SimpleNamespace(epochs=0)

        def stopped(self: Any, begun: Any = begun, stop: int = stop) -> float:
            begun.epochs += 1
            if begun.epochs == stop:
                raise KeyboardInterrupt
            return step(self)

        monkeypatch.setattr(train_loop.TrainLoop, "step", stopped)
        many = [base, _mlp(hidden=(2,), epochs=2), _mlp(epochs=1)]
        with pytest.raises(KeyboardInterrupt) as caught:
            train_many(many, X, Y["labels"], folds=folds, checkpoint=folder)
        monkeypatch.setattr(train_loop.TrainLoop, "step", step)
        names = sorted(path.name for path in folder.iterdir())
        resumed = outcome(lambda folds=folds, folder=folder, many=many: train_many(
            many, X, Y["labels"], folds=folds, checkpoint=folder, resume=True), tmp_path, _rows)
        notes = " ".join(caught.value.__notes__).replace(str(folder), "DIR")
        result: Any = vars(caught.value)["result"]
        found[f"stopped {stop} {folds}"] = f"{_rows(result)} | {names} {notes} | {resumed}"
    recorded("trainings_of_many", found)


def test_the_best_of_many(recorded: Recorded) -> None:
    """Scores and losses are drawn from few values, so that many are equal."""
    rng, found = np.random.default_rng(1), {}
    for case in range(80):
        folds, count = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        rows = [{"config": index // folds, "fold": index % folds if folds > 1 else None,
                 "loss": float(rng.integers(1, 4)), "is_trained": bool(rng.random() < 0.9),
                 "state": f"state {index}", "train_accuracy": float(rng.integers(1, 4)) / 4,
                 "validation_accuracy": float(rng.integers(1, 3)) / 2 if case % 3 else None}
                for index in range(folds * count)]
        result = ManyResult(rows, list(range(folds * count)))  # type: ignore[arg-type]
        shown = " ".join(f"{row['loss']:g},{row['train_accuracy']:g},{row['validation_accuracy']}"
                         f"{'' if row['is_trained'] else '!'}" for row in rows)
        found[f"{case} {folds} folds {shown}"] = (
            f"{_numbers(result.scores)} best {outcome(lambda result=result: result.best)}")
    recorded("best_of_many", found)


def test_shares_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             recorded: Recorded) -> None:
    def shared_out(work: Any, pieces: Sequence[Any], shared: Any, address: str | None) -> list[Any]:
        calls.append(f"{address} {len(pieces)}")
        return [work(piece, shared) for piece in pieces]

    def trained(configs: Sequence[Any], **given: Any) -> Any:
        calls.append(f"{list(configs)} {given}".replace(f"{tmp_path}/", ""))
        return SimpleNamespace(rows=[{"config": index} for index in range(len(configs))],
                               networks=[f"n{config}" for config in configs])

    monkeypatch.setattr(many_on_ray, "shared_out", shared_out)
    found = {}
    for count, address, folder, resume in itertools.product(
            (0, 1, 7, 8, 9, 16, 17), ("", "a:1"), (None, "new", "begun", "lost"), (False, True)):
        if folder and (address or count in (0, 7, 16)):
            continue
        calls: list[str] = []
        place = None if folder is None else tmp_path / f"{count}{resume}" / folder
        if folder in ("begun", "lost"):
            (place / "share-00001").mkdir(parents=True)  # type: ignore[operator]
        if folder == "begun":
            (place / "share-00001" / "0.checkpoint").touch()  # type: ignore[operator]
        text = outcome(partial(
            many_on_ray.rows_and_networks, list(range(count)), address, place, resume, trained,
            {"folds": 2}), tmp_path,
            lambda pair: f"{[row['config'] for row in pair[0]]} {' '.join(pair[1])}")
        found[f"{count} {address} {folder} {resume}"] = f"{text} from {' | '.join(calls)}"
    recorded("cluster_shares", found)


def test_estimators(recorded: Recorded) -> None:
    found = {}
    for name in (*_OF_SCIKIT_LEARN, "layers", "hidden"):
        found[f"given {name}"] = outcome(lambda name=name: repr(MLP(**{name: 1})))
        found[f"set {name}"] = outcome(lambda name=name: repr(MLP().set_params(**{name: 1})))
    for index, values in enumerate(({}, {"sizes": (3, 2)}, {"seed": 0}, {"seed": 1, "epochs": 3},
                                    {"task": "regression"}, {"momentum": 0}, {"momentum": 0.0})):
        for mlp in (MLP(**values), MLP.published(**values)):
            found[f"{index} {mlp.activation}"] = (
                f"{mlp!r} {mlp._learns_numbers} {digest(mlp.get_params(False))}")
    for values in ({"activation": "relu"}, {"activation": "tanh"}, {"loss": "cross_entropy"},
                   {"output": "sigmoid"}):
        found[f"published {values}".replace(": ", "=")] = repr(MLP.published((3, 2), **values))
    grids: list[dict[str, Any]] = [{}, {"seed": [1, 2], "epochs": [3]}, {"seed": []},
                                   {"layers": [1]}, {"momentum": (0.0, 0.5), "seed": range(2)}]
    for index, grid in enumerate(grids):
        found[f"sweep {index}"] = outcome(
            lambda grid=grid: [repr(mlp) for mlp in sweep(MLP((3, 2), batch=7), grid)])
    found["shared"] = shared_with_scikit_learn(ValueError).__name__
    recorded("estimators", found)


def test_results_of_a_network(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """The layers are float64, so that six digits are the same on all machines."""
    monkeypatch.setattr("gossamer.train.network._ROWS", 4)
    monkeypatch.setattr("gossamer.train.network.JUDGED", 5)
    rng, found = np.random.default_rng(0), {}
    for rows, (loss, output), labelled in itertools.product(
            (1, 3, 4, 5, 6, 9), (("cross_entropy", None), ("squared_error", None),
                                 ("squared_error", "linear")), (False, True)):
        problem = BackpropProblem((3, 2, 4), rows, rows, "tanh", loss, output=output)
        network = TrainedNetwork(problem, problem.split(rng.normal(size=problem.weight_count)))
        labels = rng.integers(0, 4, rows)
        data = Samples(rng.normal(size=(rows, 3)), np.eye(4)[labels] * 2,
                       labels if labelled else None)
        outputs = network.outputs(data.x)
        validation = network.validated(data)
        found[f"{rows} {loss} {output} {labelled}"] = " ".join([
            _numbers(outputs, 6)[:40], f"{network.loss(outputs, data.x, data.targets):.6g}",
            f"{network.score(outputs, data):.6g} {validation.loss:.6g} {validation.score:.6g}",
            *(f"{network.judged(data, np.arange(count)):.6g}" for count in range(1, rows + 1)),
            str(network.activations), str(network.sizes)])
    found["none"] = str(network.outputs(data.x[:0]).shape)
    targets = np.array([[1, 2.0], [1, 4], [1, 6]])
    for index, y in enumerate((targets, targets + 1, targets * [1, 0.5], targets[::-1],
                               targets * 0)):
        for weights in (None, np.array([1, 2.0, 0]), np.array([0, 0, 3.0])):
            found[f"determination {index} {weights}"] = (
                f"{determination(y, targets, weights):.6g} "
                f"{determination(y[:, 1:], targets[:, 1:], weights):.6g}")
    recorded("network_results", found)
