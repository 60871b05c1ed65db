"""The inputs of `run`: photos, arrays, folders of pictures and CSV files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gossamer.cli import arguments, photo_options
from gossamer.cli.arguments import has_batch, input_names
from gossamer.cli.photo_options import PhotoOptions
from gossamer.device.host import processors
from gossamer.errors import InputError, quoted, similar_file
from gossamer.io import terminal
from gossamer.io.images import pictures_in
from gossamer.io.labels.reader import class_names
from gossamer.io.picture_batches import picture_batches
from gossamer.io.text import shape_text
from gossamer.model.infer.resolve import is_open, mixing_node
from gossamer.model.outputs import is_class_scores
from gossamer.model.photos import PhotoReader, taking_photos
from gossamer.plan.candidate import counted
from gossamer.train.data import csv_files
from gossamer.train.data.csv_files import FIRST, LAST

if TYPE_CHECKING:
    from gossamer.model.graph import Graph
    from gossamer.model.metadata import ModelMetadata


_WHITE = 255.0
"""The largest grey level."""


@dataclass(frozen=True)
class RunInputs:
    """The inputs of one call of the verb `run`.

    In this class, an input is a photo, or one row of the arrays. A row contains one sample for each
    input of the graph.

    names: one name per input, for messages and results.
    batch: number of inputs per execution; the last execution may have fewer.
    batches: the arrays of each execution, in the order of the graph's inputs.
    are_photos: whether the inputs are photos.
    graph: the network, modified if necessary to accept the arrays of `batches`.
    """

    names: Sequence[str]
    batch: int
    batches: Iterator[tuple[np.ndarray, ...]]
    are_photos: bool
    graph: Graph


def photo_inputs(model: str, graph: Graph, photos: list[str], options: PhotoOptions,
                 batch: int | None, *, is_planned: bool, default: int = 1) -> RunInputs:
    """Return photos in batches.

    model: the MODEL argument, for messages.
    default: the batch size without --batch.
    is_planned: whether MODEL is a saved plan, with fixed input formats.
    Raises InputError if the photos do not match the network.
    """
    prepare = photo_options.preprocessing(model, graph, options)
    size = batch_size(graph, batch, len(photos), default)
    graph = graph if is_planned else taking_photos(graph, prepare)
    batches = photo_options.photo_batches(photos, size, prepare, graph.network_inputs[0])
    return RunInputs(photos, size, batches, True, graph)


def array_inputs(model: str, graph: Graph, texts: list[str], options: PhotoOptions,
                 batch: int | None) -> RunInputs:
    """Return the arrays of the --input options in batches.

    Raises InputError if the arrays do not match the network.
    """
    if options.names():
        terminal.notice(f"{', '.join(options.names())}: ignored, since the inputs of --input are "
                        "arrays instead of photos")
    arrays = arguments.read_inputs(texts, graph)
    if arguments.has_batch(graph):
        rows = next(len(values) for values, info in zip(arrays, graph.network_inputs, strict=True)
                    if info.shape[:1] == (None,))
        names = [f"{texts[0]}[{index}]" for index in range(rows)]
        size = batch_size(graph, batch, rows, rows)
    elif batch is not None:
        raise InputError(f"--batch {batch}: {model} has no batch dimension; omit --batch")
    else:
        names, size = [", ".join(texts)], 1
    batches = arguments.array_batches(arrays, graph, len(names), size)
    return RunInputs(names, size, batches, False, graph)


def batch_size(graph: Graph, batch: int | None, rows: int, default: int) -> int:
    """Return the number of rows per execution.

    batch: the value of --batch, or None.
    rows: total number of rows.
    default: the batch size without --batch. The default is ignored, and all rows run at once, if
    smaller batches would change the network's results.
    Raises InputError if --batch would change the results.
    """
    size = min(batch or default, rows)
    if size >= rows:
        return rows
    mixing = mixing_node(graph, size)
    if mixing is None:
        return size
    if batch is None:
        return rows
    raise InputError(f"--batch {batch}: the outputs of this network depend on the whole batch "
                     f"({mixing}); omit --batch to run all {rows} inputs at once")


def scored_classes(graph: Graph, scores: np.ndarray, rows: int, labels: Path | None, *,
                   are_photos: bool) -> tuple[bool, Sequence[str] | None]:
    """Return whether the first output scores classes, and their names if known.

    scores: the first output of the network for `rows` inputs.
    labels: the file of --labels, or None.
    Raises InputError if the file does not contain one name per class.
    """
    metadata = graph.metadata
    if metadata.detector is None and (are_photos or labels or metadata.classes) and (
            is_class_scores(scores, rows)):
        return True, class_names(labels, scores.shape[1], metadata.classes)
    if labels:
        raise InputError(f"--labels {labels}: output {graph.network_outputs[0].name!r} is "
                         f"{shape_text(scores.shape)} {scores.dtype}, expected one score per "
                         "class; omit --labels")
    return False, None


def negatives(names: Sequence[str], pictures: np.ndarray, metadata: ModelMetadata) -> list[str]:
    """Return the names of pictures that look inverted.

    An example is a dark digit on a light background, if the network was trained on light digits on
    a dark background. A picture looks inverted if its mean grey level is closer to the mean of the
    inverted training pictures than to the mean of the training pictures. If the training pictures
    are neither dark nor light, no picture looks inverted.

    names: the names of the pictures; surplus names are ignored.
    pictures: the grey levels of each picture, from 0 to 255.
    """
    if metadata.brightness is None or _WHITE / 4 <= metadata.brightness <= _WHITE * 3 / 4:
        return []
    means = pictures.reshape(len(pictures), -1).mean(axis=1)
    nearer = np.abs(_WHITE - means - metadata.brightness) < np.abs(means - metadata.brightness)
    return [name for name, negative in zip(names, nearer, strict=False) if negative]


_BATCH = 32
"""Number of rows per execution without --batch."""
_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True)
class Entry:
    """One input, and whether it could be read.

    index: the input's index among all inputs.
    error: reason why the input could not be read; "" if it was read.
    """

    index: int
    error: str = ""


Chunk = tuple[list[Entry], np.ndarray | None]
"""Consecutive inputs, and one array of the readable inputs among them. The array is None if none is
readable."""


@dataclass(frozen=True)
class RowInputs:
    """Inputs of `run` with one output row each.

    key: the JSON key or column heading of the input's name in a row: "file" or "sample".
    names: the file or the index of each input.
    labels: the label of each input of a CSV file with labels; otherwise None.
    batch: maximum number of inputs per execution.
    chunks: function that reads the inputs with the given indices, and returns them in chunks.
    graph: the network, modified if necessary to accept the arrays of the chunks.
    """

    key: str
    names: Sequence[str | int]
    labels: Sequence[str] | None
    batch: int
    chunks: Callable[[Sequence[int]], Iterator[Chunk]]
    graph: Graph


def is_table(name: str) -> bool:
    """Return whether a file name is that of a CSV file."""
    return name.lower().endswith(_TABLES)


def make_rows(sources: Sequence[str]) -> bool:
    """Return whether a source is a folder or CSV file; for such a source, `run` writes rows."""
    return any(is_table(name) or Path(name).is_dir() for name in sources)


def check_label(label: str) -> None:
    """Raise InputError if --label is set although no input is a CSV file."""
    if label != FIRST:
        raise InputError("--label: needs a .csv file of samples")


def row_inputs(model: str, graph: Graph, sources: Sequence[str], options: PhotoOptions,
               batch: int | None, label: str, *, is_planned: bool) -> RowInputs:
    """Return the inputs of folders and picture files, or of one CSV file.

    model: the MODEL argument, for messages.
    is_planned: whether MODEL is a saved plan, with fixed input formats.
    Raises InputError if there are no inputs, or if they do not match the network.
    """
    tables = [name for name in sources if is_table(name)]
    if not tables:
        check_label(label)
        return _pictures(model, graph, sources, options, batch, is_planned=is_planned)
    if len(sources) > 1:
        raise InputError(f"{tables[0]}: is a table of samples, expected no other files")
    if options.names():
        raise InputError(f"{options.names()[0]}: applies only to photos, but {tables[0]} is a "
                         "table")
    return _samples(model, graph, Path(tables[0]), batch, label)


def picture_files(sources: Sequence[str]) -> list[str]:
    """Return the given files, and the pictures in the given folders, each once.

    Files in folders that are no pictures are counted in a notice. Raises InputError for a source
    that does not exist, and for a folder without pictures.
    """
    files: list[str] = []
    others = 0
    for source in sources:
        path = Path(source)
        if path.is_dir():
            pictures, ignored = pictures_in(path)
            files += map(str, pictures)
            others += ignored
        elif path.exists():
            files.append(source)
        else:
            raise InputError(f"{source}: no such file or folder{similar_file(source)}")
    if others:
        terminal.notice(f"{counted(others, 'file')} skipped: not image files by their suffix")
    return list(dict.fromkeys(files))


def _pictures(model: str, graph: Graph, sources: Sequence[str], options: PhotoOptions,
              batch: int | None, *, is_planned: bool) -> RowInputs:
    files = picture_files(sources)
    prepare = photo_options.preprocessing(model, graph, options)
    size = _batch(graph, batch, len(files))
    graph = graph if is_planned else taking_photos(graph, prepare)

    reader = PhotoReader(prepare, graph.inputs[0])

    def chunks(indices: Sequence[int]) -> Iterator[Chunk]:
        numbers = iter(indices)
        for part in picture_batches(reader, [files[index] for index in indices], processors(),
                                    size):
            yield [Entry(next(numbers), error) for error in part.errors], part.pictures

    return RowInputs("file", files, None, size, chunks, graph)


def _samples(model: str, graph: Graph, path: Path, batch: int | None, label: str) -> RowInputs:
    if len(graph.inputs) > 1:
        raise InputError(f"{model}: has the inputs {input_names(graph)}, but a table provides only "
                         "one; use --input NAME=X.npy for each")
    info = graph.inputs[0]
    shape = info.shape[1:]
    if None in shape or info.dtype != "float32":
        raise InputError(f"{path}: {model} expects {shape_text(info.shape)} {info.dtype}, but a "
                         "row of a table is a fixed number of float32 values")
    numbers, labels = csv_files.read_inputs(path, math.prod(size or 1 for size in shape), label,
                                            graph.metadata.columns)
    if labels is not None:
        column = f"{label} column" if label in (FIRST, LAST) else f"column {quoted(label)}"
        terminal.notice(f"{path}: its {column} is used as labels, since the table has one more "
                        "column than the network has inputs")
    x = numbers.reshape(len(numbers), *(size or 1 for size in shape))
    if info.given is not None:
        x = info.given.arranged(x)
    size = _batch(graph, batch, len(x))

    def chunks(indices: Sequence[int]) -> Iterator[Chunk]:
        for start in range(0, len(indices), size):
            part = list(indices[start:start + size])
            yield [Entry(index) for index in part], x[part]

    return RowInputs("sample", range(len(x)), labels, size, chunks, graph)


def _batch(graph: Graph, batch: int | None, rows: int) -> int:
    # pictures of different sizes run one by one
    default = _BATCH if has_batch(graph) and not is_open(graph) else 1
    return batch_size(graph, batch, rows, default)
