"""The base class of the algorithms that compute a convolution as shifted products."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from gossamer.device.base import Buffer, Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.shifted.places import Places, cannot_shift, geometry_arguments
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights


def config_of(tile: Any) -> tuple[tuple[str, int], ...]:
    """Returns a tile as the config of a variant."""
    return tuple(asdict(tile).items())


def work_items(warpgroups: int) -> int:
    """Returns the work-items of a work-group: the warpgroups that multiply, and four warps that
    copy."""
    return 128 * (warpgroups + 1)


def registers(warpgroups: int) -> tuple[int, int]:
    """Returns the registers of a copying work-item, and of a multiplying work-item, where so many
    warpgroups multiply."""
    return (56, 240 if warpgroups == 1 else 224)


class ShiftedProduct(Algorithm):
    """Computes a convolution with windows on tensor cores in float16 with float32 sums.

    A work-group copies its pixels to shared memory once, with pads between the rows, so that every
    tap reads the same pixels at another offset. `implicit_gemm_mma` copies pixels once for each
    tap.

    kernel: the kernel's file, whose function has the same name.
    """

    op = "conv2d"
    reads_parts = True
    writes_parts = True
    kernel: ClassVar[Path]

    @abc.abstractmethod
    def tiles(self, problem: Conv2dProblem, limits: Limits) -> Sequence[Any]:
        """Returns the tiles that fit the shared memory, the fastest first."""

    @abc.abstractmethod
    def tile_of(self, variant: Variant) -> Any:
        """Returns the tile of a variant."""

    @abc.abstractmethod
    def macros(self, tile: Any) -> Mapping[str, int]:
        """Returns the macros of a tile's sizes."""

    @abc.abstractmethod
    def packed(self, weights: Weights, problem: Conv2dProblem, tile: Any) -> Sequence[Buffer]:
        """Returns the weights as the kernel reads them."""

    @abc.abstractmethod
    def sizes(self, problem: Conv2dProblem, tile: Any) -> Sequence[int]:
        """Returns the kernel's arguments between the output and the number of output channels."""

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if not device.limits.wgmma:
            return f"{device.name} has no tensor cores that read shared memory (sm_90a)"
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if (reason := cannot_shift(problem)) is not None or problem.outputs[0].size == 0:
            return reason
        if not self.tiles(problem, device.limits):
            return (f"the taps of a window are up to {Places(problem).halo} pixels and pads apart, "
                    "which do not fit the shared memory")
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        x = problem.inputs[0].with_format(layout="NHWC")
        y = problem.outputs[0].with_format(layout="NHWC")
        for tile in self.tiles(problem, device.limits):
            yield Variant(config_of(tile), (x, *[y] * problem.epilogue.tensor_count), (y,),
                          "fp16").as_fp16

    def variants_in(self, problem: Conv2dProblem, device: Device,
                    precisions: Sequence[str]) -> Iterator[Variant]:
        return self.variants(problem, device) if "fp16" in precisions else iter(())

    def kernel_sources(self, problem: Conv2dProblem, variant: Variant,
                       device: Device) -> tuple[KernelSource, ...]:
        return (self._source(problem, variant),) if variant.outputs[0].size else ()

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        if variant.outputs[0].size == 0:
            return State(problem, variant, device)
        tile = self.tile_of(variant)
        launch = Launch(
            device.compile(self._source(problem, variant)), tile.grid(problem, device.limits),
            (work_items(tile.warpgroups), 1),
            (input_buffer(0), *self.packed(weights, problem, tile), output_buffer(0),
             *self.sizes(problem, tile), problem.out_channels,
             *geometry_arguments(problem, variant, tile.run_pieces(problem),
                                 tile.run_bytes(problem)),
             *epilogue_arguments(problem.epilogue, weights, 1, problem.out_channels)),
            tile.shared_bytes(problem))
        return State(problem, variant, device, [launch])

    def _source(self, problem: Conv2dProblem, variant: Variant) -> KernelSource:
        tile = self.tile_of(variant)
        copy, multiply = registers(tile.warpgroups)
        return KernelSource.of(self.kernel, self.kernel.stem, {
            "HALVES": 1, **self.macros(tile),
            "COPIER_REGISTERS": copy, "MULTIPLIER_REGISTERS": multiply,
            **epilogue_macros(problem.epilogue, tensor_dtype="float16"),
        }, architectures=("sm_90a", "sm_90a"), dynamic_shared=True)
