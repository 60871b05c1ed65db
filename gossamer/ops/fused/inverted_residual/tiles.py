"""Lists the tiles into which a block can be divided for inverted_residual_mma, in the order of
their expected times."""

from __future__ import annotations

from functools import lru_cache

from gossamer.device.limits import Limits
from gossamer.ops.fused.inverted_residual.block import Block, of_batch
from gossamer.ops.fused.inverted_residual.phases import WARPS
from gossamer.ops.fused.inverted_residual.sizes import BlockTile
from gossamer.ops.fused.inverted_residual.tiling import BlockTiling

_SHAPES = ((1, 4), (2, 4), (4, 4), (2, 7), (7, 2), (4, 7), (7, 4), (4, 8), (7, 7), (8, 8), (7, 14),
           (8, 16), (14, 14), (16, 16))
"""Approximate rows and columns of tiles of outputs."""
_CHUNKS = (16, 32, 48, 64, 96, 128)
BATCHES = (1, 64)
"""Batch sizes whose best tiles are offered at every batch size. So a plan that was tuned at one
batch size can be used at others, too."""
_CLUSTERS = (1, 2, 3, 4, 6, 8, 10, 12, 15, 16)
_MOST_SHARED = 3
"""The largest cluster is tried where a launch then has at most this number of work-groups for each
multiprocessor."""


@lru_cache(maxsize=1024)
def tilings(block: Block, precision: str, limits: Limits) -> tuple[BlockTiling, ...]:
    """Returns the tiles that the device can run, in the order of their expected times."""
    p = block.depthwise
    if not p.outputs[0].size:
        return ()
    fitting = []
    for rows, columns in _shapes(block):
        groups = -(-p.out_height // rows) * -(-p.out_width // columns) * p.batch
        for chunk in _CHUNKS:
            if chunk >= block.hidden + 16:
                continue
            most = min(limits.cluster, -(-block.hidden // chunk))
            clusters = _clusters(groups, most, limits.compute_units)
            if block.excite is not None:
                # all sizes are tried, because a small cluster may not have enough shared memory for
                # all hidden channels of an image
                clusters = [size for size in _CLUSTERS if size <= most]
            for cluster in clusters:
                for warps in WARPS:
                    for wgmma in (0, 1):
                        tile = BlockTile(rows, columns, chunk, cluster, warps, wgmma)
                        divided = BlockTiling(block, tile, precision)
                        if divided.why_unfit(limits) is None:
                            fitting.append(divided)
    return tuple(sorted(fitting, key=lambda divided: divided.cycles(limits)))


def _clusters(groups: int, most: int, units: int) -> list[int]:
    """Returns the sizes of clusters that are tried where `groups` clusters are launched: the
    largest size that leaves some compute unit without work, the smallest size that gives each
    compute unit work, and the largest possible size if it gives each compute unit at most
    _MOST_SHARED work-groups."""
    sizes = [size for size in _CLUSTERS if size <= most]
    filling = sum(size * groups < units for size in sizes)
    tried = sizes[max(0, filling - 1):filling + 1]
    if sizes[-1] * groups <= _MOST_SHARED * units:
        tried.append(sizes[-1])
    return list(dict.fromkeys(tried))


def fits(block: Block, precision: str, limits: Limits) -> bool:
    """Returns whether the device can run some tile of a block in a precision. Tiles with the
    smallest chunk and without a cluster are tried first, because this is quick."""
    if block.excite is None and any(
            BlockTiling(block, BlockTile(rows, columns, _CHUNKS[0], 1, warps),
                        precision).why_unfit(limits) is None
            for rows, columns in _shapes(block) for warps in WARPS):
        return True
    return any(tilings(of_batch(block, batch), precision, limits) for batch in BATCHES)


def _shapes(block: Block) -> list[tuple[int, int]]:
    """Returns the rows and columns of the tiles that are tried. With squeeze-and-excite, which
    scales by means over the image, the only tile is the whole image."""
    p = block.depthwise
    if block.excite is not None:
        return [(p.out_height, p.out_width)]
    return list(dict.fromkeys((_balanced(p.out_height, rows), _balanced(p.out_width, columns))
                              for rows, columns in _SHAPES))


def _balanced(size: int, most: int) -> int:
    """Returns the length of equal tiles that cover `size`. The number of these tiles is the number
    of tiles of length `most` that would cover `size`."""
    return -(-size // -(-size // most))
