"""Takes squeeze-and-excite layers apart.

Source: J. Hu, L. Shen, G. Sun, "Squeeze-and-excitation networks", CVPR 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.region.parts import is_image_mean, is_product
from gossamer.ops.region.problem import ENTRY, RegionProblem, Source

_GATES: Source = (2, 0)


@dataclass(frozen=True)
class SqueezeExciteLayer:
    """A squeeze-and-excite layer: two small products make a gate of each channel of an image from
    the means of all channels.

    squeeze, excite: the products, which are parts 1 and 2 of the region. scale: what is made of an
    element, of its channel's gate, which is the first operand, and of the same elements of other
    tensors. tensors: the numbers of the region's inputs that these are.
    """

    squeeze: Conv2dProblem
    excite: Conv2dProblem
    scale: Epilogue
    tensors: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.squeeze.channels

    @property
    def squeezed(self) -> int:
        """Numbers that the first product makes."""
        return self.squeeze.out_channels


def layer_of(problem: RegionProblem) -> SqueezeExciteLayer | None:
    """Returns a region as a squeeze-and-excite layer; None where its layers are others."""
    if len(problem.parts) != 4:
        return None
    mean, squeeze, excite, scale = problem.parts
    if not (is_image_mean(mean) and is_product(squeeze) and is_product(excite)):
        return None
    assert isinstance(squeeze, Conv2dProblem) and isinstance(excite, Conv2dProblem)
    chain = ((ENTRY,), ((0, 0),), ((1, 0),))
    if problem.sources[:3] != chain or not (squeeze.is_pointwise and excite.is_pointwise):
        return None
    if excite.out_channels != squeeze.channels or not isinstance(scale, ElementwiseProblem):
        return None
    scaled = _scale_of(scale, problem.sources[3])
    if scaled is None:
        return None
    return SqueezeExciteLayer(squeeze, excite, *scaled)


def _scale_of(scale: ElementwiseProblem, sources: tuple[Source, ...]
              ) -> tuple[Epilogue, tuple[int, ...]] | None:
    """Returns what is made of an element, with the numbers of the region's other inputs that it
    reads; None where the element and its gate are not each read once, or an input is read twice."""
    if scale.constants or scale.dtypes != ("float32",) or len(set(sources)) != len(sources):
        return None
    if ENTRY not in sources or _GATES not in sources:
        return None
    others = [source for source in sources if source not in (ENTRY, _GATES)]
    x = scale.operands[sources.index(ENTRY)]
    if any(source[0] >= 0 for source in others) or scale.outputs[0].shape != x.shape or any(
            scale.operands[sources.index(source)] != x for source in others):
        return None
    order = [sources.index(source) for source in (ENTRY, _GATES, *others)]
    kinds = ("channel", *("tensor" for _ in others))
    return Epilogue(scale.expression.with_inputs(order), kinds), tuple(
        source[1] for source in others)
