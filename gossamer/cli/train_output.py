"""What the verb `train` shows while it trains, and what it tells and writes at the end."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from gossamer.cli import show
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.io.output_files import replacing
from gossamer.train import MLP, Preparation, Progress
from gossamer.train.data.dataset import Dataset
from gossamer.train.export import curve
from gossamer.train.network import JUDGED

SAMPLES = "samples"
"""The key of the demo's file of samples to run the network on."""
SOME = 16
"""How many these are."""
_MOST_LINES = 20


Head = Callable[[str, str], list[str]]
"""The lines above the rows, of the names of the device and the algorithm that train."""


class EpochReporter:
    """Keeps what it is told of each epoch, and shows it: as rows on stdout at once (live), or some
    of them when stop() ends the bar, or (live None) by the bar alone."""

    def __init__(self, bar: Bar, epochs: int, live: bool | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.seconds_read = 0.0
        self.started = time.perf_counter()
        self._bar = bar
        self._task = bar.add_task("reading the samples", total=None)
        self._epochs = epochs
        self._live = live
        self._head: Head
        self._share = ""
        self._lines: list[str] = []

    def read(self, head: Head, held: bool, samples: int) -> None:
        """The samples are there, and training begins. held: whether samples are
        tested on that are not trained on. samples: how many are trained on."""
        self.seconds_read = time.perf_counter() - self.started
        self._bar.update(self._task, description="training", total=self._epochs)
        self._head = head
        self._share = "test accuracy" if held else "training accuracy" + (
            f" (of {JUDGED} samples)" if samples > JUDGED else "")

    def __call__(self, progress: Progress) -> None:
        held = progress.validation_accuracy
        row = {"epoch": progress.epoch, "error": progress.loss,
               "accuracy": progress.accuracy if held is None else None,
               "held_out_error": progress.validation_loss, "held_out_accuracy": held,
               "samples_per_second": progress.samples_per_second}
        self.rows.append(row)
        if len(self.rows) == 1:
            self._lines = self._head(progress.device, progress.algorithm)
        if self._live:
            try:
                self._print([row])
            except OSError:  # what nobody reads any more is no reason to lose the network
                self._live = None
        share = row["accuracy"] if held is None else held
        self._bar.update(
            self._task, completed=progress.epoch,
            description=f"error {progress.loss:.4g}, accuracy {share:.2%}, "
                        f"{show.human(progress.samples_per_second)} samples/s")

    def stop(self) -> None:
        """Ends the bar; shows the epochs that were made where none was shown yet."""
        self._bar.stop()
        if self._live is False and self.rows:
            self._live = None
            step = -(-len(self.rows) // _MOST_LINES)
            self._print([*self.rows[step - 1:-1:step], self.rows[-1]])

    def _print(self, rows: list[dict[str, Any]]) -> None:
        width = max(4, len(str(self._epochs)))
        lines, self._lines = self._lines, []
        if lines:
            lines.append(f"{'epoch':>{width}}  {'error':>10}  {self._share}  samples/s")
        for row in rows:
            share = row["accuracy" if row["held_out_accuracy"] is None else "held_out_accuracy"]
            lines.append(f"{row['epoch']:>{width}}  {row['error']:>10.6f}  "
                         f"{share:>{len(self._share)}.2%}  "
                         f"{show.human(row['samples_per_second']):>9}")
        print("\n".join(lines), flush=True)


@contextmanager
def following(epochs: int, rows: bool) -> Iterator[EpochReporter]:
    """A bar on stderr, where that is a terminal; gone when done. rows: whether the epochs are
    shown on stdout too: each at once, but behind the bar where both are terminals."""
    console = Console(stderr=True)
    live = not (console.is_terminal and sys.stdout.isatty()) if rows else None
    # what reads the pipe may write to the terminal that the bar is on
    with Bar(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
             TextColumn("{task.description}", markup=False), console=console, transient=True,
             redirect_stdout=False,
             disable=not console.is_terminal or bool(live and _into_pipe())) as bar:
        follower = EpochReporter(bar, epochs, live)
        try:
            yield follower
        finally:
            follower.stop()


def _into_pipe() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def head(mlp: MLP, place: Device, training: Dataset, preparation: Preparation) -> Head:
    """What is trained on what, and where."""
    steps = [word for word, done in (
        ("scaled to 0..1", preparation.scale),
        (f"binarised at {preparation.threshold or 0:g}", preparation.threshold is not None),
        (f"padded to {show.shape_text(preparation.pad or ())}", preparation.pad)) if done]
    data = (f"data: {len(training.x)} samples of {training.source}, {mlp.sizes[-1]} classes"
            + "".join(f", {step}" for step in steps))
    return lambda device, algorithm: [
        data, f"network: {_title(mlp.get_params())}",
        f"device: {device} ({place.description}), algorithm {algorithm}"]


def facts(mlp: MLP, place: Device, training: Dataset, held: Dataset | None,
          preparation: Preparation, follow: EpochReporter) -> dict[str, Any]:
    """What was done and found, as JSON takes it."""
    tested = training if held is None else held
    right = int((mlp.predict(tested.x) == tested.y).sum())
    settings = {name: value for name, value in mlp.get_params().items() if name != "device"}
    # of epochs that were made before a --resume only the error is known
    before = [{"epoch": number, "error": error, "accuracy": None, "held_out_error": None,
               "held_out_accuracy": None, "samples_per_second": None}
              for number, error in enumerate(mlp.loss_curve_[:mlp.n_iter_ - len(follow.rows)], 1)]
    goal = mlp.target_error
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
        "seconds": time.perf_counter() - follow.started, "epochs_done": mlp.n_iter_,
        "errors": mlp.loss_curve_, "rows": [*before, *follow.rows],
        "goal_reached": None if goal is None else mlp.loss_curve_[-1] <= goal,
        "tested_on": tested.source, "tested": len(tested.x), "right": right,
        "accuracy": right / len(tested.x),
    }


def write(mlp: MLP, preparation: Preparation, facts: Mapping[str, Any],
          outputs: Mapping[str, Path | None],
          some: np.ndarray) -> tuple[list[Path], dict[str, str]]:
    """The network, the curve, the report and some samples to try the network on, where they are
    wanted. Returns the files that were written, and of each other output why not."""
    def content(output: str) -> bytes:
        if output == "--curve":
            return curve.png(_title(facts["settings"]), facts["errors"], _shares(facts))
        if output == "--report":
            return (json.dumps(facts, indent=1) + "\n").encode()
        file = io.BytesIO()
        np.save(file, some)
        return file.getvalue()

    written, faults = [], {}
    for output, path in outputs.items():
        if path is None:
            continue
        try:
            if output == "--output":
                mlp.save_onnx(path, preparation)
            else:
                with replacing(path) as file:
                    file.write(content(output))
        except InputError as error:
            faults[output] = str(error)
        else:
            written.append(path)
    return written, faults


def print_facts(facts: Mapping[str, Any], outputs: Mapping[str, Path | None],
                written: Sequence[Path]) -> None:
    """What stands below the rows of the epochs."""
    kind = "test" if facts["held_out"] is not None else "training"
    taught = facts["samples"] * sum(row["samples_per_second"] is not None
                                    for row in facts["rows"])
    rate = taught / facts["seconds_trained"] if facts["seconds_trained"] else math.nan
    made = (f"{taught} samples trained in {facts['seconds_trained']:.1f} s, {show.human(rate)} a "
            "second" if taught else "all were made before, none was left")
    print(f"{facts['epochs_done']} epochs; {made}; read in {facts['seconds_read']:.1f} s, "
          f"{facts['seconds']:.1f} s in all")
    if (goal := facts["settings"]["target_error"]) is not None:
        print(f"error {facts['errors'][-1]:.4g} after {facts['epochs_done']} of "
              f"{facts['settings']['epochs']} epochs: the goal of {goal:g} is "
              + ("" if facts["goal_reached"] else "not ") + "reached")
    for path in written:
        print(f"written: {path}")
    samples = outputs.get(SAMPLES)
    if samples in written and outputs["--output"] in written:
        print(f"try: gossamer run {outputs['--output']} --input {samples} --top 1")
    print(f"{kind} accuracy: {facts['accuracy']:.2%} ({facts['right']} of {facts['tested']} "
          f"samples of {facts['tested_on']})")


def _title(settings: Mapping[str, Any]) -> str:
    return (f"{'-'.join(map(str, settings['sizes']))}, {settings['activation']}, "
            f"{settings['loss']}, learning rate {settings['learning_rate']:g}, "
            f"batch {settings['batch']}")


def _shares(facts: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """The accuracies of the epochs, by what they are of."""
    found = {what: {row["epoch"]: row[key] for row in facts["rows"] if row[key] is not None}
             for what, key in (("training", "accuracy"), ("held out", "held_out_accuracy"))}
    return {what: points for what, points in found.items() if points}
