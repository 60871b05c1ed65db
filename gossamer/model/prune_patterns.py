"""Chooses the weights that become zero: the smallest ones, the two smallest of every four, or whole
channels."""

from __future__ import annotations

import numpy as np

PATTERNS = ("unstructured", "2:4", "channels")
"""The patterns by which weights become zero. unstructured: the smallest weights. 2:4: of every four
weights along the input channels, the two smallest, as the sparse tensor cores of NVIDIA GPUs (sm_80
on) need. channels: all weights of the filters of least norm, so that the output channels of these
filters depend on no input."""


def smallest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Returns a mask of the `count` smallest magnitudes; of equal magnitudes, the mask has the
    first."""
    if count == 0:
        return np.zeros(magnitudes.size, bool)
    threshold = np.partition(magnitudes, count - 1)[count - 1]
    chosen = magnitudes < threshold
    equal = np.flatnonzero(magnitudes == threshold)
    chosen[equal[: count - np.count_nonzero(chosen)]] = True
    return chosen


def two_of_four(magnitudes: np.ndarray, axis: int) -> np.ndarray:
    """Returns a mask of the two smallest of every four magnitudes along an axis whose length is a
    multiple of 4; of equal magnitudes, the mask has the first."""
    moved = np.moveaxis(magnitudes, axis, -1)
    fours = moved.reshape(*moved.shape[:-1], -1, 4)
    ranks = np.argsort(np.argsort(fours, axis=-1, kind="stable"), axis=-1, kind="stable")
    return np.moveaxis((ranks < 2).reshape(moved.shape), -1, axis)


def whole_channels(magnitudes: np.ndarray, axis: int, sparsity: float) -> np.ndarray:
    """Returns a mask of the channels along an axis that have the least Euclidean norms. sparsity:
    the fraction of masked channels, which is rounded; at least one channel stays. Of channels with
    equal norms, the mask has the first."""
    others = tuple(index for index in range(magnitudes.ndim) if index != axis)
    # scaled, so that no square overflows
    greatest = np.max(magnitudes[np.isfinite(magnitudes)], initial=0.0)
    norms = np.square(magnitudes / (greatest or 1.0)).sum(axis=others)
    count = min(round(sparsity * norms.size), norms.size - 1)
    shape = [1] * magnitudes.ndim
    shape[axis] = -1
    return np.broadcast_to(smallest(norms, count).reshape(shape), magnitudes.shape)
