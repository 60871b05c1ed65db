"""2-D convolution with all its algorithms."""

from gossamer.ops.conv2d.binary.host_direct import HostDirectPopcount
from gossamer.ops.conv2d.binary.popcount import Popcount
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import BitTensorCore
from gossamer.ops.conv2d.binary.wide_popcount import WidePopcount
from gossamer.ops.conv2d.dense.depthwise import Depthwise, DepthwiseTiled
from gossamer.ops.conv2d.dense.im2col_gemm import Im2colGemm
from gossamer.ops.conv2d.dense.published import PublishedConvolution
from gossamer.ops.conv2d.dense.wide_gemm import WideGemm
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.grouped.grouped_mma import GroupedMma
from gossamer.ops.conv2d.host import HostDepthwise, HostIm2col
from gossamer.ops.conv2d.host_direct.algorithm import HostDirect, HostDirectDense
from gossamer.ops.conv2d.host_direct.depthwise import HostDirectDepthwise
from gossamer.ops.conv2d.host_direct.indirect import HostIndirect, HostIndirectDepthwise
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.shifted.windows_fp16 import ShiftedGemmMma
from gossamer.ops.conv2d.shifted.windows_fp16_sparse import ShiftedSparseMma
from gossamer.ops.conv2d.sparse.direct_sparse import DirectSparse
from gossamer.ops.conv2d.sparse.direct_sparse_table import DirectSparseTable
from gossamer.ops.conv2d.sparse.generated.direct_sparse_compiled import DirectSparseCompiled
from gossamer.ops.conv2d.tensor_core.few_channels import FewChannelsMma
from gossamer.ops.conv2d.tensor_core.implicit_gemm import ImplicitGemmMma, PointwiseMma
from gossamer.ops.conv2d.vendor.cudnn import Cudnn
from gossamer.ops.conv2d.vendor.im2col_cublas import Im2colCublas
from gossamer.ops.op import Op
from gossamer.ops.zero_weights import ZeroConvolution

OP = Op("conv2d", Conv2dProblem, reference,
        (Depthwise(), DepthwiseTiled(), WideGemm(), Im2colGemm(), PointwiseMma(),
         ImplicitGemmMma(), GroupedMma(), ShiftedGemmMma(), FewChannelsMma(), Winograd(), Cudnn(),
         Im2colCublas(), DirectSparse(), DirectSparseTable(), DirectSparseCompiled(),
         ShiftedSparseMma(), BitTensorCore(), WidePopcount(), Popcount(), HostDepthwise(),
         HostIm2col(), HostDirect(), HostDirectDense(), HostDirectDepthwise(), HostIndirect(),
         HostIndirectDepthwise(), HostDirectPopcount(), PublishedConvolution(), ZeroConvolution()))
