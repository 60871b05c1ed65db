from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.errors import InputError
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings
from tests.golden import Golden

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


WRONG: list[dict[str, Any]] = [
    *[{"sizes": sizes} for sizes in ((32,), 4, (4, 2.5, 3), (4, 0, 3), (4, 2**30, 3))],
    *[{"sizes": (), "hidden": hidden} for hidden in ((8, 0), 0, "")], {"hidden": (8,)},
    {"optimiser": "adam", "momentum": 0.9}, {"output": "linear", "loss": "cross_entropy"},
    *[{name: value} for name, values in {
        "task": ["sorting"], "optimiser": ["lbfgs"], "output": ["step"], "patience": [0],
        "keep": ["first"], "activation": ["cubic"], "loss": ["hinge"],
        "learning_rate": [0, float("nan"), "fast"], "momentum": [1.0], "weight_decay": [-1],
        "batch": [0, 1.5], "epochs": [0], "target_error": [0.0], "initial": ["zeros"], "seed": [-1],
        "schedule": ["linear", *(("step", *numbers) for numbers in (
            (0, 0.5), (1.5, 0.5), (1, -1), (1, np.nan), (1,), (1, 1, 1)))],
        "effort": ["huge"]}.items() for value in values]]


def test_wrong_settings(blobs: Blobs, golden: Golden) -> None:
    def fit(settings: dict[str, Any]) -> MLP:
        return MLP.published(**{"sizes": (4, 3), "device": "host", **settings}).fit(*blobs)

    golden.refusals("training: settings", {str(each): partial(fit, each) for each in WRONG})
    # what there is depends on the machine
    for settings, message in (
            ({"schedule": lambda epochs: -1}, "expected a factor of 0 or more for epoch 0, got -1"),
            ({"algorithm": "magic"}, "algorithm 'magic': expected one of .*numpy"),
            ({"device": "tpu"}, "no device 'tpu' here")):
        with pytest.raises(gossamer.GossamerError, match=message):
            fit(settings)


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
