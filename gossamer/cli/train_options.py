"""Reads values from the texts of the options of `train`. Wrong options are refused before the work
where that is possible."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from gossamer.cli import train_output
from gossamer.errors import GossamerError, InputError, one_of
from gossamer.io import output_files
from gossamer.plan.policy import EFFORTS
from gossamer.train import MLP
from gossamer.train.data.samples import DataShape
from gossamer.train.loop import memory
from gossamer.train.loop.checkpoint import OtherSettings
from gossamer.train.loop.schedule import factor
from gossamer.train.loop.settings import Settings
from gossamer.train.mlp import device_of

_WORDS = {"leave resume out": "leave --resume out", "a learning_rate below": "an --lr below",
          "numbers in x": "numbers in the samples",
          "take output='linear', or bring y into": "leave --published out, or bring them into"}
"""Phrases in messages of training, each with the phrase that replaces it on the command line."""
_SUFFIXES = {"--output": ".onnx", "--curve": ".png", "--report": ".json"}


def check_settings(mlp: MLP) -> None:
    """Raises InputError, which names the option, where a setting has an impossible value."""
    if mlp.effort is not None and mlp.effort not in EFFORTS:
        raise InputError(f"--effort {mlp.effort}: {one_of(mlp.effort, EFFORTS)}")
    units = ",".join(map(str, mlp.sizes))
    if len(mlp.sizes) == 1:
        raise InputError(f"--sizes {units}: expected the units of all layers from inputs to "
                         f"classes, like 784,32,10; --hidden {units} gives hidden layers alone")
    if mlp.sizes and mlp.hidden is not None:
        hidden_units = [mlp.hidden] if isinstance(mlp.hidden, int) else mlp.hidden
        raise InputError(f"--hidden {','.join(map(str, hidden_units))}: --sizes {units} says all "
                         "layers; give one of them")
    inputs, outputs = (mlp.sizes[0], mlp.sizes[-1]) if mlp.sizes else (1, 2)
    _checked(mlp, DataShape(1, inputs, outputs, mlp.task != "regression"))


def settle(mlp: MLP, data: DataShape) -> None:
    """Sets the parameters of a network that were left open. Their values follow from the shape of
    the samples. Raises InputError, which names the option, where the network cannot be trained."""
    settings = _checked(mlp, data)
    mlp.set_params(sizes=settings.sizes, hidden=None, **{
        name: getattr(settings, name) for name in ("loss", "output", "learning_rate", "batch")})


def _checked(mlp: MLP, data: DataShape) -> Settings:
    """Returns the settings of a network for samples of this shape."""
    try:
        settings = Settings.of(mlp, data)
        memory.check(settings, device_of(mlp))
    except InputError as error:
        text = str(error)
        for name in ("sizes", "hidden"):
            if units := getattr(mlp, name):
                text = text.replace(f"{name} {units}", f"{name} {','.join(map(str, units))}")
        name, _, rest = text.partition(" ")
        raise InputError(f"{_option(name)} {rest}") from None
    return settings


def in_options(error: GossamerError) -> str:
    """Returns the message of an error in training, in the words of the command line."""
    if isinstance(error, OtherSettings):
        stored, current = (_setting(error.key, value) for value in (error.there, error.here))
        return (f"{error.path}: is the checkpoint of a network with {stored}, this one has "
                f"{current}: give {stored}; or give another file, or leave --resume out to begin "
                "anew")
    text = str(error)
    for words, in_command_line in _WORDS.items():
        text = text.replace(words, in_command_line)
    return text


def _option(name: str) -> str:
    return "--lr" if name == "learning_rate" else f"--{name.replace('_', '-')}"


def _setting(name: str, value: Any) -> str:
    """Returns a setting as the text of the option that gives it."""
    if name == "shuffle":
        return "--shuffle" if value else "--no-shuffle"
    if name == "sizes":
        value = ",".join(map(str, value))
    elif name == "schedule" and value.startswith("("):
        value = ":".join(map(str, ast.literal_eval(value)))
    return f"{_option(name)} {value}"


def check_outputs(outputs: Mapping[str, Path | None], files_read: Sequence[str | None]) -> None:
    """Raises InputError, before the work, where a file could not be written or two options name
    the same file."""
    for option, path in outputs.items():
        if path is None:
            continue
        output_files.check_file(option, path, _SUFFIXES.get(option), filter(None, files_read))
        twin = next((twin for twin, file in outputs.items() if twin != option and file
                     and file.absolute() == path.absolute()), None)
        if twin is not None:
            raise InputError(f"{option} {path}: is the file of {twin} too; give another name")


def check_resume(checkpoint: Path | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise InputError("--resume: from which file? give --checkpoint FILE too")
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise InputError(f"--checkpoint {checkpoint}: is there already; --resume goes on from it, "
                         "to begin anew remove it or give another name")


def demo_outputs(folder: Path, outputs: Mapping[str, Path | None],
                 context: typer.Context) -> dict[str, Path | None]:
    """Returns the files that the demo writes. The files are in this folder, except files that an
    option names.

    The folder is made where it is absent, and removed at the end of the command where it is still
    empty. Raises InputError where the folder cannot be made."""
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
            "--curve": outputs["--curve"] or folder / "curve.png",
            "--report": outputs["--report"] or folder / "report.json",
            train_output.SAMPLES: folder / "samples.npy"}


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # raised where the folder is not empty
        folder.rmdir()


def checkpoint_hint(checkpoint: Path | None) -> str:
    """Returns a sentence for the message that a trained network was not written. It says whether
    the training is lost, or can go on from the checkpoint."""
    if checkpoint is not None and checkpoint.is_file():
        return f"{checkpoint} keeps what was trained: the same command with --resume goes on"
    return "what was trained is lost: --checkpoint FILE keeps what --resume goes on from"


def sizes(text: str | None) -> tuple[int, ...] | None:
    """Returns the units of each layer that --sizes gives."""
    return _units("--sizes", text, "the units of all layers, like 784,32,10")


def hidden(text: str | None) -> tuple[int, ...] | None:
    """Returns the units of each hidden layer that --hidden gives."""
    return _units("--hidden", text, "the units of each hidden layer, like 100 or 300,100")


def _units(option: str, text: str | None, expected: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text}: expected {expected}") from None


def schedule(text: str | None) -> str | tuple[str, int, float] | None:
    """Returns the schedule of the learning rate that --schedule gives."""
    if text is None:
        return None
    schedule: str | tuple[str, int, float] = text
    try:
        if ":" in text:
            name, every, by = text.split(":")
            schedule = name, int(every), float(by)
        factor(schedule, 0)
    except (ValueError, InputError):
        raise InputError(f"--schedule {text}: expected constant, inverse, or step:EPOCHS:FACTOR "
                         "like step:4:0.3") from None
    return schedule


def padded_shape(text: str | None) -> tuple[int, int] | None:
    """Returns the height and width that --pad gives."""
    if text is None:
        return None
    try:
        height, width = (int(part) for part in text.split("x"))
    except ValueError:
        height = 0
    if height < 1 or width < 1:
        raise InputError(f"--pad {text}: expected height x width, like 32x32")
    return height, width
