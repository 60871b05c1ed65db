"""Settings and states of trainings, and networks that do not fit the memory."""

from __future__ import annotations

import pickle
import re
from functools import partial
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io import limits
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_state import TrainState, Validation
from gossamer.train.sweep import sweep
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
            ({"schedule": lambda epochs: -1}, "a factor of 0 or more after 0 epochs, got -1"),
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


LOSSES = [1.0, 1 + 2**-14, 1 - 2**-14, 1 - 2**-13, 0.5]
"""Of these, only the last two improve on 1 by the least gain, 0.0001."""


def plain(results: list[list[float]], by_score: bool, patience: int | None) -> tuple[int, int]:
    """Return the last epoch and the kept one. results: the training loss, the score and the
    validation loss of each epoch. by_score: whether the epoch of the best validation is kept."""
    best, best_epoch, epoch = (-1.0, np.inf), 0, 0
    for epoch, (loss, *validation) in enumerate(results, 1):
        score, loss_of_score = validation if by_score else (0, loss)
        if score > best[0] or (score == best[0] and loss_of_score <= best[1] - 1e-4):
            best, best_epoch = (score, loss_of_score), epoch
        if epoch - best_epoch == patience or loss == 0.5:
            break
    return epoch, best_epoch if by_score else epoch


@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("patience", [None, 1, 2, 3])
@pytest.mark.parametrize("validated", [False, True])
def test_the_end_and_the_kept_epoch(keep: str, patience: int | None, validated: bool) -> None:
    rng = np.random.default_rng(0)
    settings = Settings.of(MLP(hidden=(), keep=keep, patience=patience, epochs=8,
                               target_error=0.5), DataShape(3, 2, 1, False))
    for _ in range(30):
        state = TrainState.start(settings)
        results = np.stack([rng.choice(values, 8) for values in (LOSSES, [0.5, 0.75], LOSSES)], 1)
        while not state.ended:
            loss, score, validation_loss = results[state.epochs_done]
            state.epochs_done += 1
            state.curve.append(loss)
            state.parameters = np.full_like(state.parameters, state.epochs_done)
            if validated:
                state.note_validation(Validation(validation_loss, score))
            else:
                state.note_loss()
        last, kept = plain(results.tolist(), validated and keep == "best", patience)
        assert state.epochs_done == last
        assert {state.kept_epoch, *state.kept_weights.tolist()} == {kept}


X, Y = np.zeros((4, 2), np.float32), np.arange(4) % 2


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Paths of the files that say how much memory there is; they do not exist yet."""
    paths = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(limits, "_MEMINFO", paths[0])
    monkeypatch.setattr(limits, "_LIMITS", paths[1:])
    return paths


def test_what_is_available(files):
    assert limits.available_memory() == find("host").limits.memory_bytes
    files[0].write_text("MemTotal:  90 kB\nMemAvailable:    5 kB\n")
    assert limits.available_memory() == 5120
    files[1].write_text("max\n")
    assert limits.available_memory() == 5120
    files[1].write_text("4096\n")
    assert limits.available_memory() == 4096


def test_too_large_a_network(files):
    """A 2-3-2 network has 17 parameters, in five copies of four bytes each."""
    mlp = MLP.published((2, 3, 2), device="host", epochs=1)
    files[1].write_text("340")
    mlp.fit(X, Y)
    files[1].write_text("339")
    message = (r"sizes \(2, 3, 2\): training 17 parameters needs 340 bytes \(5 copies\), but 339 "
               "bytes of memory are available; use fewer units")
    for train in (MLP.published((2, 3, 2), device="host").fit, mlp.partial_fit):
        with pytest.raises(InputError, match=message):
            train(X, Y)


def test_folds_and_velocities_count(files):
    """All networks of a sweep are held at once: a 2-3-2 network with momentum has 34 numbers."""
    needed = []
    for folds in (2, 4):
        files[1].write_text("1000")
        with pytest.raises(InputError, match=rf"training {folds} networks with up to 34 parameters "
                                             r"takes \d+ bytes, 64 of them for the samples"
                           ) as info:
            _swept(folds)
        needed.append(int(re.search(r"takes (\d+)", str(info.value))[1]))
        files[1].write_text(str(needed[-1] - 1))
        with pytest.raises(InputError, match=f"but {needed[-1] - 1} bytes of memory"):
            _swept(folds)
        files[1].write_text(str(needed[-1]))
        assert len(_swept(folds).networks) == folds
    # the samples are held once
    assert needed[1] - 64 == 2 * (needed[0] - 64)


def _swept(folds):
    return sweep(MLP.published((2, 3, 2), device="host", momentum=0.5, epochs=1), {}, X, Y,
                 folds=folds)
