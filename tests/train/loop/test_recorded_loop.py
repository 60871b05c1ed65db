"""The training loop with a trainer that gives drawn losses and parameters, and its checkpoints:
what becomes of them is recorded."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape, Samples
from gossamer.train.loop import checkpoint, train_loop
from gossamer.train.loop.checkpoint import Checkpointer
from gossamer.train.loop.settings import Settings
from gossamer.train.loop.train_loop import TrainLoop
from gossamer.train.loop.train_state import Best, TrainState, Validation
from tests.recorded import Recorded, as_text, digest
from tests.recorded.outcomes import outcome


class _Trainer:
    """Gives losses and parameters as they are drawn, and keeps what it was given.

    script: for each epoch the losses, (networks, samples) float32, and the parameters after it.
    """

    script: list[tuple[np.ndarray, np.ndarray]]

    def __init__(self, problem: Any, data: Any, parameters: np.ndarray, choice: Any) -> None:
        self.history = [parameters.copy()]
        self.given: list[str] = []
        self.begun = self.accepted = 0

    def run(self, order: np.ndarray, settings: np.ndarray) -> np.ndarray:
        losses, parameters = self.script[self.begun]
        self.given.append(f"{digest(order)[:4]} {as_text(settings.ravel().tolist())}")
        self.history.append(parameters)
        self.begun += 1
        # float64 adds these losses without rounding, so that the mean is the same in any order
        with np.errstate(all="ignore"):
            sums = losses.sum(axis=1, dtype=np.float64).astype(np.float32)
        return sums.astype(np.float64) / losses.shape[1]

    def losses(self) -> np.ndarray:
        return self.script[self.begun - 1][0]

    def accept(self) -> None:
        self.accepted = self.begun

    def parameters(self) -> np.ndarray:
        return self.history[self.accepted].copy()

    def before(self, epochs: int) -> np.ndarray:
        return self.history[self.begun - epochs].copy()


def _script(rng: np.random.Generator, networks: int, samples: int, count: int
            ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields drawn epochs, of which some have huge or infinite losses, or parameters that are not
    finite. The losses are multiples of 1/8, so that their sums are exact."""
    for epoch in range(8):
        losses = rng.integers(1, 20 - epoch, (networks, samples)).astype(np.float32) / 8
        parameters = np.full((networks, count), epoch + 1, np.float32)
        for network in range(networks):
            odd = rng.random()
            if odd < 0.25:
                place = rng.integers(samples)
                losses[network, place] = rng.choice([2**20, 2**21, 2**24, 2**27, 1e38, 3e38, np.inf,
                                                     np.nan])
                if odd < 0.05:
                    losses[network, place:] = 3e38
            elif odd < 0.32:
                parameters[network, rng.integers(count)] = np.nan
        yield losses, parameters


def _settings(**values: Any) -> Settings:
    return Settings.of(MLP((2, 3), **values), DataShape(13, 2, 3, values.get("loss") is None))


def test_epochs(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    monkeypatch.setattr(train_loop, "Trainer", _Trainer)
    monkeypatch.setattr(train_loop, "choose", lambda problem, device, *given: SimpleNamespace(
        device=device, algorithm=SimpleNamespace(name="scripted"), problem=problem))
    rng, found = np.random.default_rng(9), {}
    for case in range(130):
        networks, samples = int(rng.integers(1, 4)), 13
        batch = (1, 2, 9, 10, 11, 13)[case % 6]
        states = [TrainState.start(_settings(
            batch=batch, epochs=int(rng.integers(1, 7)), seed=int(rng.integers(2)),
            shuffle=bool(rng.integers(2)), patience=(None, 1, 2)[rng.integers(3)],
            keep=("best", "last")[rng.integers(2)], learning_rate=float(rng.integers(1, 4)),
            schedule=("constant", "inverse")[rng.integers(2)], optimiser="sgd", momentum=0.5,
            weight_decay=float(rng.integers(2)) / 8,
            target_error=(None, 1.0)[rng.integers(2)],
            loss=None if case % 3 else "squared_error")) for _ in range(networks)]
        if case % 4 == 3:
            states[0].epochs_done, states[0].curve, states[0].first = 1, [2.0], 1.0
        targets = np.eye(3, dtype=np.float32)[np.arange(samples) % 3] * (8 if case % 7 else 0)
        _Trainer.script = list(_script(rng, networks, samples, states[0].parameters.size))
        validates = case % 5 in (1, 2)
        loop = TrainLoop(
            states, Samples(np.ones((samples, 2), np.float32), targets),
            [rng.permutation(samples) for _ in states], find("host"), None, None,
            (lambda state: Validation(float(state.parameters[0]), float(state.curve[-1])))
            if validates else None)
        lines: list[str] = []
        while loop.active and len(lines) < 7:
            loop.step()
            if case % 3 == 1:
                loop.fetch_parameters()
            lines.append(" ".join(
                f"{state.epochs_done}{'!' * bool(state.failure)} {digest(state.curve)[:4]} "
                f"{np.nan_to_num(state.parameters[:2]).sum():.4g}" for state in states))
        loop.fetch_parameters()
        trainer: Any = loop._trainer
        found[f"{case} {networks} networks, batch {batch}{', validated' * validates}"] = " / ".join(
            [*lines, digest(trainer.given), *(
                f"{state.failure or 'fine'} {as_text(state.first)} {digest(state.parameters)[:4]} "
                f"{state.rng.integers(99)} {as_text(state.curve[-2:])}" for state in states)])
    recorded("train_loop", found)


def test_losses_that_count_as_diverged(recorded: Recorded) -> None:
    found = {}
    for outputs, factor, loss in itertools.product((1, 2, 3, 8), (0.0, 0.25, 1.0, 8.0),
                                                   ("cross_entropy", "squared_error")):
        problem = BackpropProblem((2, outputs), 4, 4, loss=loss)
        targets = np.full((4, outputs), factor, np.float32)
        targets[0] = 2 * factor
        found[f"untrained {outputs} {factor} {loss}"] = (
            f"{train_loop._untrained_loss(problem, targets):.9g}")
    for first, untrained in itertools.product((0.0, 0.5, 2.0, np.inf, np.nan), (0.0, 1.0, np.inf)):
        loop: Any = SimpleNamespace(_untrained_loss=untrained)
        found[f"bound {first} {untrained}"] = f"{TrainLoop._bound(loop, first):.9g}"
    for losses, bound in itertools.product(
            ([1, 2, 3], [4, 1, 1], [1, np.nan, 1], [1, 1, np.inf], [2, 2, 2], [9, 0, 0]),
            (0.5, 1.0, 2.0, 3.0, 9.0)):
        bad = train_loop._first_bad_sample(np.array(losses, np.float32), bound)
        found[f"first bad of {losses} beyond {bound}"] = str(bad)
    recorded("losses_that_diverge", found)


def test_what_is_told_of_epochs(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """Times are left out."""
    x, found, told = np.ones((6, 2), np.float32), {}, []
    monkeypatch.setattr(train_loop.debug, "show", told.append)
    for level in range(4):
        monkeypatch.setattr(train_loop.debug, "level", lambda level=level: level)
        told.clear()
        TrainLoop([TrainState.start(_settings())], Samples(x, np.ones((6, 3), np.float32)),
                  [np.arange(6)], find("host")).step()
        found[f"level {level}"] = " ".join(
            f"{text.rpartition(': ')[0]} {text.split()[-2:]}" for text in told)
    recorded("told_of_epochs", found)
    assert TrainLoop._per_sample(SimpleNamespace(problem=SimpleNamespace(  # type: ignore[arg-type]
        samples=4, networks=2)), 0.5) == 62500


def _state(best: bool = True) -> TrainState:
    settings = _settings(batch=2, epochs=5)
    state = TrainState.start(settings)
    state.parameters = np.arange(state.parameters.size, dtype=np.float32)
    state.epochs_done, state.curve, state.first = 2, [1.0, 0.5], 1.5
    state.validation, state.idle, state.least = Validation(0.25, 0.75), 1, 0.5
    if best:
        state.best = Best(1, Validation(0.25, 1.0), np.ones(9, np.float32))
    return state


def _state_text(state: TrainState) -> str:
    return (f"{state.epochs_done} {state.curve} {as_text(state.first)} {state.idle} {state.least} "
            f"{as_text(state.validation)} {digest(state.parameters)} {state.rng.integers(99)} "
            f"{as_text(state.best)} keeps {state.kept_epoch} {digest(state.kept_weights)[:4]}")


HEADERS: dict[str, list[Any]] = {
    "epochs_done": [0, 1, 3, "2", 2.0, True, None], "first": [None, 1, "1"],
    "progress": [[0, 1.0], [-1, 1.0], [1, 1], ["1", 1.0], [1], None],
    "validation": [None, {"loss": 1, "score": 1.0}, {"loss": 1.0}, {"loss": 1.0, "score": "1"},
                   {"loss": 1.0, "score": 1.0, "more": 1.0}, [], 3],
    "best": [None, [], [0, {"loss": 1.0, "score": 1.0}], [1, {"loss": 1.0, "score": 1.0}],
             [2, {"loss": 1.0, "score": 1.0}], [3, {"loss": 1.0, "score": 1.0}],
             [1.0, {"loss": 1.0, "score": 1.0}], [1, {"loss": 1.0}], [1], [1, None]],
    "data": ["other", None], "rng": [{}, None]}
ARRAYS: dict[str, list[np.ndarray]] = {
    "parameters": [np.zeros(27, np.float32), np.zeros(28), np.zeros((28, 1), np.float32),
                   np.zeros(28, np.float32)],
    "curve": [np.zeros(1), np.zeros(3), np.zeros(2, np.float32), np.zeros((2, 1)), np.zeros(2)],
    "best": [np.zeros(8, np.float32), np.zeros(9), np.zeros(0, np.float32)]}


def _changed(path: Path, header: dict[str, Any], **arrays: np.ndarray) -> None:
    """Writes a checkpoint with another header and other arrays, and the right hash."""
    checkpoint.save(path, _state(), "digest")
    magic, length = checkpoint._MAGIC, hashlib.sha256().digest_size
    with np.load(io.BytesIO(path.read_bytes()[len(magic) + length:])) as file:
        parts = dict(file)
    whole = {**json.loads(parts["header"].tobytes()), **header}
    parts.update(arrays, header=np.frombuffer(json.dumps(whole).encode(), np.uint8))
    content = io.BytesIO()
    np.savez(content, **parts)
    data = content.getvalue()
    path.write_bytes(magic + hashlib.sha256(data).digest() + data)


def test_checkpoints(tmp_path: Path, recorded: Recorded) -> None:
    path, found = tmp_path / "c", {}
    settings = _state().settings

    def loaded(settings: Settings = settings) -> str:
        return outcome(lambda: checkpoint.load(path, settings, "digest"),
                       hidden=tmp_path, text=_state_text)

    for key, values in HEADERS.items():
        for value in values:
            _changed(path, {key: value})
            case = f"{key}={value}".replace(": ", "=")
            # Python's own words may differ between versions
            found[case] = loaded().partition(" (")[0] if key in ("rng", "validation") else loaded()
    for key, arrays in ARRAYS.items():
        for array in arrays:
            _changed(path, {}, **{key: array})
            found[f"{key} {array.dtype}{array.shape}"] = loaded()
    for epochs in (-1, 0, 1, 2, 3):
        _changed(path, {"epochs_done": epochs}, curve=np.zeros(max(0, epochs)))
        found[f"{epochs} epochs and losses"] = loaded()
    checkpoint.save(path, _state(), "digest")
    found["right"] = loaded()
    for index, values in enumerate((
            {"epochs": 9}, {"target_error": 0.5}, {"patience": 3}, {"keep": "last"},
            {"learning_rate": 0.5}, {"batch": 3}, {"seed": 1}, {"shuffle": False},
            {"schedule": "inverse"}, {"loss": "squared_error"})):
        found[f"other settings {index}"] = loaded(_settings(**{"batch": 2, "epochs": 5, **values}))
    content = path.read_bytes()
    for end in (0, 5, len(checkpoint._MAGIC) - 2, len(checkpoint._MAGIC) - 1,
                len(checkpoint._MAGIC), len(checkpoint._MAGIC) + 31, len(content) - 1):
        path.write_bytes(content[:end])
        found[f"cut to {end - len(content) if end > 100 else end}"] = (
            f"{loaded()}; {outcome(lambda: bool(Checkpointer(path, '')), hidden=tmp_path)}")
    for start in (b"gossamer checkpoint 2\n", b"gossamer checkpoint", b"gossamer checkpoinT 3\n",
                  b"other"):
        path.write_bytes(start)
        found[f"begins {start.decode().strip()}"] = (
            f"{loaded()}; {outcome(lambda: bool(Checkpointer(path, '')), hidden=tmp_path)}")
    for place in (tmp_path, tmp_path / "no" / "c", tmp_path / "new"):
        found[f"at {place.name if place != tmp_path else 'DIR'} {place.parent.name == 'no'}"] = (
            outcome(lambda place=place: bool(Checkpointer(place, "")), hidden=tmp_path))
        found[f"from {place.name if place != tmp_path else 'DIR'} {place.parent.name == 'no'}"] = (
            outcome(lambda place=place: checkpoint.load(place, settings, ""), hidden=tmp_path))
    recorded("checkpoints", found)


def test_when_checkpoints_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      recorded: Recorded) -> None:
    """Epochs follow each other, of which some are the same and some cannot be written."""
    found = {}
    save = checkpoint.save
    for case, fails in enumerate(itertools.product((False, True), repeat=4)):
        folder = tmp_path / str(case)
        folder.mkdir()
        now = SimpleNamespace(fails=False, written=[])
        checkpointer, lines = Checkpointer(folder / "c", "digest"), []

        def saved(path: Path, state: TrainState, digest: str, now: Any = now) -> None:
            now.written.append(state.epochs_done)
            save(path if not now.fails else path / "no", state, digest)

        monkeypatch.setattr(checkpoint, "save", saved)
        for epoch, now.fails in zip((0, 1, 2, 2, 3, 4), (False, *fails, False), strict=True):
            state = _state(False)
            state.epochs_done = epoch
            lines.append(outcome(lambda checkpointer=checkpointer, state=state: checkpointer.write(
                state), hidden=folder).replace("None", "."))
        found[f"{fails}"] = f"{now.written} {' '.join(lines)}"
    recorded("checkpoints_written", found)


def test_how_often_checkpoints_are_due(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    clock = SimpleNamespace(now=5.0)
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: clock.now)
    throttle, texts = checkpoint.Throttle(), []
    for seconds in (0.0, 0.25, 0.0, 1.0, 0.5):
        with throttle:
            clock.now += seconds
        for wait in (0.0, 4.75, 0.25, 5.0, 10.0):
            clock.now += wait
            texts.append(f"{wait:g} {throttle.due}")
    recorded("checkpoints_due", {"after": ", ".join(texts)})
