"""Steps of the published convolution in OpenCL that are no layers in any plan. Each step is an op
here, so that the benchmark checks and measures it like a layer."""

from gossamer.ops.registry import OPS
from gossamer_bench.published_steps import batch_statistics, im2col, normalise


def register() -> None:
    """Adds the ops of these steps to the ops that can be measured."""
    for op in (im2col.OP, batch_statistics.OP, normalise.OP):
        OPS[op.name] = op
