"""The places of a convolution and the runs of places that a work-group copies to shared memory. The
text at the top of runs.h explains both."""

from __future__ import annotations

from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.dense.implicit_im2col import channels_in_memory
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.strided import divisor

MOST_PLACES = 2**30
"""The most places of all images, so that kernels can number them with 32-bit integers."""
RUNS = 2
"""Slots for runs. A run is the places that a tile reads, in the channels of a slice."""
BARRIERS_BYTES = 1024
"""Bytes of shared memory for barriers, before the runs."""
_MULTIPLE = 8
"""Channels that are copied, or stored, at once."""
_ALIGNMENT = 1024
"""A run takes a multiple of this number of bytes."""

# The rates below were fitted to 54 measured times of ResNet-50's 3x3 layers in batches of 64 and 8
# on an H200.
CYCLES_PER_MICROSECOND = 1750
"""Clock rate in MHz of the multiprocessors of an H200 under load."""
_COPY = 35
"""Cycles that a copying work-item takes for one piece (16 bytes) of a run."""
_COPIED_PIECES = 96
"""Work-items that copy runs."""
_MOVED_PER_MICROSECOND = 3.9e6
"""Bytes that device memory reads and writes in a microsecond."""
_CACHED_BYTES = 35e6
"""Bytes that stay in the L2 cache from one layer to the next."""


class Places:
    """The places of a problem: the pixels of all images as one sequence, with the pads between
    them.

    pitch: number of places of a row; the pads at the right of a row are also the left pads of the
    next row.
    image: number of places of an image; the pads below an image are also the pads above the next
    image.
    last: the place of the last output.
    halo: number of places after a tile that the last tap reads.
    """

    def __init__(self, problem: Conv2dProblem) -> None:
        top, left, bottom, right = problem.pads
        self.pitch = max(problem.width + max(left, right), problem.out_width)
        rows = max(problem.height + max(top, bottom), problem.out_height)
        self.image = rows * self.pitch
        self.last = ((problem.batch - 1) * self.image + (problem.out_height - 1) * self.pitch
                     + problem.out_width - 1)
        self.halo = (problem.kernel[0] - 1) * self.pitch + problem.kernel[1] - 1


def cannot_shift(problem: Conv2dProblem) -> str | None:
    """Returns the reason why a problem cannot be computed as shifted products of places; None where
    it can."""
    if problem.kernel == (1, 1):
        return "takes windows of more than one tap"
    if problem.stride != (1, 1) or problem.dilation != (1, 1) or problem.groups > 1:
        return "takes windows of stride 1 without dilation, in one group"
    if problem.channels % _MULTIPLE or problem.out_channels % _MULTIPLE:
        return (f"{problem.channels} to {problem.out_channels} channels, takes multiples of "
                f"{_MULTIPLE}")
    if problem.outputs[0].size and problem.batch * Places(problem).image > MOST_PLACES:
        return f"more than {MOST_PLACES} pixels and pads"
    return None


def run_pieces(problem: Conv2dProblem, tile_places: int) -> int:
    """Returns the number of places of the run of a tile, rounded up to an odd number."""
    return (tile_places + Places(problem).halo) | 1


def run_bytes(problem: Conv2dProblem, tile_places: int, channels: int) -> int:
    """Returns the bytes of a slot for the run of a tile, in a number of input channels."""
    nbytes = 2 * channels * run_pieces(problem, tile_places)
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def geometry_arguments(problem: Conv2dProblem, variant: Variant, pieces: int, nbytes: int
                       ) -> list[int]:
    """Returns the arguments for GEOMETRY_PARAMETERS of runs.h. pieces, nbytes: the places, rounded
    up, and the bytes of a run."""
    places, (x, y) = Places(problem), (variant.inputs[0], variant.outputs[0])
    x_image, _, x_row, x_column = x.strides
    return [problem.batch * places.image, *divisor(places.image), *divisor(places.pitch),
            places.halo, pieces, nbytes, problem.channels, problem.height, problem.width,
            problem.out_height, problem.out_width, *problem.pads[:2], x_image, x_row, x_column,
            x.offset, y.offset, channels_in_memory(y)]


def copy_cycles(problem: Conv2dProblem, tile_places: int, channels: int) -> float:
    """Returns the cycles that copying the run of a tile takes, in a number of input channels."""
    pieces = (tile_places + Places(problem).halo) * channels // 8
    return pieces / _COPIED_PIECES * _COPY


def moving_us(problem: Conv2dProblem) -> float:
    """Returns the microseconds that device memory takes for the tensors; 0 where they stay in the
    L2 cache."""
    nbytes = 2 * sum(spec.size for spec in (*problem.inputs, *problem.outputs))
    return nbytes / _MOVED_PER_MICROSECOND if nbytes > _CACHED_BYTES else 0.0
