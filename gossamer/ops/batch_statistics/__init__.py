"""The mean and variance of each channel, by which batch norm in training normalises its input."""

from gossamer.ops.batch_statistics.host import NumpyBatchStatistics
from gossamer.ops.batch_statistics.problem import BatchStatisticsProblem
from gossamer.ops.batch_statistics.published import PublishedBatchStatistics
from gossamer.ops.batch_statistics.reference import reference
from gossamer.ops.op import Op

OP = Op("batch_statistics", BatchStatisticsProblem, reference,
        (NumpyBatchStatistics(), PublishedBatchStatistics()))
