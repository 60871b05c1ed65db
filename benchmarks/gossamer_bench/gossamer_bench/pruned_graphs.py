"""Makes networks with their smallest weights set to zero, and networks whose zero weights are
replaced by random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gossamer.model import prune
from gossamer.model.graph import Graph

Weigh = Callable[[np.ndarray], np.ndarray]
"""Function from the weights of a layer to the layer's new weights. Axis 1 has the input
channels."""


def pruned(graph: Graph, sparsity: float) -> Graph:
    """Returns the network with the smallest weights of each layer set to zero. Depthwise
    convolutions keep their weights. sparsity: share of a layer's weights that are set to zero."""
    return _with_weights(graph, lambda weight: weight if _is_depthwise(weight) else
                         _with_zeros(weight, sparsity))


def pruned_pointwise(graph: Graph, sparsity: float) -> Graph:
    """Returns the network with the smallest weights of each 1x1 convolution set to zero. sparsity:
    share of a convolution's weights that are set to zero."""
    return _with_weights(graph, lambda weight: (
        _with_zeros(weight, sparsity) if weight.shape[2:] == (1, 1) else weight))


def two_of_four(graph: Graph) -> Graph:
    """Returns the network with two of every four weights along the input channels set to zero.
    Layers whose number of input channels is no multiple of four keep their weights."""
    return _with_weights(graph, lambda weight: weight if weight.shape[1] % 4 else np.where(
        prune.two_of_four(np.abs(weight), 1), np.float32(0), weight))


def without_zeros(graph: Graph) -> Graph:
    """Returns the network with random numbers, the same in every run, in place of the zero weights
    of its convolutions and matrix products. A layer whose weights are all zero stays as it is.

    The numbers are normally distributed, with the root mean square of the layer's nonzeros. All
    weights of the layer are then multiplied by a factor that restores the sum of their squares,
    which keeps the size of activations.
    """
    random = np.random.default_rng(0)

    def filled(weight: np.ndarray) -> np.ndarray:
        nonzeros = weight[weight != 0]
        if nonzeros.size in (0, weight.size):
            return weight
        squares = float(np.square(nonzeros, dtype=np.float64).sum())
        drawn = random.standard_normal(weight.shape)
        drawn[drawn == 0] = 1
        dense = np.where(weight == 0, drawn * np.sqrt(squares / nonzeros.size), weight)
        return dense * np.sqrt(squares / np.square(dense).sum())

    return _with_weights(graph, filled)


def _with_zeros(weight: np.ndarray, sparsity: float) -> np.ndarray:
    """Returns the weights with the smallest of them set to zero. sparsity: share of the weights
    that are set to zero."""
    chosen = prune.smallest(np.abs(weight).reshape(-1), round(sparsity * weight.size))
    return np.where(chosen.reshape(weight.shape), np.float32(0), weight)


def _is_depthwise(weight: np.ndarray) -> bool:
    return weight.ndim == 4 and weight.shape[1] == 1


def _with_weights(graph: Graph, weigh: Weigh) -> Graph:
    """Returns the network with the new weights that `weigh` makes for its convolutions and matrix
    products."""
    constants = dict(graph.constants)
    for node in graph.nodes:
        if node.op not in ("conv2d", "gemm") or node.inputs[1] not in graph.constants:
            continue
        weight = graph.constants[node.inputs[1]]
        by_columns = node.op == "gemm" and not node.attributes["trans_b"]
        changed = weigh(weight.T).T if by_columns else weigh(weight)
        constants[node.inputs[1]] = np.ascontiguousarray(changed, weight.dtype)
    return replace(graph, constants=constants)
