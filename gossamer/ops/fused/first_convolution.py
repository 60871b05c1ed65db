"""A network's first convolution fused with the layer before it.

The preceding layer computes the image from the network's input. The convolution's algorithm is
few_channels_mma.
"""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.device.base import Device
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.tensor_core.few_channels import FewChannelsMma
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm, RenamedWeights
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.image import given_arguments, image_macros, makes_image
from gossamer.ops.strided import cannot_compile
from gossamer.ops.weights import Weights

_CONVOLUTION = FewChannelsMma()


class FirstConvolutionMma(FusionAlgorithm):
    """The kernel few_channels_mma of conv2d, which also converts its input.

    The kernel loads bytes or floats in NCHW or NHWC, and converts them to the pixels of the image.
    """

    name = _CONVOLUTION.name
    patterns = (("elementwise", "conv2d"),)

    def recognises(self, problem: FusionProblem) -> bool:
        given, convolution = problem.parts
        return makes_image(given) and isinstance(convolution, Conv2dProblem) and (
            problem.sources[1][0] == (0, 0))

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if len(problem.parts) != 2 or not self.recognises(problem):
            return "needs a first convolution after the layer that computes its image"
        if problem.exits != ((1, 0),) or (0, 0) in problem.sources[1][1:]:
            return "the image is read elsewhere"
        return _CONVOLUTION.supports(_parts(problem)[1], device)

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        for variant in _CONVOLUTION.variants(_parts(problem)[1], device):
            yield Variant(variant.config, (problem.inputs[0], *variant.inputs[1:]),
                          variant.outputs, variant.precision)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        given, convolution = _parts(problem)
        own = RenamedWeights(weights, {name: f"1.{name}" for name in convolution.weight_shapes})
        return State(problem, variant, device, _CONVOLUTION.launches(
            own, convolution, variant, device, image_macros(variant.inputs[0], given),
            given_arguments(weights, given)))


def _parts(problem: FusionProblem) -> tuple[ElementwiseProblem, Conv2dProblem]:
    given, convolution = problem.parts
    assert isinstance(given, ElementwiseProblem) and isinstance(convolution, Conv2dProblem)
    return given, convolution
