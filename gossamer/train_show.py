"""What the verb `train` shows while it trains, and what it tells and writes at the end."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from gossamer import show
from gossamer.device.base import Device
from gossamer.output_file import replacing
from gossamer.train import MLP, Preparation, Progress, curve
from gossamer.train.dataset import Dataset

SAMPLES = "samples"
"""The key of the demo's file of samples to run the network on."""
SOME = 16
"""How many these are."""
_MOST_LINES = 20


class Follower:
    """Keeps what it is told of each pass, and shows it."""

    def __init__(self, bar: Bar, epochs: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.seconds_read = 0.0
        self.started = time.perf_counter()
        self._bar = bar
        self._task = bar.add_task("reading the samples", total=None)
        self._epochs = epochs

    def read(self) -> None:
        """The samples are there, and training begins."""
        self.seconds_read = time.perf_counter() - self.started
        self._bar.update(self._task, description="training", total=self._epochs)

    def __call__(self, progress: Progress) -> None:
        held = progress.validation_accuracy
        row = {"pass": progress.epoch, "error": progress.loss,
               "accuracy": progress.accuracy if held is None else None,
               "held_out_error": progress.validation_loss, "held_out_accuracy": held,
               "samples_per_second": progress.samples_per_second}
        self.rows.append(row)
        share = row["accuracy"] if held is None else held
        self._bar.update(
            self._task, completed=progress.epoch,
            description=f"error {progress.loss:.4g}, accuracy {share:.2%}, "
                        f"{show.human(progress.samples_per_second)} samples/s")

    def stop(self) -> None:
        self._bar.stop()


@contextmanager
def following(epochs: int) -> Iterator[Follower]:
    """A bar on stderr, where that is a terminal; gone when done."""
    console = Console(stderr=True)
    with Bar(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
             TextColumn("{task.description}", markup=False), console=console, transient=True,
             disable=not console.is_terminal) as bar:
        yield Follower(bar, epochs)


def facts(mlp: MLP, place: Device, training: Dataset, held: Dataset | None,
          preparation: Preparation, follow: Follower) -> dict[str, Any]:
    """What was done and found, as JSON takes it."""
    tested = training if held is None else held
    right = int((mlp.predict(tested.x) == tested.y).sum())
    settings = {name: value for name, value in mlp.get_params().items() if name != "device"}
    return {
        "data": training.source, "samples": len(training.x), "shape": training.shape,
        "classes": [str(name) for name in mlp.classes_],
        "held_out": None if held is None else held.source,
        "held_out_samples": 0 if held is None else len(held.x), "prepared": {
            "scale": preparation.scale, "threshold": preparation.threshold,
            "pad": preparation.pad},
        "settings": settings, "device": mlp.device_, "description": place.description,
        "algorithm": mlp.algorithm_, "seconds_read": follow.seconds_read,
        "seconds_trained": sum(len(training.x) / row["samples_per_second"]
                               for row in follow.rows),
        "seconds": time.perf_counter() - follow.started, "passes": mlp.n_iter_,
        "errors": mlp.loss_curve_, "rows": follow.rows,
        "tested_on": tested.source, "tested": len(tested.x), "right": right,
        "accuracy": right / len(tested.x),
    }


def write(facts: Mapping[str, Any], outputs: Mapping[str, Path | None],
          some: np.ndarray) -> None:
    """The curve, the report and some samples to try the network on, where they are wanted. Raises
    InputError where one cannot be written."""
    picture, report = outputs["--curve"], outputs["--report"]
    if picture is not None:
        _replace(picture, curve.png(_title(facts), facts["errors"], _shares(facts)))
    if report is not None:
        _replace(report, (json.dumps(facts, indent=1) + "\n").encode())
    if (samples := outputs.get(SAMPLES)) is not None:
        content = io.BytesIO()
        np.save(content, some)
        _replace(samples, content.getvalue())


def print_facts(facts: Mapping[str, Any], outputs: Mapping[str, Path | None]) -> None:
    how = facts["prepared"]
    steps = [word for word, done in (
        ("scaled to 0..1", how["scale"]),
        (f"binarised at {how['threshold']:g}" if how["threshold"] is not None else "",
         how["threshold"] is not None),
        (f"padded to {show.shape_text(how['pad'])}" if how["pad"] else "", how["pad"])) if done]
    print(f"data: {facts['samples']} samples of {facts['data']}, {len(facts['classes'])} classes"
          + "".join(f", {step}" for step in steps))
    print(f"network: {_title(facts)}")
    print(f"device: {facts['device']} ({facts['description']}), algorithm {facts['algorithm']}")
    kind = "test" if facts["held_out"] is not None else "training"
    if facts["rows"]:
        _print_passes(facts["rows"], f"{kind} accuracy")
    taught = facts["samples"] * len(facts["rows"])
    rate = taught / facts["seconds_trained"] if facts["seconds_trained"] else math.nan
    made = (f"{taught} samples trained in {facts['seconds_trained']:.1f} s, {show.human(rate)} a "
            "second" if taught else "all were made before, none was left")
    print(f"{facts['passes']} passes; {made}; read in {facts['seconds_read']:.1f} s, "
          f"{facts['seconds']:.1f} s in all")
    for path in outputs.values():
        if path is not None:
            print(f"written: {path}")
    if (samples := outputs.get(SAMPLES)) is not None:
        print(f"try: gossamer run {outputs['--output']} --input {samples} --top 1")
    print(f"{kind} accuracy: {facts['accuracy']:.2%} ({facts['right']} of {facts['tested']} "
          f"samples of {facts['tested_on']})")


def _print_passes(rows: list[dict[str, Any]], share: str) -> None:
    """A line a pass, of many passes only some."""
    step = -(-len(rows) // _MOST_LINES) or 1
    shown = [*rows[step - 1:-1:step], *rows[-1:]]
    key = "held_out_accuracy" if any(row["held_out_accuracy"] is not None for row in rows) \
        else "accuracy"
    show.print_table(
        {"pass": "pass", "error": "error", "share": share, "rate": "samples/s"},
        [{"pass": row["pass"], "error": f"{row['error']:.6f}", "share": f"{row[key]:.2%}",
          "rate": show.human(row["samples_per_second"])} for row in shown])


def _title(facts: Mapping[str, Any]) -> str:
    settings = facts["settings"]
    return (f"{'-'.join(map(str, settings['sizes']))}, {settings['activation']}, "
            f"{settings['loss']}, learning rate {settings['learning_rate']:g}, "
            f"batch {settings['batch']}")


def _shares(facts: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """The accuracies of the passes, by what they are of."""
    found = {what: {row["pass"]: row[key] for row in facts["rows"] if row[key] is not None}
             for what, key in (("training", "accuracy"), ("held out", "held_out_accuracy"))}
    return {what: points for what, points in found.items() if points}


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
