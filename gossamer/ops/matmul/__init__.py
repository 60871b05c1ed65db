"""Batched matrix products of two tensors."""

from gossamer.ops.matmul.host import NumpyMatmul
from gossamer.ops.matmul.mma import MmaMatmul
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.matmul.reference import reference
from gossamer.ops.matmul.tiled import TiledMatmul, WideMatmul
from gossamer.ops.op import Op

OP = Op("matmul", MatmulProblem, reference, (
    NumpyMatmul(), WideMatmul(), TiledMatmul(), MmaMatmul()))
