"""The right outputs of a network, computed in float64 layer by layer, without optimisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gossamer.errors import GossamerError
from gossamer.model.batch_axis import along_batch
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import resolve
from gossamer.ops.registry import OPS
from gossamer.ops.weights import WeightsStore
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from gossamer.plan.run.binding import batch_of

Arrays = Mapping[str, np.ndarray]
"""Inputs or outputs of a network by name."""

_Lowered = tuple[Sequence[Layer], Arrays]

_BYTES_AT_ONCE = 2**28
"""The most bytes of the values of images that are computed together."""


def reference(graph: Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the outputs in float64. Images are computed a few at a time where no node mixes them,
    and values are freed after their last reader. Raises InputError where the inputs do not fit the
    graph."""
    images = batch_of(graph, [inputs[info.name] for info in graph.inputs])
    by_image = {info.name for info in graph.inputs if info.shape[:1] == (None,)}
    mixing, outputs_by_image = along_batch(graph, images)
    lowered = _lowered(graph, images, apart=bool(by_image) and mixing is None)
    parts: list[dict[str, np.ndarray]] = []
    first = 0
    while first < images or not parts:
        count = min(max(lowered), images - first)
        values = {name: array[first:first + count] if name in by_image else array
                  for name, array in inputs.items()}
        parts.append(_computed(*lowered[count], values, [info.name for info in graph.outputs]))
        first += count
    return {name: np.concatenate([part[name] for part in parts])
            if len(parts) > 1 and name in outputs_by_image else array
            for name, array in parts[0].items()}


def _lowered(graph: Graph, images: int, *, apart: bool) -> dict[int, _Lowered]:
    """Returns the layers for each number of images that are computed together. With `apart`, images
    are computed a few at a time: as many as _BYTES_AT_ONCE allows, and then the remainder. Else all
    images are computed together."""
    store = WeightsStore()
    all_images = lower(resolve(graph, images), store)
    nbytes = sum(8 * spec.size for layer in all_images[0] for spec in layer.problem.outputs)
    if not apart or nbytes <= _BYTES_AT_ONCE:
        return {images: all_images}
    count = max(1, _BYTES_AT_ONCE * images // nbytes)
    try:
        return {part: lower(resolve(graph, part), store)
                for part in (count, images % count) if part}
    except GossamerError:  # the graph is made for one batch size only
        return {images: all_images}


def _computed(layers: Sequence[Layer], constants: Arrays, inputs: Arrays,
              outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the named outputs of layers that are computed in float64."""
    last = {name: index for index, layer in enumerate(layers) for name in layer.inputs}
    values: dict[str, np.ndarray] = dict(constants)
    values.update({name: array.astype(np.float64) if array.dtype.kind == "f" else array
                   for name, array in inputs.items()})
    for index, layer in enumerate(layers):
        arrays = [values[name] for name in layer.inputs]
        if layer.is_reshape:
            values[layer.outputs[0]] = arrays[0].reshape(layer.problem.outputs[0].shape)
        else:
            results = OPS[layer.op].reference(layer.problem, arrays, layer.weights)
            values.update(zip(layer.outputs, results, strict=True))
        for name in (*layer.inputs, *layer.outputs):
            if last.get(name, index) == index and name not in outputs:
                values.pop(name, None)
    return {name: values[name] for name in outputs}
