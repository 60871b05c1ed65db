"""The samples of the verb `train`: reading, preparing and checking them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.errors import InputError, one_of
from gossamer.io import terminal
from gossamer.train import MLP
from gossamer.train.data import sources
from gossamer.train.data.columns import IMPUTES, CellRules, encoded, learnt
from gossamer.train.data.dataset import WHITE, Dataset, Preparation, prepared, split
from gossamer.train.data.samples import DataShape, found_classes

EXAMPLES = 16
"""Number of unprepared samples that the demo writes, to run the network on."""
_FAR = 16
"""Magnitude of inputs above which a notice advises to scale them."""
_MANY, _FEW = 20, 5
"""More than _MANY different labels, with fewer than _FEW samples each, may be meant as numbers to
learn: a notice says so."""
_UNLIKE = 10
"""Ratio of root mean squares above which a notice says that two sets of samples differ."""


@dataclass(frozen=True)
class TrainingData:
    """Prepared samples.

    training: the samples to train on.
    held_out: the samples to test on, or None.
    preparation: the steps that prepared the samples.
    examples: some samples before their preparation.
    """

    training: Dataset
    held_out: Dataset | None
    preparation: Preparation
    examples: np.ndarray

    @property
    def shape(self) -> DataShape:
        """How many rows, inputs and outputs the samples to train on have.

        There is an output for each class, or one output where numbers are learnt.
        """
        rows, inputs = self.training.x.shape
        labelled = self.training.labelled
        return DataShape(rows, inputs, len(self.training.names) if labelled else 1, labelled)

    @property
    def scored(self) -> Dataset:
        """The samples on which the trained network's score is computed."""
        return self.training if self.held_out is None else self.held_out


def read(source: str, validation: str | None, rules: CellRules, *, label: str, limit: int | None,
         numbers: bool, seed: int, scale: bool | None, threshold: float | None,
         pad: tuple[int, int] | None, standardise: bool) -> TrainingData:
    """Return the samples of a file or folder, prepared for training.

    validation: value of --validation, a file or a fraction of the samples.
    rules: which cells that are not numbers a .csv file may have.
    label: column of the labels in a .csv file.
    limit: the most samples to read.
    numbers: whether numbers are learnt, and not labels.
    seed: seed of the split into samples to train on and to validate on.
    scale: whether 0..255 becomes 0..1; None where neither --scale nor --no-scale is given.
    threshold: the least number that --binarise turns into 1; None without --binarise.
    pad: height and width that pictures are padded to.
    standardise: whether the network is trained on standardised numbers.
    Raises InputError where the samples cannot be read or prepared.
    """
    if rules.impute not in (None, *IMPUTES):
        raise InputError(f"--impute {rules.impute}: {one_of(rules.impute, IMPUTES)}")
    training, held_out = sources.load(source, label=label, limit=limit, numbers=numbers,
                                      rules=rules)
    fraction = None if validation is None else _fraction(validation)
    if fraction is not None:
        training, held_out = split(training, fraction, seed)
    elif validation is not None:
        samples, test_samples = sources.load(validation, label=label, limit=limit, numbers=numbers,
                                             rules=replace(rules, known=training.columns))
        held_out = test_samples or samples
        if training.y.dtype.kind == "U":  # held-out labels may have been read as numbers
            held_out = replace(held_out, y=held_out.y.astype(str))
    columns = learnt(training, rules.impute)
    training = encoded(training, columns)
    held_out = None if held_out is None else encoded(held_out, columns)
    scaled = training.pixels if scale is None else scale
    _tell_of_ranges(training, held_out, scale, scaled, standardise)
    grey = training.shape is not None and (scaled or training.pixels)
    preparation = Preparation(scaled, threshold, pad, training.shape, grey,
                              float(training.x.mean()) if grey else None, columns)
    examples = (training if held_out is None else held_out).x[:EXAMPLES]
    return TrainingData(prepared(training, preparation),
                        None if held_out is None else prepared(held_out, preparation),
                        preparation, examples)


def _fraction(validation: str) -> float | None:
    """Return the number that --validation gives; None where --validation names a file."""
    try:
        fraction: float | None = float(validation)
    except ValueError:
        fraction = None if validation else 0.0
    if fraction is not None and not 0 < fraction < 1:
        raise InputError(f"--validation {validation}: expected a fraction of the samples, above "
                         "0 and below 1, or a file")
    return fraction


def _tell_of_ranges(training: Dataset, held_out: Dataset | None, scale: bool | None,
                    scaled: bool, standardised: bool) -> None:
    """Print a notice where inputs are far beyond 1, and where the held-out ones differ much in
    magnitude.

    scale: True for --scale, False for --no-scale, else None. Only with None is there a notice of
    inputs far beyond 1.
    scaled: whether both sets of samples are divided by 255.
    standardised: whether both sets of samples are standardised.
    """
    least, greatest = float(training.x.min()), float(training.x.max())
    extent = f"{training.source}: its values range from {least:g} to {greatest:g}"
    if scale is None and not (scaled or standardised) and max(-least, greatest) > _FAR:
        advice = ("--scale maps 0..255 to 0..1" if least >= 0 and greatest <= WHITE else
                  "--standardise standardises them")
        terminal.notice(f"{extent} and are not scaled, which may hinder learning; {advice}, "
                        "--no-scale silences this notice")
    if held_out is None:
        return
    magnitudes = [_root_mean_square(data.x) for data in (training, held_out)]
    if max(magnitudes) > _UNLIKE * min(magnitudes):
        terminal.notice(f"{held_out.source}: its values range from {held_out.x.min():g} to "
                        f"{held_out.x.max():g}, those of {training.source} from {least:g} to "
                        f"{greatest:g}; both are "
                        + ("scaled from 0..255 to 0..1" if scaled else "used unscaled"))


def _root_mean_square(x: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.vdot(x, x)) / x.size)


def check(mlp: MLP, data: TrainingData) -> None:
    """Raise InputError where samples do not fit the network or each other.

    Prints a notice of outputs without samples, of labels that may be meant as numbers, and of
    samples that are sorted by class.
    """
    training, sizes = data.training, mlp.sizes
    text = ",".join(map(str, sizes))
    if not training.labelled:
        _check_inputs(sizes, data)
        if sizes[-1] != 1:
            raise InputError(f"--sizes {text}: ends in {sizes[-1]}; expected 1 output for "
                             "regression")
        return
    if len(training.names) == 1:
        raise InputError(f"{training.source}: all {len(training.y)} training samples have the "
                         f"label {training.names[0]!r}; expected two classes or more")
    if sizes[-1] == 1:
        raise InputError(f"--sizes {text}: ends in 1; expected {len(training.names)}, an output "
                         f"for each class of {training.source}")
    _check_inputs(sizes, data)
    _check_classes(mlp, training, data.held_out)
    if (training.y.dtype.kind == "i" and len(training.names) > _MANY
            and len(training.y) < _FEW * len(training.names)):
        terminal.notice(f"{training.source}: has {len(training.names)} different labels in "
                        f"{len(training.y)} samples, each of which becomes a class; --task "
                        "regression predicts them as numbers")
    # sorted labels change only between classes
    changes = int((training.y[1:] != training.y[:-1]).sum())
    if not mlp.shuffle and 1 < len(training.names) == changes + 1 < len(training.y) // 2:
        terminal.notice(f"{training.source}: the samples are sorted by class, which hinders "
                        "learning; give --shuffle")


def _check_inputs(sizes: Sequence[int], data: TrainingData) -> None:
    for dataset in (data.training, data.held_out):
        if dataset is not None and dataset.x.shape[1] != sizes[0]:
            raise InputError(_inputs_text(sizes, dataset))


def _inputs_text(sizes: Sequence[int], dataset: Dataset) -> str:
    """Return the message for samples whose number of inputs is not that of --sizes."""
    text = ",".join(map(str, sizes))
    shape = f" ({dataset.shape[0]}x{dataset.shape[1]})" if dataset.shape else ""
    side = math.isqrt(sizes[0])
    hint = (f", or --pad {side}x{side}" if dataset.shape and side * side == sizes[0]
            and side >= max(dataset.shape) else "")
    return (f"--sizes {text}: begins with {sizes[0]} inputs, but a sample of {dataset.source} has "
            f"{dataset.x.shape[1]} numbers{shape}; give --sizes "
            f"{dataset.x.shape[1]},{text.partition(',')[2]}{hint}")


def _check_classes(mlp: MLP, training: Dataset, held_out: Dataset | None) -> None:
    """Raise InputError for more classes than outputs, or a held-out label without training samples.

    Prints a notice of outputs without a class.
    """
    sizes, count = mlp.sizes, len(training.names)
    text, all_but_last = ",".join(map(str, sizes)), ",".join(map(str, sizes[:-1]))
    try:
        classes = found_classes(training.y, sizes[-1])
    except InputError:
        hint = ("; --label says which column of a .csv file has the labels"
                if count > sizes[-1] else "")
        raise InputError(f"--sizes {text}: ends in {sizes[-1]} outputs, but {training.source} has "
                         f"samples of {count} classes: give --sizes {all_but_last},{count}{hint}"
                         ) from None
    if held_out is not None:
        foreign = [name for name in held_out.names if name not in map(str, classes)]
        if foreign:
            raise InputError(f"{held_out.source}: has the label {foreign[0]!r}, which no sample of "
                             f"{training.source} has")
    if count < sizes[-1]:
        hint = f", --sizes {text},{count} hidden units too" if len(sizes) == 2 else ""
        terminal.notice(f"--sizes {text}: ends in {sizes[-1]} outputs, but {training.source} has "
                        f"samples of {count} classes; --sizes {all_but_last},{count} has an output "
                        f"for each{hint}")
