"""The verb `evaluate`: measure a network's accuracy on labelled samples."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

import gossamer
from gossamer.cli import arguments
from gossamer.cli.arguments import (
    AnyPlan,
    device_of,
    has_batch,
    input_names,
    load_graph,
    load_plan,
    results_of,
)
from gossamer.cli.photo_options import PhotoOptions
from gossamer.cli.report import input_bar, print_notes
from gossamer.cli.run_inputs import batch_size, photo_inputs
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.io.labels.reader import class_names
from gossamer.io.text import human, shape_text
from gossamer.model import outputs as network_outputs
from gossamer.plan.candidate import counted
from gossamer.train.data import labelled_pictures, sources
from gossamer.train.data.columns import CellRules, encoded

if TYPE_CHECKING:
    from gossamer.model.graph import Graph


_TOP = (1, 5)
"""The values of k for top-k accuracies. A sample is correct if its class is among the k best."""


def evaluate(
    model: arguments.PlanArgument,
    data: Annotated[str, typer.Argument(
        metavar="DATA", help=f"Labelled samples: {sources.FORMATS}.")],
    device: arguments.DevicesOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size (default: 32).")] = None,
    labels: arguments.LabelsOption = None,
    label: arguments.LabelOption = "first",
    limit: Annotated[int | None, typer.Option(
        min=1, help="Evaluate at most this many samples.")] = None,
    shape: arguments.ShapeOption = None,
    weights: arguments.WeightsOption = None,
    preprocess: arguments.PreprocessOption = None,
    size: arguments.SizeOption = None,
    resize: arguments.ResizeOption = None,
    scale: arguments.ScaleOption = None,
    mean: arguments.MeanOption = None,
    std: arguments.StdOption = None,
    bgr: arguments.BgrOption = False,
    grey: arguments.GreyOption = False,
    strict: arguments.StrictOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Compute the top-1 and top-5 accuracy of a network on labelled samples."""
    options = PhotoOptions(preprocess, size, resize, scale, mean, std, bgr, grey)
    saved_plan = load_plan(model, device, shape, weights, strict)
    graph = load_graph(model, shape, weights) if saved_plan is None else saved_plan.graph
    samples = labelled_inputs(model, graph, data, label, limit, options, batch,
                              is_planned=saved_plan is not None)
    plan = saved_plan or gossamer.compile(samples.graph, device=device, strict=strict)
    start = time.perf_counter()
    ranks, classes = _ranks(model, plan, samples, labels)
    seconds = time.perf_counter() - start
    device_name, description = device_of(plan)
    top = {count: int((ranks < count).sum()) for count in _TOP if count < classes}
    if as_json:
        terminal.print_json({
            "model": model, "data": samples.source, "device": device_name,
            "description": description, "samples": len(ranks), "classes": classes,
            "seconds": seconds, **{f"top{count}": right / len(ranks)
                                   for count, right in top.items()},
            **{f"top{count}_right": right for count, right in top.items()}})
        return
    print(f"device: {device_name} ({description})")
    print_notes(plan.report(min(samples.batch, len(ranks))))
    terminal.print_line(f"data: {counted(len(ranks), 'sample')} of {samples.source}, "
                        f"{classes} classes; {seconds:.1f} s, "
                        f"{human(len(ranks) / seconds)} per second")
    for count, right in top.items():
        print(f"top-{count}: {right / len(ranks):.2%} ({right} of {len(ranks)})")


def _ranks(model: str, plan: AnyPlan, samples: LabelledInputs,
           labels: Path | None) -> tuple[np.ndarray, int]:
    """Return the rank of each sample's correct class, and the number of classes.

    The rank is the number of classes that are placed before the correct one when classes are sorted
    by score.

    labels: the file of --labels, or None.
    Raises InputError if the network does not score classes, or has no class for a label.
    """
    ranks: list[np.ndarray] = []
    right: np.ndarray | None = None
    broken = 0
    sizes: deque[int] = deque()

    def sized(batches: Iterable[tuple[np.ndarray, ...]]) -> Iterator[tuple[np.ndarray, ...]]:
        for arrays in batches:
            sizes.append(len(arrays[0]))
            yield arrays

    with input_bar() as bar:
        task = bar.add_task(f"running on {device_of(plan)[0]}", total=len(samples.labels))
        for result in results_of(plan, sized(samples.batches)):
            scores = result[0] if isinstance(result, tuple) else result
            rows = sizes.popleft()
            if not network_outputs.is_class_scores(scores, rows):
                raise InputError(f"{model}: output {plan.graph.network_outputs[0].name!r} is "
                                 f"{shape_text(scores.shape)} {scores.dtype}, expected one "
                                 "score per class")
            if right is None:
                classes = scores.shape[1]
                right = samples.classes(classes, labels, plan.graph.metadata.classes)
            done = sum(map(len, ranks))
            ranks.append(network_outputs.ranks(scores, right[done:done + rows]))
            broken += len(network_outputs.broken_rows(scores, rows))
            correct = sum(int((part == 0).sum()) for part in ranks)
            bar.update(task, completed=done + rows,
                       description=f"top-1 {correct / (done + rows):.2%}")
    if broken:
        terminal.notice(f"{broken} of {len(samples.labels)} samples: the scores contain NaN or "
                        "infinite values", "warning")
    return np.concatenate(ranks), classes


_BATCH = 32
"""Number of samples per execution, for networks that accept batches of any size."""


@dataclass(frozen=True)
class LabelledInputs:
    """Batches of samples with their labels.

    labels: the label of each sample, as text.
    batches: the input array of each execution.
    batch: number of samples per execution; the last execution may have fewer.
    source: text that describes the source of the samples.
    are_photos: whether the samples are photos, labelled by the names of their folders.
    graph: the network, modified if necessary to accept the arrays of `batches`.
    """

    labels: Sequence[str]
    batches: Iterator[tuple[np.ndarray, ...]]
    batch: int
    source: str
    are_photos: bool
    graph: Graph

    def classes(self, count: int, names_file: Path | None,
                network_names: Sequence[str]) -> np.ndarray:
        """Return the class index of each sample, from 0 to count - 1.

        With a file of names, each label must be a name in the file. Without a file, the first of
        these interpretations that fits all labels is used:
        1. the labels are class names of the network;
        2. the labels are class indices;
        3. the labels are the names of `count` folders of photos, and the class of a folder is its
           position in the sorted names. A notice then says so.

        names_file: the file of --labels, or None.
        network_names: class names of the network.
        Raises InputError for a label without a class.
        """
        names = class_names(names_file, count, network_names)
        distinct = sorted(set(self.labels))
        indices = _by_name(distinct, names)
        if indices is None and names_file is None:
            indices = _as_indices(distinct, count)
        if indices is None and names_file is None and self.are_photos and len(distinct) == count:
            indices = {label: index for index, label in enumerate(distinct)}
            terminal.notice(f"{self.source}: the folder names are not class names of the network; "
                            "the folders are used as classes in sorted order; use --labels FILE "
                            "to set names")
        if indices is None:
            known = Counter(map(_plain, names or ()))
            unknown = [label for label in distinct if known[_plain(label)] != 1]
            wrong = next((label for label in unknown if _as_indices([label], count) is None),
                         unknown[0])
            what = ("is the name of several classes" if known[_plain(wrong)] > 1
                    else "is not a class of the network")
            raise InputError(f"{self.source}: the label {wrong!r} {what}; expected the name of "
                             f"one of its {count} classes (set by --labels FILE, one per line) "
                             f"or a number from 0 to {count - 1}")
        return np.array([indices[label] for label in self.labels], np.intp)


def labelled_inputs(model: str, graph: Graph, data: str, label: str, limit: int | None,
                    options: PhotoOptions, batch: int | None, *, is_planned: bool
                    ) -> LabelledInputs:
    """Return the samples of a file or folder.

    is_planned: whether MODEL is a saved plan, with fixed input formats.
    Raises InputError if there are no samples, or if they do not match the network.
    """
    if len(graph.network_inputs) > 1:
        raise InputError(f"{model}: has the inputs {input_names(graph)}; evaluate supports only "
                         "networks with one input")
    path = Path(data)
    if path.is_dir():
        training, test = sources.parts(path)
        path = training if test is None else test
    if path.is_dir():
        if label != "first":
            raise InputError(f"--label {label}: needs a .csv or .tsv file; {path} is a folder")
        return _photos(model, graph, path, limit, options, batch, is_planned=is_planned)
    if options.names():
        raise InputError(f"{options.names()[0]}: applies only to photos, but {path} has numbers")
    return _numbers(model, graph, path, label, limit, batch)


def _photos(model: str, graph: Graph, folder: Path, limit: int | None, options: PhotoOptions,
            batch: int | None, *, is_planned: bool) -> LabelledInputs:
    files = labelled_pictures.labelled_files(folder, limit)
    photos = photo_inputs(model, graph, [str(file) for file, _ in files], options, batch,
                          default=_size_of_batches(graph), is_planned=is_planned)
    return LabelledInputs([name for _, name in files], photos.batches, photos.batch, str(folder),
                          True, photos.graph)


def _numbers(model: str, graph: Graph, path: Path, label: str, limit: int | None,
             batch: int | None) -> LabelledInputs:
    columns = graph.metadata.columns
    training, test = sources.load(path, label=label, limit=limit, rules=CellRules(known=columns))
    dataset, shape = encoded(test or training, columns), graph.network_inputs[0].shape[1:]
    numbers = dataset.x.shape[1]
    if None in shape or math.prod(size or 1 for size in shape) != numbers or (
            graph.network_inputs[0].dtype != "float32"):
        info = graph.network_inputs[0]
        raise InputError(f"{path}: a sample has {numbers} numbers, but {model} expects "
                         f"{shape_text(info.shape)} {info.dtype}")
    stored = dataset.stored_shape
    if len(stored) > 1 and len(shape) > 1 and _without_ones(stored) != _without_ones(shape):
        raise InputError(f"{path}: a sample has shape {shape_text(stored)}, but {model} expects "
                         f"{shape_text(shape)}; save x with this order of axes")
    x = dataset.x.reshape(len(dataset.x), *(size or 1 for size in shape))
    given = graph.inputs[0].given
    if given is not None:
        x = given.arranged(x)
    size = batch_size(graph, batch, len(x), _size_of_batches(graph))
    batches = ((x[first:first + size],) for first in range(0, len(x), size))
    return LabelledInputs(list(map(str, dataset.y.tolist())), batches, size, dataset.source, False,
                          graph)


def _without_ones(shape: Sequence[int | None]) -> list[int | None]:
    return [size for size in shape if size != 1]


def _size_of_batches(graph: Graph) -> int:
    return _BATCH if has_batch(graph) else 1


def _plain(name: str) -> str:
    """Return a name in lower case, with spaces instead of underscores, for comparison."""
    return " ".join(name.casefold().replace("_", " ").split())


def _by_name(labels: Sequence[str], names: Sequence[str] | None) -> dict[str, int] | None:
    """Return the class of each label; None if a label is ambiguous or unknown."""
    counts = Counter(map(_plain, names or ()))
    if any(counts[_plain(label)] != 1 for label in labels):
        return None
    index_of = {_plain(name): index for index, name in enumerate(names or ())}
    return {label: index_of[_plain(label)] for label in labels}


def _as_indices(labels: Sequence[str], count: int) -> dict[str, int] | None:
    """Return the labels as class indices; None if a label is not a class index."""
    if not all(label.isascii() and label.isdigit() and int(label) < count for label in labels):
        return None
    return {label: int(label) for label in labels}
