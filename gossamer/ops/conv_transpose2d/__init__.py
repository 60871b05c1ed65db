"""Transposed two-dimensional convolution."""

from gossamer.ops.conv_transpose2d.direct import DirectConvTranspose2d
from gossamer.ops.conv_transpose2d.host import NumpyConvTranspose2d
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.conv_transpose2d.reference import reference
from gossamer.ops.op import Op

OP = Op("conv_transpose2d", ConvTranspose2dProblem, reference,
        (NumpyConvTranspose2d(), DirectConvTranspose2d()))
