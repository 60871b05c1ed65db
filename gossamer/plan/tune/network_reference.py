"""Reference outputs of a network, computed in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from gossamer.errors import GossamerError
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import along_batch, resolve
from gossamer.ops.registry import OPS
from gossamer.ops.weights import WeightsStore
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import Layer
from gossamer.plan.run.binding import batch_of

Arrays = Mapping[str, np.ndarray]
"""Inputs or outputs of a network by name."""

_BYTES_AT_ONCE = 2**28
"""Approximate limit in bytes on the values of the images that are computed together."""


def reference(graph: Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the outputs of a graph in float64.

    If no node mixes images, a few images are computed at a time. Values are freed after their last
    reader. Raises InputError if the inputs do not fit the graph.
    """
    images = batch_of(graph, [inputs[info.name] for info in graph.inputs])
    by_image = {info.name for info in graph.inputs if info.shape[:1] == (None,)}
    mixing, outputs_by_image = along_batch(graph, images)
    store, count = WeightsStore(), images
    layers, constants = lower(resolve(graph, images), store)
    nbytes = sum(8 * spec.size for layer in layers for spec in layer.problem.outputs)
    if by_image and mixing is None and nbytes > _BYTES_AT_ONCE:
        few = math.ceil(images / math.ceil(nbytes / _BYTES_AT_ONCE))
        with suppress(GossamerError):  # the graph may support one batch size only
            layers, constants = lower(resolve(graph, few), store)
            count = few
    parts: list[dict[str, np.ndarray]] = []
    for first in range(0, max(images, 1), max(count, 1)):
        # the last part is padded with the first images
        values = {name: array.take(range(first, first + count), axis=0, mode="wrap")
                  if name in by_image else array for name, array in inputs.items()}
        parts.append(_computed(layers, constants, values, [info.name for info in graph.outputs]))
    return {name: np.concatenate([part[name] for part in parts])[:images * len(array) // count]
            if len(parts) > 1 and name in outputs_by_image else array
            for name, array in parts[0].items()}


def _computed(layers: Sequence[Layer], constants: Arrays, inputs: Arrays,
              outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute layers in float64 and return the named outputs."""
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
