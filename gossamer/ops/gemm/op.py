"""The op of matrix products with constant weights, and its algorithms."""

from gossamer.ops.gemm.binary import (
    BitTensorCoreGemm,
    HostDirectPopcountGemm,
    PopcountGemm,
    WidePopcountGemm,
)
from gossamer.ops.gemm.cublas import CublasGemm
from gossamer.ops.gemm.dense import (
    FewRows,
    HostGemm,
    MmaGemm,
    PublishedGemm,
    TiledGemm,
    WideProduct,
)
from gossamer.ops.gemm.host_direct import HostDirectGemm
from gossamer.ops.gemm.problem import GemmProblem, reference
from gossamer.ops.gemm.rows import HostDirectRows
from gossamer.ops.gemm.sparse import SparseGemm, SparseRows
from gossamer.ops.op import Op
from gossamer.ops.zero_weights import ZeroProduct

OP = Op("gemm", GemmProblem, reference,
        (WideProduct(), FewRows(), TiledGemm(), MmaGemm(), CublasGemm(), SparseRows(),
         HostGemm(), HostDirectGemm(), HostDirectRows(), SparseGemm(), HostDirectPopcountGemm(),
         BitTensorCoreGemm(), WidePopcountGemm(), PopcountGemm(), PublishedGemm(), ZeroProduct()))
