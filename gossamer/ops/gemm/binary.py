"""Matrix products of signs on the host, as convolutions of images of one pixel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.binary.host import HostPopcount
from gossamer.ops.gemm.dense import pointwise
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import Weights


class HostPopcountGemm(Algorithm):
    """The convolution of signs, applied to images of one pixel."""

    op = "gemm"
    name = "host_popcount"
    _convolution = HostPopcount()

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return self._convolution.supports(pointwise(problem), device)

    def variants(self, problem: GemmProblem, device: Device) -> Iterator[Variant]:
        yield Variant((), problem.inputs, problem.outputs)

    def prepare(self, weights: Weights, problem: GemmProblem, variant: Variant,
                device: Device) -> State:
        convolution = pointwise(problem)
        images = Variant((), convolution.inputs, convolution.outputs)
        return State(problem, variant, device,
                     data=self._convolution.prepare(weights, convolution, images, device))

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        self._convolution.launch(state.data, inputs, outputs, workspace, stream)
