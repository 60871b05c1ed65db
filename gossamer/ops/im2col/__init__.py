"""The im2col matrix of a convolution."""

from gossamer.ops.im2col.host import NumpyIm2col
from gossamer.ops.im2col.problem import Im2colProblem
from gossamer.ops.im2col.published import PublishedIm2col
from gossamer.ops.im2col.reference import reference
from gossamer.ops.op import Op

OP = Op("im2col", Im2colProblem, reference, (NumpyIm2col(), PublishedIm2col()))
