"""Sparse weights drawn at random, as unevenly spread as those that training leaves."""

from __future__ import annotations

import math
import zlib

import numpy as np

from gossamer.bench.suites.layer_tables import ConvLayer

ROWS, CHANNELS, TAPS = 0.5, 0.6, 0.45
"""Deviation over mean of how many nonzeros an output channel, an input channel and a tap have: of
the order of SkimCaffe's AlexNet, whose conv2 to conv5 have 0.28 to 0.60, 0.37 to 0.94 and 0.25 to
0.57."""


def drawn(layer: ConvLayer, density: float) -> np.ndarray:
    """Weights (M, C/groups, R, S) float32 for a layer, the same for the same name and shape.

    Of all weights round(density * size) are nonzero, normal, and keep the size of what they are
    applied to. Output channels share them out by a gamma distribution, whose largest of 256 is
    about three times the mean; within one, places are drawn without replacement, likelier in some
    input channels and taps than in others (gamma distributions too, of each group its own).
    """
    rng = np.random.default_rng(zlib.crc32(layer.name.encode()))
    shape = layer.weight_shape
    if density == 1:
        return with_values(np.ones(shape, bool), rng)
    rows, depth = shape[0], math.prod(shape[1:])
    counts = _shared_out(round(density * rows * depth), _gamma(rng, ROWS, (rows,)), depth)
    odds = (_gamma(rng, CHANNELS, (layer.groups, shape[1], 1))
            * _gamma(rng, TAPS, (layer.groups, 1, shape[2] * shape[3])))
    # the largest of log-odds plus Gumbel noise are a draw without replacement
    keys = rng.gumbel(size=(layer.groups, rows // layer.groups, depth))
    keys += np.log(odds).reshape(layer.groups, 1, depth)
    order = np.argsort(-keys.reshape(rows, depth), axis=1)
    mask = np.zeros((rows, depth), bool)
    np.put_along_axis(mask, order, np.arange(depth) < counts[:, None], axis=1)
    return with_values(mask.reshape(shape), rng)


def with_values(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal values, none of them zero, where a mask (M, ...) says; on average they keep the size
    of what they are applied to, ReLU behind them."""
    values = rng.standard_normal(mask.shape, np.float32)
    values[values == 0] = 1
    nonzeros = max(int(np.count_nonzero(mask)), 1) / len(mask)
    return np.where(mask, values * np.float32(math.sqrt(2 / nonzeros)), np.float32(0))


def _gamma(rng: np.random.Generator, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
    """Positive numbers with a deviation over mean."""
    return np.maximum(rng.gamma(deviation**-2, size=shape), 1e-6)


def _shared_out(total: int, shares: np.ndarray, most: int) -> np.ndarray:
    """A number into whole parts in the proportion of the shares, none larger than `most`."""
    parts = np.zeros(len(shares))
    while total - parts.sum() > 0.5:
        room = parts < most
        parts[room] += shares[room] * ((total - parts.sum()) / shares[room].sum())
        parts = np.minimum(parts, most)
    counts = np.floor(parts).astype(int)
    left = total - int(counts.sum())
    counts[np.argsort(counts - parts, kind="stable")[:left]] += 1
    return counts
