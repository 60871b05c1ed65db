"""Settings, schedules, and when training ends: what becomes of drawn ones is recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.host import HostDevice
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape, Samples, samples
from gossamer.train.loop import memory
from gossamer.train.loop.schedule import factor, name
from gossamer.train.loop.settings import Settings, given_sizes, units
from gossamer.train.loop.train_state import TrainState, Validation
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome


def _halved(epochs: int) -> float:
    return 1 / 2**epochs


def _negative_later(epochs: int) -> float:
    return 2 - epochs


def _text(epochs: int) -> Any:
    return "1" if epochs else np.float32(0.5)


class _Callable:
    def __call__(self, epochs: int) -> float:
        return 0.0


VALUES: dict[str, list[Any]] = {
    "sizes": [(), None, (3, 2), (3,), [3, 4, 2], np.array([3, 2]), (3, 2.5), 3, "32", (3, 0),
              (3, 2**30, 2), (np.int64(3), 2), (3, True), (2**15, 2**16 - 3)],
    "hidden": [None, (), (5,), [4, 3], (0,), (-1, 4), 7, "7", (1.5,), np.array([6])],
    "activation": ["relu", "sigmoid", "tanh", "linear"],
    "output": [None, "linear", "sigmoid", "tanh", "relu"],
    "loss": [None, "cross_entropy", "squared_error", "hinge"],
    "optimiser": ["adam", "sgd", "other"],
    "learning_rate": [None, 0.5, 1, 0, -1.0, np.inf, np.nan, "1", True, np.float32(0.25)],
    "schedule": ["constant", "inverse", ("step", 2, 0.5), "other", _negative_later],
    "momentum": [0.0, 0.5, 0.999, 1.0, 1, -0.1, None, np.nan],
    "weight_decay": [0, 0.25, -0.25, None, np.inf],
    "batch": [None, 1, 2, 0, -1, 1.5, np.int32(3), 300],
    "epochs": [1, 0, -1, 2.0, 200, None],
    "target_error": [None, 0.5, 0, -0.5, np.nan, "0"],
    "patience": [None, 1, 0, 10, 1.5, -1],
    "keep": ["best", "last", "first", None],
    "shuffle": [True, False, 0, "yes"],
    "standardise": [True, False, 1],
    "scale_targets": [True, False, 0],
    "initial": ["glorot", "uniform", "zeros"],
    "seed": [0, 7, None, -1, 1.5, 2**40],
}


def _of(values: dict[str, Any], shape: DataShape) -> Settings:
    return Settings.of(MLP(**values), shape)


def _settings_text(settings: Settings) -> str:
    parameters = "" if settings.problem(0, 0).parameter_count > 10**6 else digest(
        settings.start(np.random.default_rng(3)))
    fields = [as_text(value) for value in vars(settings).values()]
    weighted = settings.problem(9, 8, 2, True)
    return (f"{' '.join(fields)}; {weighted.describe()} {weighted.rows} {weighted.weighted} "
            f"{weighted.output_activation} {weighted.parameter_count} {parameters}")


def _choices() -> Iterator[dict[str, Any]]:
    """Yields every value alone, and drawn values of several settings."""
    for key, values in VALUES.items():
        yield from ({key: value} for value in values)
    rng = np.random.default_rng(6)
    for _ in range(150):
        keys = rng.permutation(list(VALUES))[:rng.integers(2, 6)].tolist()
        yield {key: VALUES[key][rng.integers(min(3, len(VALUES[key])))] for key in keys}


def _case(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value if not callable(value) else name(value)}"
                    for key, value in values.items()).replace("\n", "")


def test_settings(recorded: Recorded) -> None:
    shapes = (DataShape(150, 3, 2, True), DataShape(200, 3, 2, False), DataShape(201, 3, 2, True))
    found = {}
    for number, values in enumerate(_choices()):
        shape = shapes[number % 3]
        found[f"{number} {_case(values)}"] = outcome(
            lambda values=values, shape=shape: _of(values, shape), text=_settings_text)
    for sizes, hidden in itertools.product(VALUES["sizes"], VALUES["hidden"]):
        mlp = MLP(sizes, hidden=hidden)
        found[f"units {_case({'sizes': sizes, 'hidden': hidden})}"] = (
            f"{outcome(lambda mlp=mlp: given_sizes(mlp))}; "
            f"{outcome(lambda mlp=mlp: units(mlp, 9, 4))}")
    recorded("settings", found)


def test_targets_and_scaling(recorded: Recorded) -> None:
    x, found = np.array([[0.0, 1], [2, 1], [4, 1]]), {}
    for output, activation, labelled, value in itertools.product(
            (None, "linear", "sigmoid", "tanh"), ("relu", "sigmoid", "tanh"), (False, True),
            (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)):
        y: Any = [0, 1, 0] if labelled else [[0.5, 0.25], [0.5, value], [1, 0.5]]
        data = samples(x, y, ())
        for standardise in (False, True):
            settings = _of({"activation": activation, "output": output, "loss": "squared_error",
                            "standardise": standardise, "scale_targets": value > 0}, data.shape)
            scaling = settings.scaling(data)
            if not labelled or value in (0.0, 0.5):
                found[f"{output} {activation} {labelled} {value} {standardise}"] = (
                    outcome(lambda settings=settings, data=data: settings.check_targets(
                        data.targets))
                    + f" {digest([scaling.x, scaling.y])}")
    recorded("targets", found)


SCHEDULES: dict[str, Any] = {
    "constant": "constant", "inverse": "inverse", "half": ("step", 2, 0.5),
    "list": ["step", 1, 0.5], "whole float": ("step", 2.0, 3), "fraction": ("step", 1.5, 0.5),
    "0 epochs": ("step", 0, 0.5), "half an epoch": ("step", 0.5, 0.5), "by 0": ("step", 1, 0),
    "by -1": ("step", 1, -1), "huge": ("step", 1, 1e300), "inf": ("step", 1, np.inf),
    "nan": ("step", np.nan, 1), "texts": ("step", "1", "2"), "two": ("step", 1),
    "four": ("step", 1, 2, 3), "other": ("steps", 1, 2), "word": "linear", "none": None,
    "number": 0.5, "halved": _halved, "negative later": _negative_later, "text": _text,
    "object": _Callable(), "set": {"step", 1, 2}}


def test_schedules(recorded: Recorded) -> None:
    found = {}
    for case, schedule in SCHEDULES.items():
        for epochs in (0, 1, 2, 3, 4, 7):
            text = outcome(lambda schedule=schedule, epochs=epochs: factor(schedule, epochs))
            # a set is written in another order in each process
            found[f"{case}, {epochs}"] = text if case != "set" else text[:20]
        if case not in ("set", "none", "number"):
            found[f"{case}, name"] = outcome(lambda schedule=schedule: name(schedule))
    rate = _of({"learning_rate": 0.5, "optimiser": "sgd", "momentum": 0.25, "weight_decay": 0.125,
                "schedule": ("step", 2, 0.5)}, DataShape(3, 2, 2, True))
    found["numbers"] = as_text([rate.numbers(epochs) for epochs in range(6)])
    recorded("schedules", found)


def test_when_training_ends(recorded: Recorded) -> None:
    """States are given drawn losses, of which some are equal and some differ by the least gain."""
    found, rng = {}, np.random.default_rng(2)
    losses = (1.0, 1.0001, 0.9999, 0.99985, 0.9998, 0.5, 0.49995, 2.0)
    for case in range(160):
        keep, patience = ("best", "last")[case % 2], (None, 1, 2, 3)[case // 2 % 4]
        settings = _of({"sizes": (2, 1), "keep": keep, "patience": patience, "batch": 1,
                        "epochs": 6 + case % 2, "target_error": (None, 0.5, 0.4)[case % 3],
                        "optimiser": ("adam", "sgd")[case // 3 % 2]}, DataShape(3, 2, 1, False))
        state, validates, lines = TrainState.start(settings), case % 5 < 3, []
        while not state.ended:
            state.epochs_done += 1
            loss = float(rng.choice(losses))
            state.curve.append(loss)
            state.parameters = np.full_like(state.parameters, state.epochs_done)
            if validates:
                validation = Validation(float(rng.choice(losses)), float(rng.choice([0.5, 0.75])))
                state.note_validation(validation)
                lines.append(f"{loss:g} {validation.loss:g} {validation.score:g}")
            else:
                state.note_loss()
                lines.append(f"{loss:g}")
            lines[-1] += f" idle {state.idle} least {state.least:g} kept {state.kept_epoch}"
        other = state.under(_of(
            {"sizes": (2, 1), "batch": 1, "optimiser": ("adam", "sgd")[case % 2],
             "momentum": 0.5 * (case % 2)}, DataShape(3, 2, 1, False)))
        found[f"{case} {keep} {patience} {settings.target_error}"] = "; ".join([
            *lines, f"{'reached ' * state.reached}{'out ' * state.out_of_patience}"
            f"{state.kept_weights.tolist()} of {state.parameters.size} goes on from "
            f"{digest([other.parameters, other.curve, other.idle, other.epochs_done])}"])
        state.failure = "diverged"
        state.settings = _of({"learning_rate": 0.5, "schedule": ("constant", "inverse")[case % 2]},
                             DataShape(3, 2, 1, False))
        if case < 8:
            found[f"{case} failure"] = outcome(state.check) + str(state.ended)
    scores = (0.5, 0.75)
    for first, second in itertools.product(itertools.product(losses[:5], scores), repeat=2):
        better = Validation(*first).is_better(Validation(*second))
        found[f"{first} better than {second}"] = str(better)
    recorded("train_states", found)


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    files = tmp_path / "meminfo", tmp_path / "v2", tmp_path / "v1"
    monkeypatch.setattr(memory, "_MEMINFO", files[0])
    monkeypatch.setattr(memory, "_LIMITS", files[1:])

    class OtherDevice(HostDevice):
        on_processors = False

    found = {}
    for meminfo, new, old in itertools.product(
            ("", "MemTotal: 9 kB\nMemAvailable: 2 kB\n", "MemAvailable: 0 kB\n", "\nMemFree: 3\n"),
            ("max\n", "700\n", "3000", "0"), ("", "1500\n", "-1")):
        for path, text in zip(files, (meminfo, new, old), strict=True):
            path.write_text(text)
        free = memory.available()
        known = free is not None and free < 10**6
        found[f"available {meminfo!r} {new!r} {old!r}".replace(": ", "=")] = (
            str(free) if known else "all")
        for device, networks, sizes in itertools.product(
                (HostDevice(), OtherDevice()), (1, 2), ((2, 3, 2), (4, 6, 1), (2, 80))):
            settings = _of({"sizes": sizes, "optimiser": "sgd"}, DataShape(3, 2, 2, True))
            if new in ("700\n", "0"):
                case = f"{free if known else 'all'} {device.on_processors} {networks} {sizes}"
                found[case] = outcome(
                    lambda settings=settings, device=device, networks=networks: memory.check(
                        settings, device, networks))
    recorded("memory", found)


def test_data_shapes() -> None:
    data = Samples(np.zeros((3, 2)), np.zeros((3, 4)))
    assert data.shape == DataShape(3, 2, 4, False)
