"""Several layers that one algorithm computes in one step, with all algorithms for them."""

from gossamer.ops.op import Op
from gossamer.ops.region.algorithm import RegionAlgorithm
from gossamer.ops.region.binary import (
    BitTensorCoreRegion,
    HostPopcountRegion,
    PopcountRegion,
    WidePopcountRegion,
)
from gossamer.ops.region.bottleneck.bottleneck_mma import BottleneckMma
from gossamer.ops.region.channel_attention.channel_attention import ChannelAttention
from gossamer.ops.region.convolution_pool.convolution_pool_mma import ConvolutionPoolMma
from gossamer.ops.region.first_convolution import FirstConvolutionMma
from gossamer.ops.region.inverted_residual.inverted_residual import InvertedResidual, Separable
from gossamer.ops.region.inverted_residual.inverted_residual_mma import (
    InvertedResidualMma,
    SeparableMma,
    SqueezeExciteMma,
    StemMma,
)
from gossamer.ops.region.inverted_residual.squeeze_excite import SqueezeExcite
from gossamer.ops.region.pointwise_mean.pointwise_mean import PointwiseMean
from gossamer.ops.region.pointwise_pair.pointwise_pair import PointwisePairMma
from gossamer.ops.region.popcount_chain.popcount_chain import PopcountChain
from gossamer.ops.region.problem import RegionProblem
from gossamer.ops.region.reference import reference

ALGORITHMS: tuple[RegionAlgorithm, ...] = (
    InvertedResidualMma(), SeparableMma(), StemMma(), SqueezeExciteMma(), InvertedResidual(),
    Separable(), SqueezeExcite(), ChannelAttention(), PointwiseMean(), FirstConvolutionMma(),
    PopcountChain(), BottleneckMma(), ConvolutionPoolMma(), PointwisePairMma(),
    BitTensorCoreRegion(), WidePopcountRegion(), PopcountRegion(), HostPopcountRegion())

OP = Op("region", RegionProblem, reference, ALGORITHMS)
