"""Batch norm with the mean and the variance of its own input."""

from gossamer.ops.batch_norm.host import NumpyBatchNorm
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.batch_norm.published import PublishedBatchNorm
from gossamer.ops.batch_norm.reference import reference
from gossamer.ops.op import Op

OP = Op("batch_norm", BatchNormProblem, reference, (NumpyBatchNorm(), PublishedBatchNorm()))
