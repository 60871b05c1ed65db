"""Options shared by several verbs, and the graphs, plans and arrays they specify."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import gossamer
from gossamer import errors
from gossamer.device.registry import names_several
from gossamer.errors import GossamerWarning, InputError, quoted
from gossamer.io import terminal
from gossamer.io.images import PRESETS
from gossamer.io.npy import read_arrays
from gossamer.io.text import shape_text
from gossamer.model import zoo
from gossamer.model.graph import as_called
from gossamer.model.infer.resolve import check_open_dimensions, with_shapes
from gossamer.model.load import expected_models, other_kind
from gossamer.ops.host_threads import ALL, Threads
from gossamer.plan.open_plan import OpenPlan
from gossamer.plan.plan import Plan
from gossamer.plan.plan_group import PlanGroup
from gossamer.plan.store.plan_file import SUFFIX

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


ModelArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"The network: {expected_models()}.")]
ShapeOption = Annotated[list[str] | None, typer.Option(
    metavar="[NAME=]3,224,224",
    help="Shape of an input without the batch, if it is dynamic in the file. May be repeated.")]
WeightsOption = Annotated[str | None, typer.Option(
    metavar="FILE", help="Weights of a .cfg (default: the .weights file of the same name).")]
OutputsOption = Annotated[list[str] | None, typer.Option(
    metavar="NAME[,NAME]", help="Outputs to compute (default: all). May be repeated.")]
PlanArgument = Annotated[str, typer.Argument(
    metavar="MODEL", help=f"A plan saved by `gossamer compile` ({SUFFIX}), "
                          f"{expected_models()}.")]
DeviceOption = Annotated[str | None, typer.Option(
    help="Device: host, opencl:N or cuda:N (default: the best available).")]
DevicesOption = Annotated[str | None, typer.Option(
    "--device", help="Device: host, opencl:N or cuda:N (default: the best available); "
                     "cuda:all or cuda:0,cuda:1 to share the work.")]
THREADS_HELP = ("Threads per layer on the host; all is the number of processors, limited by "
                "OMP_NUM_THREADS.")
ThreadsOption = Annotated[str | None, typer.Option(
    metavar="N|all", show_default="all, or those of a saved plan", help=THREADS_HELP)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
StrictOption = Annotated[bool, typer.Option(
    "--strict", help="Fail if a layer cannot run on the device, instead of using the host.")]
LabelsOption = Annotated[Path | None, typer.Option(
    metavar="FILE", help="File of class names, one per line.")]
LabelOption = Annotated[str, typer.Option(
    metavar="NAME|N", help="Label column of a .csv file: its name in the first line, its number "
                           "from 1, first, or last.")]
PreprocessOption = Annotated[str | None, typer.Option(
    help=f"Preprocessing of photos: {', '.join(PRESETS)}.")]
SizeOption = Annotated[str | None, typer.Option(
    help="Resize photos to this height x width: 224 or 224x320.")]
ResizeOption = Annotated[int | None, typer.Option(
    help="Resize the short side to this length, then crop the centre to --size.")]
ScaleOption = Annotated[float | None, typer.Option(
    help="Factor of the pixel values (0 to 255), applied before --mean and --std.")]
MeanOption = Annotated[str | None, typer.Option(
    help="Mean to subtract: one number, or one per channel.")]
StdOption = Annotated[str | None, typer.Option(
    help="Standard deviation to divide by: one number, or one per channel.")]
BgrOption = Annotated[bool, typer.Option("--bgr", help="Use the channel order BGR instead of RGB.")]
GreyOption = Annotated[bool, typer.Option("--grey", help="Convert photos to one grey channel.")]


AnyPlan = Plan | PlanGroup | OpenPlan
"""A plan on one device, on several devices, or for inputs of any size."""


def load_graph(model: str, shapes: list[str] | None, weights: str | None = None,
               outputs: list[str] | None = None, precision: str | None = None, *,
               may_stay_open: bool = False) -> Graph:
    """Return the graph of the MODEL argument, and print its warnings.

    precision: the value of --precision, or None.
    may_stay_open: whether dimensions other than the batch may be dynamic. If this is false,
    InputError is raised for a graph with such dimensions.
    """
    if not model:
        raise InputError(f"MODEL: the name is empty; expected {expected_models()}")
    if weights == "":
        raise InputError("--weights: the name is empty; expected a file of weights")
    if model not in zoo.MODELS and Path(model).is_dir() and other_kind(model) is None:
        raise InputError(f"{model}: is a folder, expected {expected_models()}")
    names = [name for text in outputs for name in text.split(",")] if outputs else None
    with warnings.catch_warnings():
        # the graph's warnings are printed below, independent of Python's warning filters
        warnings.simplefilter("ignore", GossamerWarning)
        graph = gossamer.load(model, weights=weights, outputs=names, precision=precision)
    for warning in graph.warnings:
        terminal.notice(warning, "warning")
    graph = with_input_shapes(graph, shapes or [])
    if not may_stay_open:
        check_open_dimensions(graph)
    return graph


def load_plan(model: str, device: str | None, shapes: list[str] | None, weights: str | None,
              strict: bool, outputs: list[str] | None = None,
              threads: Threads | None = None) -> Plan | PlanGroup | None:
    """Load the saved plan of the MODEL argument, and print its warnings.

    Returns a PlanGroup if `device` names several devices, and None if MODEL is a network. Raises
    InputError for options that do not apply to plans.
    """
    if not model.endswith(SUFFIX):
        return None
    if shapes:
        raise InputError(f"--shape {shapes[0]}: the shapes of a saved plan are fixed; pass "
                         "--shape to `gossamer compile`")
    if weights is not None:
        raise InputError(f"--weights {weights}: a saved plan contains its weights; pass --weights "
                         "to `gossamer compile`")
    if outputs:
        raise InputError(f"--outputs {outputs[0]}: the outputs of a saved plan are fixed; pass "
                         "--outputs to `gossamer compile`")
    plan = (PlanGroup.load(model, device, strict=strict, threads=threads)
            if device and names_several(device)
            else Plan.load(model, device, strict=strict, threads=threads))
    for warning in plan.graph.warnings:
        terminal.notice(warning, "warning")
    return plan


check_choice = partial(errors.check_choice, shown=str)
"""The check of an option's value, which a message shows as it was typed."""


def threads_of(text: str | None) -> Threads | None:
    """Parse --threads: a number, "all", or None if the option is absent."""
    if text is None or text == ALL:
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--threads {text}: expected {ALL}, or a number of 1 or more")
    return int(text)


def tell_of_threads(threads: Threads | None, devices: str) -> None:
    """Print a notice if --threads is set, but no device is the host."""
    if threads is not None and "host" not in devices:
        terminal.notice(f"--threads {threads}: has no effect on {devices}, only on layers on the "
                        "host")


def positive_numbers(option: str, text: str, expected: str) -> list[int]:
    """Parse whole numbers of 1 or more. Raises InputError that says what is expected."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise InputError(f"{option} {text}: expected {expected}")
    return numbers


def batch_sizes(text: str, example: str) -> list[int]:
    """Parse the batch sizes of --batch."""
    return positive_numbers("--batch", text, f"sizes of 1 or more, like {example}")


def device_of(plan: AnyPlan) -> tuple[str, str]:
    """Return the names and descriptions of a plan's devices."""
    if isinstance(plan, PlanGroup):
        return plan.device_names, plan.device_descriptions
    return plan.device.name, plan.device.description


def results_of(plan: AnyPlan, batches: Iterable[tuple[np.ndarray, ...]]) -> Iterator[Any]:
    """Yield the result of a plan for each batch, in order.

    The devices of a PlanGroup share the batches.
    """
    if isinstance(plan, PlanGroup):
        with plan.stream(batches) as results:
            yield from results
        return
    for arrays in batches:
        yield plan(*arrays)


def with_input_shapes(graph: Graph, texts: Sequence[str]) -> Graph:
    """Return the graph with its dynamic dimensions set by --shape.

    texts: the values of --shape, such as image=3,224,224. A value contains the sizes of all
    dimensions except the batch. A value without a name applies to the first input.
    Raises InputError if a value contradicts the graph.
    """
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        try:
            shape = [int(part) for part in sizes.replace("x", ",").split(",")]
        except ValueError:
            raise InputError(f"--shape {text}: expected sizes like 3,224,224 or "
                             f"{graph.network_inputs[0].name}=3,224,224") from None
        name = name or graph.network_inputs[0].name
        if name in shapes:
            raise InputError(f"--shape {text}: input {quoted(name)} already has a --shape")
        shapes[name] = shape
    return with_shapes(graph, shapes)


def check_numbers(graph: Graph) -> None:
    """Raise InputError for inputs or outputs that array files cannot store."""
    for what, infos in (("input", graph.network_inputs), ("output", graph.network_outputs)):
        for info in infos:
            if not hasattr(np, info.dtype):
                raise InputError(f"{graph.file}: the command line does not support {what} "
                                 f"{quoted(info.name)} of type {info.dtype}; call "
                                 "gossamer.compile(...) in Python")


def has_batch(graph: Graph) -> bool:
    """Return whether the network accepts batches of any size."""
    return any(info.shape[:1] == (None,) for info in graph.network_inputs)


def input_names(graph: Graph) -> str:
    """Return the names of the graph's inputs for a message."""
    return ", ".join(repr(info.name) for info in graph.network_inputs)


def read_inputs(texts: Sequence[str], graph: Graph, option: str = "--input") -> list[np.ndarray]:
    """Read the arrays of an option, in the order of the graph's inputs.

    texts: the values of the option: FILE, or NAME=FILE for one of several inputs. In a .npz file,
    the arrays have the names of the inputs.
    option: name of the option, for messages.
    Raises InputError if a file cannot be read, if an input has no array or several arrays, or if an
    array does not match its input.
    """
    arrays: dict[str, tuple[str, np.ndarray]] = {}
    graph = as_called(graph)
    names = [info.name for info in graph.network_inputs]
    for text in texts:
        name, file = _name_and_file(text, graph, option)
        for inner, values in read_arrays(file, option).items():
            target = name or inner or (names[0] if len(names) == 1 else "")
            if not target:
                raise InputError(f"{option} {text}: {graph.file or graph.name} has several inputs, "
                                 f"{input_names(graph)}; use {option} NAME={file} for each")
            if target not in names or (name and inner):
                raise InputError(f"{option} {text}: contains an array {quoted(inner)}; expected a "
                                 f".npy file of one array, or the inputs: {input_names(graph)}")
            if target in arrays:
                raise InputError(f"{option} {text}: input {quoted(target)} is already set")
            arrays[target] = (file, values)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise InputError(f"{option} {', '.join(texts)}: no array for input "
                         f"{', '.join(map(quoted, missing))}; add {option} {missing[0]}=X.npy")
    _check_arrays(graph, arrays, option)
    return [arrays[name][1] for name in names]


def _name_and_file(text: str, graph: Graph, option: str) -> tuple[str, str]:
    """Parse NAME=FILE or FILE; for FILE alone, the name is ""."""
    names = [info.name for info in graph.network_inputs]
    name, equals, file = text.partition("=")
    if not equals or (name not in names and Path(text).exists()):
        name, file = "", text
    elif name not in names:
        raise InputError(f"{option} {text}: {graph.file or graph.name} has no input "
                         f"{quoted(name)}; its inputs: {input_names(graph)}")
    if not file:
        raise InputError(f"{option} {text}: the name is empty; expected a .npy file")
    return name, file


def _check_arrays(graph: Graph, arrays: dict[str, tuple[str, np.ndarray]], option: str) -> None:
    """Raise InputError for arrays that do not match their inputs.

    Shapes and dtypes must match, and all arrays must have the same number of rows.

    arrays: the file and the array of each input.
    """
    rows: tuple[str, int] | None = None
    for info in graph.network_inputs:
        file, values = arrays[info.name]
        batched = info.shape[:1] == (None,)
        if batched and values.ndim == 0:
            raise InputError(f"{option} {file}: expected one array with the batch as its first "
                             "dimension")
        if len(values.shape) != len(info.shape) or any(
                size not in (None, array_size)
                for size, array_size in zip(info.shape, values.shape, strict=True)):
            hint = ""
            if values.shape == info.shape[1:]:
                hint = "; the batch comes first: save x[None]"
            raise InputError(f"{option} {file}: has shape {shape_text(values.shape)}, but input "
                             f"{quoted(info.name)} expects {shape_text(info.shape)}{hint}")
        if values.dtype != np.dtype(info.dtype):
            raise InputError(f"{option} {file}: has dtype {values.dtype}, but input "
                             f"{quoted(info.name)} expects {info.dtype}; save it with "
                             f".astype({info.dtype!r})")
        if batched and rows and rows[1] != len(values):
            raise InputError(f"{option} {file}: has {len(values)} rows, but {rows[0]} has "
                             f"{rows[1]}; all inputs need the same number of rows")
        if batched:
            rows = (file, len(values))


def array_batches(arrays: Sequence[np.ndarray], graph: Graph, rows: int,
                  batch: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the arrays of each execution, with `batch` rows of each input.

    For an input without a batch dimension, the whole array is yielded each time.

    arrays: one array per input of the graph.
    rows: total number of rows.
    """
    for start in range(0, max(rows, 1), max(batch, 1)):
        yield tuple(values[start : start + batch] if info.shape[:1] == (None,) else values
                    for values, info in zip(arrays, graph.network_inputs, strict=True))
