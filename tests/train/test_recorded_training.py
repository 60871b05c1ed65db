"""What small trainings give is recorded: epochs, kept epochs, warnings, errors, predictions.

The host computes in float64 here, so that the digits that are recorded are the same on all
machines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.train import many_on_ray, sweep, train_many
from gossamer.train.loop import train_loop
from tests.recorded import Recorded
from tests.recorded.outcomes import outcome
from tests.train.frames import Frame
from tests.train.small import X, Y, numbers_text, small_mlp, trained_text

pytestmark = pytest.mark.usefixtures("exact")


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
            mlp = small_mlp(**values)
            found[f"{index} {kind} {validation} {weights is None}"] = outcome(
                lambda mlp=mlp, x=x, kind=kind, pair=pair, weights=weights: mlp.fit(
                    x, Y[kind], weights, validation=pair), hidden=tmp_path, text=trained_text) + (
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
        first = outcome(partial(small_mlp(keep=keep).fit, X, Y[kind], validation=pair,
                                on_epoch=told, checkpoint=file), hidden=tmp_path, text=trained_text)
        resumed = outcome(partial(small_mlp(keep=keep, epochs=5).fit, X, Y[kind], validation=pair,
                                  checkpoint=file, resume=True), hidden=tmp_path, text=trained_text)
        other = outcome(partial(small_mlp(keep=keep).fit, X, Y[kind], validation=(X, Y[kind]),
                                checkpoint=file, resume=True), hidden=tmp_path, text=trained_text)
        found[f"{keep} {validates} {stop} {kind}"] = " / ".join([*lines, first, resumed, other])
    found["no file"] = outcome(lambda: small_mlp().fit(X, Y["labels"], resume=True))
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
            mlp = small_mlp(**settings[name])
            texts = [outcome(lambda mlp=mlp, first=first: mlp.partial_fit(*calls[first]),
                             text=lambda mlp: "fine")]
            mlp.set_params(**settings[later])
            texts.append(outcome(
                lambda mlp=mlp, second=second: mlp.partial_fit(*calls[second]),
                text=lambda mlp, second=second: trained_text(mlp, calls[second][0])))
            found[f"{first}, {second}, {name}, {later}"] = "; ".join(texts)
    recorded("trainings_in_parts", found)


def _rows(result: Any) -> str:
    keys = ("config", "fold", "epochs", "kept_epoch", "state", "is_trained")
    lines = ["{} {} {} {} {} {}".format(*(row[key] for key in keys)) + (
        f" {row['loss']:.3g} {_score(row['train_accuracy'])} {_score(row['validation_accuracy'])}")
        for row in result.rows]
    best = outcome(lambda: result.networks.index(result.best))
    return " / ".join([*lines, f"best {best}", str(result.scores.shape),
                       numbers_text(result.scores, 2)])


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def test_many_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                       recorded: Recorded) -> None:
    base = small_mlp(epochs=3, patience=None)
    configs: dict[str, list[Any]] = {
        "one": [base], "rates": sweep(base, {"learning_rate": [0.125, 0.5], "seed": [0, 1]}),
        "unlike": [base, dict(hidden=(2,), epochs=2, device="host"), small_mlp(epochs=1),
                   small_mlp(standardise=True, patience=1)],
        "diverging": [small_mlp(learning_rate=1e30, optimiser="sgd"), small_mlp(target_error=9.0)],
        "all diverge": sweep(small_mlp(optimiser="sgd"), {"learning_rate": [1e30, 1e31]}),
        "none": [], "number": [3], "unknown": [{"layers": 3}],
        "wrong": [base, small_mlp(momentum=3.0)], "sized": [small_mlp(sizes=(3, 2))]}
    found = {}
    for (name, many), kind, folds in itertools.product(
            configs.items(), ("labels", "numbers"), (None, 1, 2, 3, 12, 13, 2.5)):
        if folds in (1, 12, 13, 2.5) and name != "one":
            continue
        found[f"{name}, {kind}, {folds} folds"] = outcome(
            lambda many=many, kind=kind, folds=folds: train_many(many, X, Y[kind], folds=folds),
            text=_rows)
        if folds is None:
            found[f"{name}, {kind}, validated"] = outcome(
                lambda many=many, kind=kind: train_many(
                    many, X, Y[kind], validation=(X + 0.5, Y[kind]), sample_weight=[1, 2] * 6),
                text=_rows)
    for index, values in enumerate(({"resume": True}, {"folds": 2, "validation": (X, Y["labels"])},
                                    {"resume": True, "checkpoint": tmp_path / "none"},
                                    {"checkpoint": tmp_path / "no" / "folder"})):
        found[f"wrong {index}"] = outcome(
            lambda values=values: train_many([base], X, Y["labels"], **values),
            hidden=tmp_path, text=_rows)
    step = train_loop.TrainLoop.step
    for stop, folds in itertools.product((1, 2, 3, 4, 5), (None, 2)):
        folder, begun = tmp_path / f"{stop}{folds}", SimpleNamespace(epochs=0)

        def stopped(self: Any, begun: Any = begun, stop: int = stop) -> float:
            begun.epochs += 1
            if begun.epochs == stop:
                raise KeyboardInterrupt
            return step(self)

        monkeypatch.setattr(train_loop.TrainLoop, "step", stopped)
        many = [base, small_mlp(hidden=(2,), epochs=2), small_mlp(epochs=1)]
        with pytest.raises(KeyboardInterrupt) as caught:
            train_many(many, X, Y["labels"], folds=folds, checkpoint=folder)
        monkeypatch.setattr(train_loop.TrainLoop, "step", step)
        names = sorted(path.name for path in folder.iterdir())
        resumed = outcome(lambda folds=folds, folder=folder, many=many: train_many(
            many, X, Y["labels"], folds=folds, checkpoint=folder, resume=True),
            hidden=tmp_path, text=_rows)
        notes = " ".join(caught.value.__notes__).replace(str(folder), "FOLDER")
        result: Any = vars(caught.value)["result"]
        found[f"stopped {stop} {folds}"] = f"{_rows(result)} | {names} {notes} | {resumed}"
    recorded("trainings_of_many", found)


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
            {"folds": 2}), hidden=tmp_path,
            text=lambda pair: f"{[row['config'] for row in pair[0]]} {' '.join(pair[1])}")
        found[f"{count} {address} {folder} {resume}"] = f"{text} from {' | '.join(calls)}"
    recorded("cluster_shares", found)
