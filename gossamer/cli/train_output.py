"""The output of the verb `train`: progress, facts and files."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from gossamer.cli.train_data import TrainingData
from gossamer.device.base import Device
from gossamer.errors import InputError, cut
from gossamer.io.output_files import replacing
from gossamer.io.text import human, shape_text
from gossamer.plan.candidate import counted
from gossamer.train import MLP, Preparation, Progress, curve
from gossamer.train.data.samples import DataShape
from gossamer.train.network import JUDGED

SAMPLES = "samples"
"""The key of the demo's file of example samples in the mapping `outputs`.

The other keys are names of options.
"""
_MOST_LINES = 20
"""Maximum number of epoch rows printed after a training with a progress bar."""

TRAINING, VALIDATION, TEST = "training", "validation", "test"
"""The roles of the scored samples: used for training, for choosing the epoch to keep, or for
neither."""

Head = Callable[[str, str], list[str]]
"""Function that takes the names of the device and the algorithm.

It returns the lines above the epoch rows.
"""


class EpochReporter:
    """Recorder and display of the progress of epochs.

    rows: the progress of each epoch, as in the report.
    seconds_read: seconds for reading the samples.
    started: start of reading, by time.perf_counter().
    bar: the progress bar on stderr, which shows the latest epoch.
    epochs: number of epochs to train.
    live: True to print a row on stdout after each epoch, False to print the rows of some epochs
    when stop() ends the bar, None to print no rows.
    """

    def __init__(self, bar: Bar, epochs: int, live: bool | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.seconds_read = 0.0
        self.started = time.perf_counter()
        self._bar = bar
        self._task = bar.add_task("reading the samples", total=None)
        self._epochs = epochs
        self._live = live
        self._head: Head
        self._accuracy_heading = ""
        self._labelled = True
        self._lines: list[str] = []

    def begin_training(self, head: Head, role: str, data: DataShape) -> None:
        """Record the end of reading and the start of training.

        head: function that returns the lines above the first row.
        role: the role of the scored samples.
        data: shape of the training samples.
        """
        self.seconds_read = time.perf_counter() - self.started
        self._bar.update(self._task, description="training", total=self._epochs)
        self._head = head
        self._labelled = data.labelled
        name = score_name(data.labelled)
        self._accuracy_heading = f"{role} {name}" + (
            f" (of {JUDGED} samples)" if role == TRAINING and data.rows > JUDGED else "")

    def __call__(self, progress: Progress) -> None:
        held_out = progress.validation_score
        score = progress.score if held_out is None else held_out
        row = {"epoch": progress.epoch, "error": progress.loss,
               "accuracy": score if held_out is None else None,
               "held_out_error": progress.validation_loss, "held_out_accuracy": held_out,
               "samples_per_second": progress.samples_per_second}
        self.rows.append(row)
        if len(self.rows) == 1:
            self._lines = self._head(progress.device, progress.algorithm)
        if self._live:
            try:
                self._print([row])
            except OSError:  # continue training if stdout was closed
                self._live = None
        self._bar.update(
            self._task, completed=progress.epoch,
            description=f"error {progress.loss:.4g}, {score_name(self._labelled)} "
                        f"{score_text(score, self._labelled)}, "
                        f"{human(progress.samples_per_second)} samples/s")

    def stop(self) -> None:
        """End the bar, and print the rows of some epochs unless already printed."""
        self._bar.stop()
        if self._live is False and self.rows:
            self._live = None
            step = -(-len(self.rows) // _MOST_LINES)
            self._print([*self.rows[step - 1:-1:step], self.rows[-1]])

    def _print(self, rows: list[dict[str, Any]]) -> None:
        width = max(4, len(str(self._epochs)))
        lines, self._lines = self._lines, []
        if lines:
            lines.append(f"{'epoch':>{width}}  {'error':>10}  {self._accuracy_heading}  samples/s")
        for row in rows:
            accuracy = row["accuracy" if row["held_out_accuracy"] is None
                           else "held_out_accuracy"]
            lines.append(f"{row['epoch']:>{width}}  {row['error']:>10.6f}  "
                         f"{score_text(accuracy, self._labelled):>{len(self._accuracy_heading)}}  "
                         f"{human(row['samples_per_second']):>9}")
        print("\n".join(lines), flush=True)


@contextmanager
def following(epochs: int, rows: bool) -> Iterator[EpochReporter]:
    """Show a progress bar during a `with` block if stderr is a terminal.

    rows: whether to print rows for epochs on stdout too. If stdout and stderr are terminals, the
    rows of some epochs are printed at the end; otherwise each row is printed when its epoch ends.
    """
    console = Console(stderr=True)
    live = not (console.is_terminal and sys.stdout.isatty()) if rows else None
    # no bar if rows are written to a pipe: the process that reads the pipe may itself write to the
    # terminal
    with Bar(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
             TextColumn("{task.description}", markup=False), console=console, transient=True,
             redirect_stdout=False,
             disable=not console.is_terminal or bool(live and _into_pipe())) as bar:
        reporter = EpochReporter(bar, epochs, live)
        try:
            yield reporter
        finally:
            reporter.stop()


def _into_pipe() -> bool:
    """Return whether stdout is a pipe."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def role(mlp: MLP, data: TrainingData) -> str:
    """Return the role of the scored samples."""
    if data.held_out is None:
        return TRAINING
    return VALIDATION if mlp.keep == "best" else TEST


def head(mlp: MLP, trained_on: Device, data: TrainingData) -> Head:
    """Return a function that describes the samples, the network and the device."""
    training, preparation = data.training, data.preparation
    steps = [step for step, applies in (
        ("scaled to 0..1", preparation.scale),
        (f"binarised at {preparation.threshold or 0:g}", preparation.threshold is not None),
        (f"padded to {shape_text(preparation.pad or ())}", preparation.pad),
        ("standardised", mlp.standardise)) if applies]
    kinds = f"{mlp.sizes[-1]} classes" if training.labelled else "regression"
    data_line = (f"data: {len(training.x)} samples of {training.source}, {kinds}"
                 + "".join(f", {step}" for step in steps))
    texts = [f"{column.name or index}: {cut(', '.join(column.values))}"
             for index, column in enumerate(preparation.columns, 1) if column.values is not None]
    text_lines = [f"one-hot encoded: {'; '.join(texts)}"] if texts else []
    return lambda device, algorithm: [
        data_line, *text_lines, f"network: {_title(mlp.get_params())}",
        f"device: {device} ({trained_on.description}), algorithm {algorithm}"]


def facts(mlp: MLP, trained_on: Device, data: TrainingData,
          reporter: EpochReporter) -> dict[str, Any]:
    """Return the settings and results of training, for the report and --json."""
    training, held_out, scored = data.training, data.held_out, data.scored
    preparation = data.preparation
    right = int((mlp.predict(scored.x) == scored.y).sum()) if scored.labelled else None
    settings = {name: value for name, value in mlp.get_params().items() if name != "device"}
    # for epochs trained before --resume, only the error is known
    before = [{"epoch": number, "error": error, "accuracy": None, "held_out_error": None,
               "held_out_accuracy": None, "samples_per_second": None}
              for number, error in enumerate(mlp.loss_curve_[:mlp.n_iter_ - len(reporter.rows)], 1)]
    goal = mlp.target_error
    return {
        "data": training.source, "samples": len(training.x), "shape": training.shape,
        "classes": [str(name) for name in mlp.classes_] if scored.labelled else None,
        "held_out": None if held_out is None else held_out.source,
        "held_out_samples": 0 if held_out is None else len(held_out.x), "prepared": {
            "scale": preparation.scale, "threshold": preparation.threshold,
            "pad": preparation.pad, "columns": [asdict(column) for column in preparation.columns]},
        "settings": settings, "device": mlp.device_, "description": trained_on.description,
        "algorithm": mlp.algorithm_, "seconds_read": reporter.seconds_read,
        "seconds_trained": sum(len(training.x) / row["samples_per_second"]
                               for row in reporter.rows),
        "seconds": time.perf_counter() - reporter.started, "epochs_done": mlp.n_iter_,
        "errors": mlp.loss_curve_, "rows": [*before, *reporter.rows],
        "kept_epoch": mlp.kept_epoch_,
        "goal_reached": None if goal is None else mlp.loss_curve_[-1] <= goal,
        "scored_on": scored.source, "scored_as": role(mlp, data), "scored": len(scored.x),
        "right": right,
        "accuracy": mlp.score(scored.x, scored.y),
    }


def write(mlp: MLP, preparation: Preparation, facts: Mapping[str, Any],
          outputs: Mapping[str, Path | None],
          examples: np.ndarray) -> tuple[list[Path], dict[str, str]]:
    """Write the output files: network, curve, report and example samples.

    outputs: the files, by the names of their options or SAMPLES. No file is written for None.
    Returns the written files, and the reason for each output that could not be written, by the
    output's name.
    """
    def content(output: str) -> bytes:
        if output == "--curve":
            return curve.png(_title(facts["settings"]), facts["errors"], facts["scored_as"],
                             _scores(facts["rows"]), of_labels=facts["classes"] is not None)
        if output == "--report":
            return (json.dumps(facts, indent=1) + "\n").encode()
        file = io.BytesIO()
        np.save(file, examples)
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
    """Print the results of training below the epoch rows."""
    trained = facts["samples"] * sum(row["samples_per_second"] is not None
                                     for row in facts["rows"])
    rate = trained / facts["seconds_trained"] if facts["seconds_trained"] else math.nan
    work = (f"{counted(trained, 'sample')} trained in {facts['seconds_trained']:.1f} s, "
            f"{human(rate)} per second" if trained else "all of them before --resume")
    print(f"{counted(facts['epochs_done'], 'epoch')}; {work}; "
          f"read in {facts['seconds_read']:.1f} s, {facts['seconds']:.1f} s in total")
    if (goal := facts["settings"]["target_error"]) is not None:
        print(f"error {facts['errors'][-1]:.4g} after {facts['epochs_done']} of "
              f"{facts['settings']['epochs']} epochs: the target of {goal:g} is "
              + ("" if facts["goal_reached"] else "not ") + "reached")
    if facts["epochs_done"] < facts["settings"]["epochs"] and not facts["goal_reached"]:
        print(f"stopped early: no improvement in {counted(facts['settings']['patience'], 'epoch')}")
    if facts["scored_as"] == VALIDATION:
        print(f"kept: epoch {facts['kept_epoch']}, the best on {facts['scored_on']}; the "
              f"{score_name(facts['classes'] is not None)} on other samples may be lower")
    for path in written:
        print(f"written: {path}")
    samples = outputs.get(SAMPLES)
    if samples in written and outputs["--output"] in written:
        print(f"try: gossamer run {outputs['--output']} --input {samples} --top 1")
    labelled, name = facts["classes"] is not None, facts["scored_as"]
    print(f"{name} {score_name(labelled)}: {score_text(facts['accuracy'], labelled)} ("
          + (f"{facts['right']} of " if labelled else "")
          + f"{facts['scored']} samples of {facts['scored_on']})")


def score_name(labelled: bool) -> str:
    """Return the name of the score: accuracy for labels, R^2 for regression."""
    return "accuracy" if labelled else "R^2"


def score_text(score: float, labelled: bool) -> str:
    return f"{score:.2%}" if labelled else f"{score:.4f}"


def _title(settings: Mapping[str, Any]) -> str:
    """Return the network and its training settings in one line."""
    return (f"{'-'.join(map(str, settings['sizes']))}, {settings['activation']}, "
            f"{settings['loss']}, {settings['optimiser']}, learning rate "
            f"{settings['learning_rate']:g}, batch {settings['batch']}")


def _scores(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the known scores by their epochs."""
    scores = {row["epoch"]: row["accuracy" if row["held_out_accuracy"] is None
                                else "held_out_accuracy"] for row in rows}
    return {epoch: score for epoch, score in scores.items() if score is not None}
