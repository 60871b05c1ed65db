"""Channels normalised by given statistics."""

from gossamer.ops.normalise.host import NumpyNormalise
from gossamer.ops.normalise.problem import NormaliseProblem
from gossamer.ops.normalise.published import PublishedNormalise
from gossamer.ops.normalise.reference import reference
from gossamer.ops.op import Op

OP = Op("normalise", NormaliseProblem, reference, (NumpyNormalise(), PublishedNormalise()))
