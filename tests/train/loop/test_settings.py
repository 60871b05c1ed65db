from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings

Blobs = tuple[np.ndarray, np.ndarray]


def test_initial_parameters() -> None:
    def layers(**settings: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        checked = Settings.of(MLP.published((4, 50, 3), **settings),
                              DataShape(3, 4, 3, True))
        start = checked.start(np.random.default_rng(checked.seed))
        problem = checked.problem(0, 0)
        assert start.dtype == np.float32
        assert not start[problem.weight_count:].any()
        assert len(start) == problem.parameter_count
        return problem.split(start)

    for weight, bias in layers(momentum=0.5):
        assert 0.03 < np.abs(weight).max() <= 0.05
        assert 0 < np.abs(bias).max() <= 0.05
    for weight, bias in layers(initial="glorot"):
        bound = np.sqrt(6 / sum(weight.shape))
        assert 0.9 * bound < np.abs(weight).max() <= bound
        assert not bias.any()


def test_parameters_by_name(blobs: Blobs) -> None:
    mlp = MLP((4, 3), learning_rate=0.1, schedule=("step", 2, 0.5))
    assert MLP(**mlp.get_params()).get_params() == mlp.get_params()
    assert mlp.set_params(batch=4, device="host") is mlp
    assert mlp.batch == 4
    assert repr(mlp) == ("MLP(sizes=(4, 3), learning_rate=0.1, schedule=('step', 2, 0.5), batch=4, "
                         "device='host')")
    with pytest.raises(InputError, match=r"no parameter 'rate': expected one of sizes, hidden"):
        mlp.set_params(rate=1)
    copy = pickle.loads(pickle.dumps(mlp.fit(*blobs)))
    np.testing.assert_array_equal(copy.predict_proba(blobs[0]), mlp.predict_proba(blobs[0]))
    assert gossamer.MLP is MLP


def test_scikit_learn_takes_it(blobs: Blobs) -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    mlp = MLP.published([4, 6, 3], epochs=8, shuffle=True, device="host")
    assert clone(mlp).get_params() == mlp.get_params()
    assert cross_val_score(make_pipeline(StandardScaler(), mlp), *blobs, cv=3).min() >= 0.9
    search = GridSearchCV(mlp, {"learning_rate": [1e-6, 0.3]}, cv=2).fit(*blobs)
    assert search.best_params_ == {"learning_rate": 0.3}


@pytest.mark.parametrize(("settings", "message"), [
    ({"sizes": (32,)}, "hidden layers alone are given by hidden"),
    ({"sizes": (), "hidden": (8, 0)}, r"hidden \(8, 0\): expected one unit or more in each layer"),
    ({"sizes": (), "hidden": 8}, "hidden 8: expected whole numbers"),
    ({"sizes": (), "hidden": ""}, "hidden '': expected whole numbers"),
    ({"hidden": (8,)}, r"hidden \(8,\): sizes \(4, 3\) say all layers; give one of them"),
    ({"task": "sorting"}, "task 'sorting': expected one of classification, regression"),
    ({"optimiser": "lbfgs"}, "optimiser 'lbfgs': expected one of adam, sgd"),
    ({"optimiser": "adam", "momentum": 0.9}, "momentum 0.9: goes with the optimiser sgd"),
    ({"output": "step"}, "output 'step': expected one of linear, sigmoid, tanh"),
    ({"output": "linear", "loss": "cross_entropy"}, "output 'linear': goes with the loss"),
    ({"patience": 0}, "patience 0: expected 1 or more epochs, or None"),
    ({"keep": "first"}, "keep 'first': expected one of best, last"),
    ({"sizes": 4}, "sizes 4: expected whole numbers"),
    ({"sizes": (4, 2.5, 3)}, "expected whole numbers"),
    ({"sizes": (4, 0, 3)}, r"sizes \(4, 0, 3\): expected two layers or more of a unit or more"),
    ({"sizes": (4, 2**30, 3)}, r"sizes \(4, 1073741824, 3\): 8589934595 parameters, expected "
                               "2147483647 at most"),
    ({"activation": "cubic"}, "activation 'cubic': expected one of sigmoid, tanh, relu"),
    ({"loss": "hinge"}, "loss 'hinge': expected one of squared_error"),
    ({"learning_rate": 0}, "learning_rate 0.0: expected a number above 0"),
    ({"learning_rate": float("nan")}, "learning_rate nan: expected a finite number"),
    ({"learning_rate": "fast"}, "learning_rate 'fast': expected a finite number"),
    ({"momentum": 1.0}, "momentum 1.0: expected 0 or more, and below 1"),
    ({"weight_decay": -1}, "weight_decay -1.0: expected 0 or more"),
    ({"batch": 0}, "batch 0"), ({"batch": 1.5}, "batch 1.5: expected a whole number"),
    ({"epochs": 0}, "epochs 0: expected 1 or more"),
    ({"target_error": 0.0}, "target_error 0.0: expected a number above 0"),
    ({"initial": "zeros"}, "initial 'zeros': expected one of glorot, uniform"),
    ({"seed": -1}, "seed -1: expected 0 or more"),
    ({"schedule": "linear"}, "schedule 'linear': expected 'constant', 'inverse'"),
    *[({"schedule": ("step", *numbers)}, "expected 'constant', 'inverse'")
      for numbers in ((0, 0.5), (1.5, 0.5), (1, -1), (1, np.nan), (1,), (1, 1, 1))],
    ({"schedule": lambda epochs: -1}, "expected a factor of 0 or more for epoch 0, got -1"),
    ({"effort": "huge"}, "effort 'huge': expected one of quick, normal, max"),
    ({"algorithm": "magic"}, "algorithm 'magic': expected one of .*numpy"),
    ({"device": "tpu"}, "no device 'tpu' here")])
def test_wrong_settings(blobs: Blobs, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(gossamer.GossamerError, match=message) as error:
        MLP.published(**{"sizes": (4, 3), "device": "host", **settings}).fit(*blobs)
    assert "\n" not in str(error.value)


def test_a_schedule_by_a_function(blobs: Blobs) -> None:
    x, y = blobs
    stepped = MLP.published((4, 3), epochs=4, schedule=("step", 2, 0.25), device="host").fit(x, y)
    called: list[int] = []

    def schedule(epochs: int) -> float:
        called.append(epochs)
        return [1.0, 1.0, 0.25, 0.25][epochs]

    by_function = MLP.published((4, 3), epochs=4, schedule=schedule, device="host").fit(x, y)
    assert by_function.loss_curve_ == stepped.loss_curve_
    np.testing.assert_array_equal(by_function.coefs_[0], stepped.coefs_[0])
    assert sorted(set(called)) == [0, 1, 2, 3]
