"""What trained networks predict, and the other methods of estimators, are recorded.

The host computes in float64 here, so that the digits that are recorded are the same on all
machines.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train import MLP, ManyResult, sweep
from gossamer.train.data.samples import Samples
from gossamer.train.estimator import _OF_SCIKIT_LEARN, shared_with_scikit_learn
from gossamer.train.network import TrainedNetwork, determination
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome
from tests.train.frames import Frame
from tests.train.small import X, Y, numbers_text, small_mlp

pytestmark = pytest.mark.usefixtures("exact")


def test_predictors(recorded: Recorded) -> None:
    found = {}
    networks = {kind: small_mlp(**values).fit(X, Y[kind.split()[0]]) for kind, values in (
        ("labels", {}), ("texts", {}), ("numbers", {}), ("labels squared",
                                                         {"loss": "squared_error"}),
        ("labels sigmoid", {"loss": "squared_error", "activation": "sigmoid", "output": "tanh"}))}
    networks["two"] = small_mlp().fit(X, Y["two numbers"])
    networks["framed"] = small_mlp().fit(Frame([*"pqr"], X.tolist()), Y["labels"])
    networks["untrained"], networks["to be of numbers"] = small_mlp(), small_mlp(task="regression")
    inputs: dict[str, Any] = {"x": X[:3], "frame": Frame([*"pqr"], X[:3].tolist()),
                              "narrow": X[:, :2], "empty": X[:0], "row": X[0]}
    for (name, mlp), (given, x) in itertools.product(networks.items(), inputs.items()):
        for method in ("predict", "predict_proba", "predict_log_proba"):
            found[f"{name} {method} {given}"] = outcome(
                lambda mlp=mlp, method=method, x=x: getattr(mlp, method)(x),
                text=lambda y: f"{y.dtype}{list(y.shape)} " + (
                    numbers_text(y, 2) if y.dtype.kind == "f" else as_text(y.tolist())))
        for wanted, weights in (([0, 1, 0], None), ([0, 1, 0], [1, 2, 0]), ([[0], [1], [2]], None),
                                ([*"aba"], None), ([0.5, 1, 2], [1, 1, 2]), ([0, 1], None),
                                ([], None), (np.eye(3)[:, :2], None)):
            found[f"{name} score {given} {as_text(np.asarray(wanted).tolist())} {weights}"] = (
                outcome(lambda mlp=mlp, x=x, wanted=wanted, weights=weights: mlp.score(
                    x, wanted, weights), text=lambda score: f"{score:.3g}"))
        found[f"{name} facts"] = f"{mlp._learns_numbers} {mlp.__sklearn_is_fitted__()} {mlp!r}"
    outputs = np.array([[1, -1, 3.0], [0, 0, 0], [-1, -2, -3], [2, 0, 2]], np.float32)
    mlp = networks["labels squared"]
    mlp._outputs = lambda x: outputs  # type: ignore[method-assign]
    found["shares"] = numbers_text(mlp.predict_proba(X))
    recorded("predictors", found)


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
            f"{numbers_text(result.scores)} best {outcome(lambda result=result: result.best)}")
    recorded("best_of_many", found)


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
            numbers_text(outputs, 6)[:40], f"{network.loss(outputs, data.x, data.targets):.6g}",
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
