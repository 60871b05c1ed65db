"""The steps of convolution in OpenCL as it was published that no plan has as a layer of its own.
They are ops, so that the benchmark checks and measures each like any other layer."""

from gossamer.bench.published_steps import batch_statistics, im2col, normalise
from gossamer.ops.registry import OPS


def register() -> None:
    """Adds the ops of these steps to the ops that can be measured."""
    for op in (im2col.OP, batch_statistics.OP, normalise.OP):
        OPS[op.name] = op
