"""The op of fusions, and its algorithms."""

from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.attention import AttentionMma
from gossamer.ops.fused.binary import (
    BitTensorCoreFusion,
    HostDirectPopcountFusion,
    PopcountFusion,
    WidePopcountFusion,
)
from gossamer.ops.fused.channel_attention import ChannelAttention
from gossamer.ops.fused.convolution import MergedMma
from gossamer.ops.fused.convolution_pool import ConvolutionPoolMma
from gossamer.ops.fused.first_convolution import FirstConvolutionMma
from gossamer.ops.fused.gather_expression import GatherExpressionFusion
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import (
    InvertedResidualMma,
    SeparableMma,
    SqueezeExciteMma,
    StemMma,
)
from gossamer.ops.fused.inverted_residual.squeeze_excite import SqueezeExcite
from gossamer.ops.fused.moves import StridedMoves
from gossamer.ops.fused.normalised import NormalisedMma
from gossamer.ops.fused.pointwise_mean import PointwiseMean
from gossamer.ops.fused.pointwise_pair import PointwisePairMma
from gossamer.ops.fused.popcount_chain import PopcountChain
from gossamer.ops.fused.problem import FusionProblem, reference
from gossamer.ops.fused.row_expression import RowExpressionFusion
from gossamer.ops.op import Op

ALGORITHMS: tuple[FusionAlgorithm, ...] = (
    InvertedResidualMma(), SeparableMma(), StemMma(), SqueezeExciteMma(), SqueezeExcite(),
    ChannelAttention(), AttentionMma(), NormalisedMma(), MergedMma(), PointwiseMean(),
    FirstConvolutionMma(), PopcountChain(), ConvolutionPoolMma(), PointwisePairMma(),
    RowExpressionFusion(), StridedMoves(), GatherExpressionFusion(), BitTensorCoreFusion(),
    WidePopcountFusion(), PopcountFusion(), HostDirectPopcountFusion())

OP = Op("fused", FusionProblem, reference, ALGORITHMS)
