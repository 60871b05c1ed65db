"""Draws random sparse weights whose nonzeros are spread as unevenly as in pruned networks."""

from __future__ import annotations

import math
import zlib

import numpy as np

from gossamer_bench.layer_tables import ConvLayer

ROWS, CHANNELS, TAPS = 0.5, 0.6, 0.45
"""For output channels, input channels and taps: the standard deviation of their numbers of
nonzeros, divided by the mean. In conv2 to conv5 of SkimCaffe's AlexNet these ratios are 0.28 to
0.60, 0.37 to 0.94 and 0.25 to 0.57."""


def drawn(layer: ConvLayer, density: float) -> np.ndarray:
    """Returns random weights (M, C/groups, R, S) in float32. The weights are the same in every
    call for a layer of this name and shape.

    Of all weights, round(density * size) are nonzero and normally distributed, with the variance
    of with_values(). The numbers of nonzeros of the output channels follow a gamma distribution;
    the largest of 256 such numbers is about three times their mean. Within an output channel,
    positions are drawn without replacement. The odds of a position are the product of the
    odds of its input channel and the odds of its tap. The odds of input channels and of taps follow
    gamma distributions, too, and each group has odds of its own.
    """
    rng = np.random.default_rng(zlib.crc32(layer.name.encode()))
    shape = layer.weight_shape
    if density == 1:
        return with_values(np.ones(shape, bool), rng)
    rows, depth = shape[0], math.prod(shape[1:])
    counts = _apportioned(round(density * rows * depth), _gamma(rng, ROWS, (rows,)), depth)
    odds = (_gamma(rng, CHANNELS, (layer.groups, shape[1], 1))
            * _gamma(rng, TAPS, (layer.groups, 1, shape[2] * shape[3])))
    # taking the positions with the largest sums of log-odds and Gumbel noise is a draw without
    # replacement
    keys = rng.gumbel(size=(layer.groups, rows // layer.groups, depth))
    keys += np.log(odds).reshape(layer.groups, 1, depth)
    order = np.argsort(-keys.reshape(rows, depth), axis=1)
    mask = np.zeros((rows, depth), bool)
    np.put_along_axis(mask, order, np.arange(depth) < counts[:, None], axis=1)
    return with_values(mask.reshape(shape), rng)


def redrawn(mask: np.ndarray, density: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a copy of a mask, changed to have the given density: a mask that is too dense loses
    nonzeros at random positions, and a mask that is too sparse gains nonzeros at random
    positions."""
    count = round(density * mask.size) - int(np.count_nonzero(mask))
    changing = np.flatnonzero(mask if count < 0 else ~mask)
    result = mask.copy()
    result.reshape(-1)[rng.choice(changing, abs(count), replace=False)] ^= True
    return result


def with_values(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns normally distributed nonzero values where a mask (M, ...) is set, and zero elsewhere.
    The variance of the values keeps the magnitude of activations the same from layer to layer, on
    average, where ReLU follows each layer."""
    values = rng.standard_normal(mask.shape, np.float32)
    values[values == 0] = 1
    nonzeros = max(int(np.count_nonzero(mask)), 1) / len(mask)
    return np.where(mask, values * np.float32(math.sqrt(2 / nonzeros)), np.float32(0))


def _gamma(rng: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
    """Returns positive random numbers. Their mean is 1 / deviation^2, and their standard deviation
    is `deviation` times the mean."""
    return np.maximum(rng.gamma(deviation**-2, size=shape), 1e-6)


def _apportioned(total: int, shares: np.ndarray, most: int) -> np.ndarray:
    """Splits a number into whole parts in proportion to the shares; no part exceeds `most`."""
    parts = np.zeros(len(shares))
    while total - parts.sum() > 0.5:
        room = parts < most
        parts[room] += shares[room] * ((total - parts.sum()) / shares[room].sum())
        parts = np.minimum(parts, most)
    counts = np.floor(parts).astype(int)
    remainder = total - int(counts.sum())
    counts[np.argsort(counts - parts, kind="stable")[:remainder]] += 1
    return counts
