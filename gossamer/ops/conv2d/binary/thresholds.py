"""Integer thresholds in place of an epilogue that ends in a sign.

The results are exact, and each bit needs one comparison.

An accumulator is an integer between known bounds. Assume that the epilogue maps accumulators to -1,
0 or 1, and that this mapping is monotonic. Then two integers per channel determine where the
result changes. To find these integers, the epilogue is computed in float64 for every accumulator,
as in the reference. Scale, bias and batch norm are part of the epilogue. With a negative scale, the
result falls as the accumulator rises; with a scale of 0, the result is constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gossamer.device.base import Buffer
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.binary.layer import BinaryLayer, alphas
from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.lru_cache import LruCache, digest
from gossamer.ops.weights import Weights

_AT_ONCE = 2**17
"""Number of results of the epilogue that are computed at once, so that they stay in cache."""
_LARGEST_BOUND = 2**16
"""Largest bound on accumulators for which the epilogue is evaluated for every accumulator."""


@dataclass(frozen=True)
class Thresholds:
    """Integers of each output channel that determine the results of the channel.

    result = direction * ((accumulator >= lower) + (accumulator >= upper) - 1)

    lower: lower threshold of each channel, int32 of shape (M,).
    upper: upper threshold, int32 of shape (M,); if it equals `lower`, the result is never 0.
    direction: -1 if the result falls as the accumulator rises, else 1; int32 of shape (M,).
    """

    lower: np.ndarray
    upper: np.ndarray
    direction: np.ndarray

    @property
    def table(self) -> np.ndarray:
        """The three numbers of each channel as an array (3, M)."""
        return np.stack([self.lower, self.upper, self.direction])


_FOUND: LruCache[Thresholds | None] = LruCache(
    1 << 20, lambda found: 0 if found is None else found.table.nbytes)
"""Cache of thresholds, because several tables on a device are computed from the same thresholds."""


def replaced_epilogue(weights: Weights, layer: BinaryLayer) -> tuple[Buffer | None, Epilogue]:
    """Return the table of thresholds on the device (or None), and the remaining epilogue."""
    problem = layer.convolution
    table = None if layer.has_two_results else packed_thresholds(
        weights, problem.epilogue, problem.depth)
    return table, problem.epilogue if table is None else Epilogue()


def packed_thresholds(weights: Weights, epilogue: Epilogue, bound: int) -> Buffer | None:
    """Return an epilogue's table of thresholds on the device, or None; see `find_thresholds`."""
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        thresholds = thresholds_of(arrays, epilogue, bound)
        return np.zeros(1, np.int32) if thresholds is None else thresholds.table

    # to check the values before a sign, the tuner also computes the layer with the same weights but
    # only a part of its epilogue; the key therefore contains the epilogue
    table = weights.packed(f"thresholds of {epilogue}", pack)
    return None if table.nbytes == 4 else table


def thresholds_of(arrays: Mapping[str, np.ndarray], epilogue: Epilogue,
                  bound: int) -> Thresholds | None:
    """Return the thresholds of a layer's epilogue, or None; see `find_thresholds`."""
    magnitudes = alphas(arrays)
    read = {name: array for name, array in arrays.items() if name != "weight"}
    return _FOUND.of((digest({**read, "alphas": magnitudes}), epilogue, bound),
                     lambda: find_thresholds(epilogue, arrays, magnitudes, bound))


def find_thresholds(epilogue: Epilogue, arrays: Mapping[str, np.ndarray], magnitudes: np.ndarray,
                    bound: int) -> Thresholds | None:
    """Return the thresholds of an epilogue without run-time operands.

    Parameters
    ----------
    epilogue : Epilogue
        The epilogue; its input 0 is the accumulator times the channel's magnitude.
    arrays : mapping of str to numpy.ndarray
        The layer's constants, with the epilogue's channel operands.
    magnitudes : numpy.ndarray
        The magnitude of each output channel's weights.
    bound : int
        Largest absolute value of an accumulator.

    Returns
    -------
    Thresholds or None
        None if a result is not -1, 0 or 1, if the results of a channel both rise and fall, if the
        epilogue has a run-time operand, or if `bound` is too large to try every accumulator.
    """
    if epilogue.tensor_count or bound > _LARGEST_BOUND:
        return None
    accumulators = np.arange(-bound, bound + 1, dtype=np.float64)[:, None]
    count, channels = len(accumulators), len(magnitudes)
    operands = [np.broadcast_to(array, (1, channels)) for array in operand_arrays(
        epilogue, {name: np.asarray(array, np.float64) for name, array in arrays.items()}, (), 2)]
    below, not_above, direction = (np.empty(channels, np.int32) for _ in range(3))
    step = max(1, _AT_ONCE // count)
    for first in range(0, channels, step):
        part = slice(first, first + step)
        products = accumulators * magnitudes[part].astype(np.float64)
        (results,) = epilogue.expression.evaluate(
            products, *[operand[:, part] for operand in operands])
        results = np.broadcast_to(results, products.shape)
        if not ((results == 0) | (np.abs(results) == 1)).all():
            return None
        signs = results.astype(np.int8)
        falls = signs[-1] < signs[0]
        signs = np.where(falls, -signs, signs)
        if (signs[1:] < signs[:-1]).any():
            return None
        below[part] = np.count_nonzero(signs < 0, axis=0)
        not_above[part] = np.count_nonzero(signs <= 0, axis=0)
        direction[part] = np.where(falls, -1, 1)
    return Thresholds(below - np.int32(bound), not_above - np.int32(bound), direction)
