"""Reading, preparation and checks of the samples of the verb `train`."""

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
"""Number of unprocessed samples that the demo writes as example inputs."""
_FAR = 16
"""Magnitude of inputs above which a notice recommends scaling."""
_MANY, _FEW = 20, 5
"""Thresholds of the notice that labels may be meant as regression targets.

The notice is printed for more than _MANY different labels with fewer than _FEW samples per label on
average.
"""
_UNLIKE = 10
"""Ratio of the root mean squares of two data sets above which a notice says that they differ."""


@dataclass(frozen=True)
class TrainingData:
    """Prepared samples.

    training: the training samples.
    held_out: the validation or test samples, or None.
    preparation: the preprocessing steps that were applied.
    examples: some samples before preprocessing.
    """

    training: Dataset
    held_out: Dataset | None
    preparation: Preparation
    examples: np.ndarray

    @property
    def shape(self) -> DataShape:
        """The numbers of rows, inputs and outputs of the training samples.

        There is one output per class, or a single one for regression.
        """
        rows, inputs = self.training.x.shape
        labelled = self.training.labelled
        return DataShape(rows, inputs, len(self.training.names) if labelled else 1, labelled)

    @property
    def scored(self) -> Dataset:
        """The samples on which the trained network is scored."""
        return self.training if self.held_out is None else self.held_out


def read(source: str, validation: str | None, rules: CellRules, *, label: str, limit: int | None,
         numbers: bool, seed: int, scale: bool | None, threshold: float | None,
         pad: tuple[int, int] | None, standardise: bool) -> TrainingData:
    """Return the samples of a file or folder, prepared for training.

    validation: value of --validation, a file or a fraction of the samples.
    rules: treatment of empty cells and text cells of a .csv file.
    label: column of the labels in a .csv file.
    limit: maximum number of samples to read.
    numbers: whether the samples have regression targets instead of labels.
    seed: seed of the split into training and validation samples.
    scale: whether 0..255 becomes 0..1; None if neither --scale nor --no-scale is set.
    threshold: the smallest number that --binarise rounds to 1; None without --binarise.
    pad: height and width to which pictures are padded.
    standardise: whether the network is trained on standardised inputs.
    Raises InputError if the samples cannot be read or prepared.
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
        if training.y.dtype.kind == "U":  # held-out labels may have been parsed as numbers
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
    """Return the fraction of --validation; None if --validation is a file."""
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
    """Print notices about the ranges of inputs.

    One notice is for large training inputs. The other is for held-out inputs whose magnitude is far
    from that of the training inputs.

    scale: True for --scale, False for --no-scale, None without either. The notice about large
    inputs is printed only for None.
    scaled: whether both data sets are divided by 255.
    standardised: whether both data sets are standardised.
    """
    least, greatest = float(training.x.min()), float(training.x.max())
    extent = f"{training.source}: its values range from {least:g} to {greatest:g}"
    if scale is None and not (scaled or standardised) and max(-least, greatest) > _FAR:
        advice = ("use --scale to map 0..255 to 0..1" if least >= 0 and greatest <= WHITE else
                  "use --standardise to standardise them")
        terminal.notice(f"{extent} and are not scaled, which may hinder learning; {advice}, or "
                        "--no-scale to silence this notice")
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
    """Raise InputError if samples do not match the network or each other.

    Prints notices about outputs without samples, labels that may be meant as regression targets,
    and samples sorted by class.
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
                        f"{len(training.y)} samples, and each label becomes a class; use --task "
                        "regression to predict numbers instead")
    # the label changes N - 1 times in samples of N classes that are sorted by class
    changes = int((training.y[1:] != training.y[:-1]).sum())
    if not mlp.shuffle and 1 < len(training.names) == changes + 1 < len(training.y) // 2:
        terminal.notice(f"{training.source}: the samples are sorted by class, which hinders "
                        "learning; use --shuffle")


def _check_inputs(sizes: Sequence[int], data: TrainingData) -> None:
    """Raise InputError if samples do not match the inputs of --sizes."""
    text, side = ",".join(map(str, sizes)), math.isqrt(sizes[0])
    for dataset in (data.training, data.held_out):
        if dataset is None or dataset.x.shape[1] == sizes[0]:
            continue
        shape = f" ({dataset.shape[0]}x{dataset.shape[1]})" if dataset.shape else ""
        hint = (f", or --pad {side}x{side}" if dataset.shape and side * side == sizes[0]
                and side >= max(dataset.shape) else "")
        raise InputError(
            f"--sizes {text}: begins with {sizes[0]} inputs, but a sample of {dataset.source} has "
            f"{dataset.x.shape[1]} numbers{shape}; use --sizes "
            f"{dataset.x.shape[1]},{text.partition(',')[2]}{hint}")


def _check_classes(mlp: MLP, training: Dataset, held_out: Dataset | None) -> None:
    """Raise InputError if classes and outputs do not match.

    There must not be more classes than outputs, and each held-out label must occur in the training
    samples. Prints a notice about outputs without a class.
    """
    sizes, count = mlp.sizes, len(training.names)
    text, all_but_last = ",".join(map(str, sizes)), ",".join(map(str, sizes[:-1]))
    try:
        classes = found_classes(training.y, sizes[-1])
    except InputError:
        hint = ("; select the label column of a .csv file with --label"
                if count > sizes[-1] else "")
        raise InputError(f"--sizes {text}: ends in {sizes[-1]} outputs, but {training.source} has "
                         f"samples of {count} classes: use --sizes {all_but_last},{count}{hint}"
                         ) from None
    if held_out is not None:
        foreign = [name for name in held_out.names if name not in map(str, classes)]
        if foreign:
            raise InputError(f"{held_out.source}: has the label {foreign[0]!r}, which does not "
                             f"occur in {training.source}")
    if count < sizes[-1]:
        hint = f", and --sizes {text},{count} has hidden units too" if len(sizes) == 2 else ""
        terminal.notice(f"--sizes {text}: ends in {sizes[-1]} outputs, but {training.source} has "
                        f"samples of {count} classes; --sizes {all_but_last},{count} has one "
                        f"output per class{hint}")
