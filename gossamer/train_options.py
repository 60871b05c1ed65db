"""From the text of the options of `train` to values, and what is wrong with them: said before the
work where it can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gossamer import output_file, show, train_show
from gossamer.errors import InputError
from gossamer.plan.tuner import EFFORTS
from gossamer.train import MLP
from gossamer.train.dataset import Dataset
from gossamer.train.samples import found_classes
from gossamer.train.schedule import factor
from gossamer.train.settings import Settings

_SUFFIXES = {"--output": ".onnx", "--curve": ".png", "--report": ".json"}


def check_data(mlp: MLP, training: Dataset, held: Dataset | None) -> None:
    """Raises InputError where the data do not fit the network, or the held-out samples the
    others; tells of an order that training suffers from."""
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
    try:
        classes = found_classes(training.y, sizes[-1])
    except InputError as error:
        hint = ("; of a .csv file --label says which column they are in"
                if len(training.names) > sizes[-1] else "")
        raise InputError(f"--sizes {text}: {training.source}: {error}{hint}") from None
    if held is not None:
        foreign = [name for name in held.names if name not in map(str, classes)]
        if foreign:
            raise InputError(f"{held.source}: has the label {foreign[0]!r}, which no sample of "
                             f"{training.source} has")
    changes = int((training.y[1:] != training.y[:-1]).sum())
    if not mlp.shuffle and 1 < len(training.names) == changes + 1 < len(training.y) // 2:
        show.notice(f"{training.source}: the samples are sorted by class, from which a network "
                    "learns little; --shuffle mixes them")


def check_settings(mlp: MLP) -> None:
    """Raises InputError that names the option."""
    if not mlp.sizes:
        raise InputError("give --sizes: the units of all layers from inputs to classes, like "
                         "784,32,10 for pictures of 28x28 and ten classes")
    if mlp.effort is not None and mlp.effort not in EFFORTS:
        raise InputError(f"--effort {mlp.effort}: expected one of {', '.join(EFFORTS)}")
    try:
        Settings.of(mlp)
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        option = "--lr" if name == "learning_rate" else f"--{name.replace('_', '-')}"
        raise InputError(f"{option} {rest}") from None


def check_outputs(outputs: Mapping[str, Path | None], read: Sequence[str | None]) -> None:
    """Raises InputError where a file could not be written: said before the work."""
    for option, path in outputs.items():
        if path is None:
            continue
        output_file.check_file(option, path, _SUFFIXES.get(option), filter(None, read))
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


def demo_outputs(folder: Path, given: Mapping[str, Path | None]) -> dict[str, Path | None]:
    """Files in a folder, which is made, where no others are given."""
    if folder.suffix == _SUFFIXES["--output"] and not folder.is_dir():
        raise InputError(f"--output {folder}: expected a folder, for the demo writes several files")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {folder}: cannot be made: {error.strerror or error}; expected "
                         "a folder for the demo's files") from None
    return {"--output": folder / "model.onnx",
            "--curve": given["--curve"] or folder / "curve.png",
            "--report": given["--report"] or folder / "report.json",
            train_show.SAMPLES: folder / "samples.npy"}


def kept(checkpoint: Path | None) -> str:
    """What becomes of the passes that were made where no network is written."""
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
