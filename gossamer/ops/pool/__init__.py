"""Max and average pooling."""

from gossamer.ops.op import Op
from gossamer.ops.pool.direct import DirectPool
from gossamer.ops.pool.host import NumpyPool
from gossamer.ops.pool.packed import PackedPool
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.pool.reference import reference

OP = Op("pool", PoolProblem, reference, (NumpyPool(), DirectPool(), PackedPool()))
