"""Products of large matrices on GPUs, by tiles in which a work-item has more results than in the
tiles of convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.gemm.dense import packed_by_depth
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_SOURCE = Path(__file__).with_name("large.cl")
_KEYS = ("tile_m", "tile_n", "tile_k", "work_m", "work_n", "lanes_n", "blocks_per_unit", "tiles",
         "early", "columns", "snake", "checked")
_CONFIGS = (
    (128, 256, 8, 8, 16, 4, 1, 3, 1, 1, 1, 0),
    (128, 128, 8, 8, 16, 4, 2, 4, 1, 1, 1, 0),
    (128, 128, 8, 16, 8, 8, 2, 2, 0, 0, 1, 0),
    (128, 128, 8, 8, 16, 4, 2, 2, 0, 1, 1, 0),
)
"""Values of _KEYS, which large.cl describes. On an H200 the first config is the fastest through
CUDA, and one of the last two is the fastest through OpenCL; on every device each config may be
measured."""
_LEAST = 128
"""The least number of rows, and of columns: with fewer rows or columns, much of a tile would be
empty."""


class LargeGemm(Algorithm):
    """Tiles of 128 x 128 or more with 128 results a work-item, swizzled in shared memory."""

    op = "gemm"
    name = "large_gemm"

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if device.on_processors:
            return "made for GPUs, of which 256 work-items share a tile"
        if min(problem.rows, problem.columns) < _LEAST:
            return f"made for {_LEAST} rows and columns or more"
        if problem.columns % 4 or problem.depth % 4 or not problem.depth:
            return "needs a depth and a number of columns that are multiples of 4"
        if problem.columns * problem.depth >= 2**31:
            return "2^31 weights or more"
        limits = device.limits
        if min(limits.work_group_size, limits.sure_work_group_size) < 256:
            return "needs work-groups of 256"
        needed = max(map(_shared_bytes, _configs(device)))
        if limits.shared_bytes < needed:
            return f"needs {needed} bytes of shared memory"
        return None

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        for config in _configs(device):
            yield Variant(tuple(zip(_KEYS, config, strict=True)), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        tile_m, tile_n, tile_k = (variant[key] for key in _KEYS[:3])
        rows, columns, depth = problem.rows, problem.columns, problem.depth
        exact = rows % tile_m == columns % tile_n == depth % tile_k == 0
        options: dict[str, Any] = {} if variant["tiles"] == 2 else {
            "architectures": ("sm_80", "sm_100")}
        kernel = device.compile(KernelSource.of(_SOURCE, "large_gemm", {
            **{key.upper(): value for key, value in variant.config},
            # where bounds are checked, a multiprocessor has too few registers for two work-groups
            "BLOCKS_PER_UNIT": variant["blocks_per_unit"] if exact else 1,
            "CHECKED": int(variant["checked"] or not exact),
            **epilogue_macros(problem.epilogue),
        }, **options))
        weight = packed_by_depth(weights)
        work_group = tile_m // variant["work_m"] * (tile_n // variant["work_n"])
        launch = Launch(kernel, (-(-rows // tile_m) * -(-columns // tile_n),), (work_group,),
                        (input_buffer(0), weight, output_buffer(0), rows, columns, depth,
                         *epilogue_arguments(problem.epilogue, weights, 1, columns)))
        return State(problem, variant, device, [launch])


def _configs(device: Device) -> list[tuple[int, ...]]:
    """Returns the configs that the device can run. Configs with more than two tiles in shared
    memory at once need asynchronous copies."""
    return [config for config in _CONFIGS if device.limits.mma or _tiles(config) == 2]


def _tiles(config: tuple[int, ...]) -> int:
    return config[_KEYS.index("tiles")]


def _shared_bytes(config: tuple[int, ...]) -> int:
    tile_m, tile_n, tile_k = config[:3]
    return 4 * _tiles(config) * tile_k * (tile_m + tile_n)
