"""Networks with their smallest weights set to zero, and networks whose zeros are drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gossamer.model import prune_patterns
from gossamer.model.graph import Graph

Weigh = Callable[[np.ndarray], np.ndarray]
"""Function from a layer's weights, whose second axis has the input channels, to others."""


def pruned(graph: Graph, sparsity: float) -> Graph:
    """Returns the network with this share of the weights of each layer set to zero, but for
    depthwise convolutions."""
    return _with_weights(graph, lambda weight: weight if _is_depthwise(weight) else
                         _with_zeros(weight, sparsity))


def pruned_pointwise(graph: Graph, sparsity: float) -> Graph:
    """Returns the network with this share of the weights of each 1x1 convolution set to zero."""
    return _with_weights(graph, lambda weight: (
        _with_zeros(weight, sparsity) if weight.shape[2:] == (1, 1) else weight))


def two_of_four(graph: Graph) -> Graph:
    """Returns the network with two of every four weights along the input channels set to zero,
    where a layer has a multiple of four of these."""
    return _with_weights(graph, lambda weight: weight if weight.shape[1] % 4 else np.where(
        prune_patterns.two_of_four(np.abs(weight), 1), np.float32(0), weight))


def without_zeros(graph: Graph) -> Graph:
    """Returns the network with a random number, the same in every run, in the place of each weight
    of its convolutions and matrix products that is zero; layers of zeros alone stay.

    The numbers are normally distributed as widely as the nonzeros of the layer. All weights of the
    layer are then multiplied so that the sum of their squares is what it was, which keeps the size
    of activations.
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
    """Weights of which the smallest are zero."""
    chosen = prune_patterns.smallest(np.abs(weight).reshape(-1), round(sparsity * weight.size))
    return np.where(chosen.reshape(weight.shape), np.float32(0), weight)


def _is_depthwise(weight: np.ndarray) -> bool:
    return weight.ndim == 4 and weight.shape[1] == 1


def _with_weights(graph: Graph, weigh: Weigh) -> Graph:
    """The network with other weights of its convolutions and matrix products."""
    constants = dict(graph.constants)
    for node in graph.nodes:
        if node.op not in ("conv2d", "gemm") or node.inputs[1] not in graph.constants:
            continue
        weight = graph.constants[node.inputs[1]]
        by_columns = node.op == "gemm" and not node.attributes["trans_b"]
        changed = weigh(weight.T).T if by_columns else weigh(weight)
        constants[node.inputs[1]] = np.ascontiguousarray(changed, weight.dtype)
    return replace(graph, constants=constants)
