"""Reads the inputs of the verb `run`, photos or arrays, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gossamer.cli import arguments, photo_options
from gossamer.cli.photo_options import PhotoOptions
from gossamer.errors import InputError
from gossamer.io import terminal
from gossamer.model.infer.resolve import mixing_node
from gossamer.model.photos import taking_photos

if TYPE_CHECKING:
    from gossamer.model.graph import Graph
    from gossamer.model.metadata import ModelMetadata

_WHITE = 255.0
"""The largest grey level."""


@dataclass(frozen=True)
class RunInputs:
    """The inputs that a network runs on.

    names: one name for each input, for messages and results.
    batch: number of inputs that run at once.
    batches: the arrays of each execution, in the order of the graph's inputs.
    are_photos: whether the inputs were read from photos.
    graph: the network, changed where needed to take the arrays of `batches`.
    """

    names: Sequence[str]
    batch: int
    batches: Iterator[tuple[np.ndarray, ...]]
    are_photos: bool
    graph: Graph


def photo_inputs(model: str, graph: Graph, photos: list[str], options: PhotoOptions,
                 batch: int | None, *, is_planned: bool) -> RunInputs:
    """Returns the photos in batches. model: the network as the command line names it, for messages.
    is_planned: whether MODEL is a saved plan, whose input formats are fixed. Raises InputError
    where the photos do not fit the network."""
    prepare = photo_options.preprocessing(model, graph, options)
    size = batch_size(graph, batch, len(photos), 1)
    graph = graph if is_planned else taking_photos(graph, prepare)
    batches = photo_options.photo_batches(photos, size, prepare, graph.network_inputs[0])
    return RunInputs(photos, size, batches, True, graph)


def array_inputs(model: str, graph: Graph, texts: list[str], options: PhotoOptions,
                 batch: int | None) -> RunInputs:
    """Returns the arrays of the --input options in batches. Raises InputError where the arrays do
    not fit the network."""
    if options.names():
        terminal.notice(f"{', '.join(options.names())}: for photos only; --input is taken as it "
                        "is")
    arrays = arguments.read_inputs(texts, graph)
    if arguments.has_batch(graph):
        rows = next(len(values) for values, info in zip(arrays, graph.network_inputs, strict=True)
                    if info.shape[:1] == (None,))
        names = [f"{texts[0]}[{index}]" for index in range(rows)]
        size = batch_size(graph, batch, rows, rows)
    elif batch is not None:
        raise InputError(f"--batch {batch}: {model} has no batch; leave --batch out")
    else:
        names, size = [", ".join(texts)], 1
    batches = arguments.array_batches(arrays, graph, len(names), size)
    return RunInputs(names, size, batches, False, graph)


def batch_size(graph: Graph, batch: int | None, rows: int, default: int) -> int:
    """Returns how many rows run at once. batch: the value of --batch. Raises InputError where this
    batch size would change the network's results."""
    size = min(batch or default, rows)
    if size >= rows:
        return rows
    mixing = mixing_node(graph, size)
    if mixing is None:
        return size
    if batch is None:
        return rows
    raise InputError(f"--batch {batch}: the numbers of this network depend on what runs "
                     f"together ({mixing}); leave --batch out, so that all {rows} inputs run at "
                     "once")


def negatives(names: Sequence[str], pictures: np.ndarray, metadata: ModelMetadata) -> list[str]:
    """Returns the names of the pictures that seem to be negatives of the training data, such as a
    dark digit on a light ground where the network was trained on light digits on a dark ground.

    Only mean brightness is compared, so that the result is empty where the mean brightness of the
    training data was medium.

    names: the names of the pictures; there may be more names than pictures.
    pictures: the grey levels of each picture.
    """
    if metadata.brightness is None or _WHITE / 4 <= metadata.brightness <= _WHITE * 3 / 4:
        return []
    means = pictures.reshape(len(pictures), -1).mean(axis=1)
    nearer = np.abs(_WHITE - means - metadata.brightness) < np.abs(means - metadata.brightness)
    return [name for name, negative in zip(names, nearer, strict=False) if negative]
