"""From the text of the options of `train` to values, and what is wrong with them: said before the
work where it can be."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import typer

from gossamer.cli import show, train_output
from gossamer.errors import GossamerError, InputError
from gossamer.io import output_files
from gossamer.plan.tune.tuner import EFFORTS
from gossamer.train import MLP
from gossamer.train.data.dataset import Dataset
from gossamer.train.data.preparation import WHITE
from gossamer.train.data.samples import found_classes
from gossamer.train.loop import memory
from gossamer.train.loop.checkpoint import OtherSettings
from gossamer.train.loop.schedule import factor
from gossamer.train.loop.settings import Settings
from gossamer.train.mlp import device_of

_FAR = 16
"""From where on numbers are far beyond 1."""
_UNLIKE = 10
"""How many times as large as others numbers are that are unlike them."""
_SUFFIXES = {"--output": ".onnx", "--curve": ".png", "--report": ".json"}


def check_data(mlp: MLP, training: Dataset, held: Dataset | None) -> None:
    """Raises InputError where the data do not fit the network, or the held-out samples the
    others; tells of outputs that stay without samples, and of an order that training suffers
    from."""
    sizes = mlp.sizes
    text = ",".join(map(str, sizes))
    if len(training.names) == 1:
        raise InputError(f"{training.source}: the label of all {len(training.y)} samples that are "
                         f"trained on is {training.names[0]!r}; expected two classes or more")
    if sizes[-1] == 1:
        raise InputError(f"--sizes {text}: ends in 1; expected an output for each class, of which "
                         f"{training.source} has {len(training.names)}")
    for part in (training, held):
        if part is not None and part.x.shape[1] != sizes[0]:
            shape = f" ({part.shape[0]}x{part.shape[1]})" if part.shape else ""
            side = math.isqrt(sizes[0])
            hint = (f", or --pad {side}x{side}" if part.shape and side * side == sizes[0]
                    and side >= max(part.shape) else "")
            raise InputError(f"--sizes {text}: begins with {sizes[0]} inputs, a sample of "
                             f"{part.source} has {part.x.shape[1]} numbers{shape}; give --sizes "
                             f"{part.x.shape[1]},{text.partition(',')[2]}{hint}")
    count = len(training.names)
    before = ",".join(map(str, sizes[:-1]))
    try:
        classes = found_classes(training.y, sizes[-1])
    except InputError:
        hint = ("; of a .csv file --label says which column they are in"
                if count > sizes[-1] else "")
        raise InputError(f"--sizes {text}: ends in {sizes[-1]} outputs, {training.source} has "
                         f"samples of {count} classes: --sizes {before},{count}{hint}") from None
    if held is not None:
        foreign = [name for name in held.names if name not in map(str, classes)]
        if foreign:
            raise InputError(f"{held.source}: has the label {foreign[0]!r}, which no sample of "
                             f"{training.source} has")
    if count < sizes[-1]:
        hint = f", --sizes {text},{count} hidden units too" if len(sizes) == 2 else ""
        show.notice(f"--sizes {text}: ends in {sizes[-1]} outputs, {training.source} has samples "
                    f"of {count} classes; --sizes {before},{count} has an output for each{hint}")
    changes = int((training.y[1:] != training.y[:-1]).sum())
    if not mlp.shuffle and 1 < len(training.names) == changes + 1 < len(training.y) // 2:
        show.notice(f"{training.source}: the samples are sorted by class, from which a network "
                    "learns little; --shuffle mixes them")


def tell_of_ranges(training: Dataset, held: Dataset | None, scale: bool | None,
                   scaled: bool) -> None:
    """Tells of numbers that nobody chose to leave unscaled, and of samples to test on whose numbers
    are unlike those trained on. scale: what was asked for. scaled: what is done to both."""
    least, greatest = float(training.x.min()), float(training.x.max())
    reach = f"{training.source}: its numbers reach from {least:g} to {greatest:g}"
    if scale is None and not scaled and max(-least, greatest) > _FAR:
        advice = ("--scale takes 0..255 to 0..1" if least >= 0 and greatest <= WHITE else
                  "bring them nearer to 0 (--scale only takes 0..255 to 0..1)")
        show.notice(f"{reach} and are not scaled, from which a network may learn little; {advice}, "
                    "--no-scale leaves them as they are")
    if held is None:
        return
    sizes = [_size(part.x) for part in (training, held)]
    if max(sizes) > _UNLIKE * min(sizes):
        show.notice(f"{held.source}: its numbers reach from {held.x.min():g} to "
                    f"{held.x.max():g}, those of {training.source} from {least:g} to "
                    f"{greatest:g}; both are "
                    + ("taken from 0..255 to 0..1" if scaled else "taken as they are"))


def _size(x: np.ndarray) -> float:
    """Of the numbers, as the root of their mean square."""
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.vdot(x, x)) / x.size)


def check_settings(mlp: MLP) -> None:
    """Raises InputError that names the option."""
    if not mlp.sizes:
        raise InputError("give --sizes: the units of all layers from inputs to classes, like "
                         "784,32,10 for pictures of 28x28 and ten classes")
    if mlp.effort is not None and mlp.effort not in EFFORTS:
        raise InputError(f"--effort {mlp.effort}: expected one of {', '.join(EFFORTS)}")
    units = ",".join(map(str, mlp.sizes))
    if len(mlp.sizes) < 2:
        raise InputError(f"--sizes {units}: expected the units of all layers from inputs to "
                         "classes, like 784,32,10; hidden layers alone are not enough")
    try:
        memory.check(Settings.of(mlp), device_of(mlp))
    except InputError as error:
        name, _, rest = str(error).replace(f"sizes {mlp.sizes}", f"sizes {units}").partition(" ")
        raise InputError(f"{_option(name)} {rest}") from None


def in_options(error: GossamerError) -> str:
    """What training says, in the words of the command."""
    if isinstance(error, OtherSettings):
        there, here = (_setting(error.key, value) for value in (error.there, error.here))
        return (f"{error.path}: is the checkpoint of a network with {there}, this one has {here}: "
                f"give {there}; or give another file, or leave --resume out to begin anew")
    return str(error).replace("leave resume out", "leave --resume out").replace(
        "a learning_rate below", "an --lr below").replace("numbers in x", "numbers in the samples")


def _option(name: str) -> str:
    return "--lr" if name == "learning_rate" else f"--{name.replace('_', '-')}"


def _setting(name: str, value: Any) -> str:
    """A setting as the option that gives it."""
    if name == "shuffle":
        return "--shuffle" if value else "--no-shuffle"
    if name == "sizes":
        value = ",".join(map(str, value))
    elif name == "schedule" and value.startswith("("):
        value = ":".join(map(str, ast.literal_eval(value)))
    return f"{_option(name)} {value}"


def check_outputs(outputs: Mapping[str, Path | None], read: Sequence[str | None]) -> None:
    """Raises InputError where a file could not be written: said before the work."""
    for option, path in outputs.items():
        if path is None:
            continue
        output_files.check_file(option, path, _SUFFIXES.get(option), filter(None, read))
        twin = next((other for other, file in outputs.items() if other != option and file
                     and file.absolute() == path.absolute()), None)
        if twin is not None:
            raise InputError(f"{option} {path}: is the file of {twin} too; give another name")


def check_resume(checkpoint: Path | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise InputError("--resume: from which file? give --checkpoint FILE too")
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise InputError(f"--checkpoint {checkpoint}: is there already; --resume goes on from it, "
                         "to begin anew remove it or give another name")


def demo_outputs(folder: Path, given: Mapping[str, Path | None],
                 context: typer.Context) -> dict[str, Path | None]:
    """Files in a folder, where no others are given. The folder is made; and removed when the
    command ends, where it was made and is empty."""
    if folder.suffix == _SUFFIXES["--output"] and not folder.is_dir():
        raise InputError(f"--output {folder}: expected a folder, for the demo writes several files")
    try:
        if not folder.is_dir():
            folder.mkdir()
            context.call_on_close(lambda: _remove_empty(folder))
    except OSError as error:
        raise InputError(f"--output {folder}: cannot be made: {error.strerror or error}; expected "
                         "a folder for the demo's files") from None
    return {"--output": folder / "model.onnx",
            "--curve": given["--curve"] or folder / "curve.png",
            "--report": given["--report"] or folder / "report.json",
            train_output.SAMPLES: folder / "samples.npy"}


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # of one that is not empty
        folder.rmdir()


def kept(checkpoint: Path | None) -> str:
    """What becomes of the epochs that were made where no network is written."""
    if checkpoint is not None and checkpoint.is_file():
        return f"{checkpoint} keeps what was trained: the same command with --resume goes on"
    return "what was trained is lost: --checkpoint FILE keeps what --resume goes on from"


def sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--sizes {text}: expected the units of all layers, like 784,32,10"
                         ) from None


def schedule(text: str | None) -> str | tuple[str, int, float] | None:
    if text is None:
        return None
    schedule: str | tuple[str, int, float] = text
    try:
        if ":" in text:
            name, every, by = text.split(":")
            schedule = name, int(every), float(by)
        factor(schedule, 0)
    except (ValueError, InputError):
        raise InputError(f"--schedule {text}: expected constant, inverse, or step:PASSES:FACTOR "
                         "like step:4:0.3") from None
    return schedule


def side(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        height, width = (int(part) for part in text.split("x"))
    except ValueError:
        height = 0
    if height < 1 or width < 1:
        raise InputError(f"--pad {text}: expected height x width, like 32x32")
    return height, width


def share(validation: str) -> float | None:
    """The number that --validation gives; None where it names a file."""
    try:
        share: float | None = float(validation)
    except ValueError:
        share = None if validation else 0.0
    if share is not None and not 0 < share < 1:
        raise InputError(f"--validation {validation}: expected a share of the samples, above 0 "
                         "and below 1, or a file")
    return share
