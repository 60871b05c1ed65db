"""The op of batched matrix products, and its algorithms."""

from gossamer.ops.matmul.mma import MmaMatmul
from gossamer.ops.matmul.problem import MatmulProblem, reference
from gossamer.ops.matmul.tiled import NumpyMatmul, TiledMatmul, WideMatmul
from gossamer.ops.op import Op

OP = Op("matmul", MatmulProblem, reference, (
    NumpyMatmul(), WideMatmul(), TiledMatmul(), MmaMatmul()))
