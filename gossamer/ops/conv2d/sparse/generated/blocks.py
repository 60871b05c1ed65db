"""Sorts the nonzeros of a sparse convolution by block of output channels and by input channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedTiling

Taps = list[tuple[int, int, list[tuple[int, int]]]]
"""The taps of an input channel at which a block has nonzeros. Each tap has its row, its column, and
for each nonzero the number of its output channel within the block and the bits of its value."""


@dataclass(frozen=True)
class ChannelBlock:
    """A block of output channels with their nonzeros.

    group: index of the convolution's group to which the block belongs.
    channels: the output channels.
    taps: the taps of each input channel in which the block has nonzeros. The keys are the input
    channels' numbers within the group.
    """

    group: int
    channels: tuple[int, ...]
    taps: dict[int, Taps]

    def terms(self, channels: Sequence[int]) -> list[int]:
        """Returns, for each output channel, the number of its nonzeros in the given input
        channels."""
        counts = [0] * len(self.channels)
        for c in channels:
            for _, _, products in self.taps[c]:
                for b, _ in products:
                    counts[b] += 1
        return counts


def blocks(division: GeneratedTiling, weight: np.ndarray) -> list[ChannelBlock]:
    """Divides the output channels into blocks with similar numbers of nonzeros."""
    problem = division.problem
    weight = np.asarray(weight, np.float32)
    if division.halves:
        with np.errstate(over="ignore"):
            weight = weight.astype(np.float16)
    bits = weight.view(np.uint16 if division.halves else np.uint32)
    result = []
    for group in range(problem.groups):
        first = group * division.per_group
        counts = np.count_nonzero(weight[first:first + division.per_group], axis=(1, 2, 3))
        members: list[list[int]] = [[] for _ in range(division.blocks)]
        sizes = np.zeros(division.blocks, np.int64)
        for channel in np.argsort(-counts, kind="stable"):
            with_room = [i for i in range(division.blocks) if len(members[i]) < division.block]
            least = min(with_room, key=lambda i: (sizes[i], len(members[i])))
            members[least].append(first + int(channel))
            sizes[least] += counts[channel]
        for channels in map(sorted, members):
            result.append(ChannelBlock(group, tuple(channels),
                                _taps(weight[channels], bits[channels])))
    return result


def _taps(weight: np.ndarray, bits: np.ndarray) -> dict[int, Taps]:
    """Returns the taps of each input channel for the weights of a block."""
    taps: dict[int, Taps] = {}
    nonzeros = np.nonzero(weight.transpose(1, 2, 3, 0))
    values = bits.transpose(1, 2, 3, 0)[nonzeros]
    for c, r, s, b, value in zip(*(axis.tolist() for axis in nonzeros), values.tolist(),
                                 strict=True):
        channel_taps = taps.setdefault(c, [])
        if not channel_taps or channel_taps[-1][:2] != (r, s):
            channel_taps.append((r, s, []))
        channel_taps[-1][2].append((b, value))
    return taps
