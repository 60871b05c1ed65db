"""Differences whose cause is known."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.differential.check import Difference


class Cause(NamedTuple):
    """Regular expressions of the kind of differences, of the node and of the text, and the reason
    why gossamer is right, or what it does not promise."""

    kind: str
    where: str
    text: str
    reason: str


CAUSES = (
    Cause("refused", "", "has batch .*, another input has",
          "the open first dimensions of all inputs are one batch"),
    Cause("refused", "", "cannot take .*(gossamer computes it (in|with)|cannot multiply)",
          "where values fix sizes that the file leaves open, these are not known in time"),
    Cause("refused", "Pool", "does not fit an input", "the standard's result is empty, which ONNX "
          "Runtime rounds up to a window beyond the input"),
    Cause("shape", "^(Average|Lp|Max)Pool-", r"shape \(.*\b0\b", "of windows larger than the "
          "input the standard has none; ONNX Runtime divides towards 0 and counts one"),
    Cause("refused|shape|numbers", r"Pool-(?=.*SAME_).*(dilations=\[[^]]*2|ceil_mode=1)", "",
          "SAME_* by the standard pads for dilated windows, and has no size to round up"),
    Cause("numbers", r"^AveragePool-(?=.*SAME_)(?=.*strides=\[.*[23])", "",
          "pads of SAME_* are not below 0; ONNX Runtime's are, or it fails"),
    Cause("refused", "^ConvTranspose-(?=.*SAME_).*output_padding", "makes a result of shape",
          "ONNX's inference adds output_padding to a size of SAME_*, which does not have it"),
    Cause("shape", "^ConvTranspose-.*SAME_", "",
          "the standard multiplies sizes by strides; ONNX Runtime takes no pads below 0"),
    Cause("shape", "^Loop", "", "the standard stacks scan outputs, the reference joins them"),
    Cause("shape", "^NonZero-", r"shape \(0, ", "a number has no axes: ONNX Runtime counts one"),
    Cause("numbers", r"^Clip-(1[1-9]|2)", r"such as np.float\d+\(-?inf", "a bound that is not "
          "given is none, as in ONNX's reference; ONNX Runtime's is the greatest finite number"),
    Cause("numbers", r"^InstanceNormalization-.* of \d+x\d+x1(x1)*, ", "numbers of float",
          "one pixel is its mean, from which ONNX Runtime's differs by rounding"),
    Cause("numbers", "^Pow-", r"expected np.int\d+\(-(2147483648|9223372036854775808)\)",
          "0 to a power below 0 is infinite: no integer stands for it"),
    Cause("numbers", "^Mod-", r"expected np.u?int\d+\(0\)", "a remainder of a division by 0 is "
          "the dividend, as its quotient is 0; ONNX Runtime refuses it"),
    Cause("numbers", r"^Resize-.*cubic.* of d\d+x", "", "where the batch is resized, too, only the "
          "reference computes cubic, which differs from exact arithmetic there"),
    Cause("numbers", "^Reduce", r"\(-?\d\.\d+e-0[89]\) at .*\(-?\d\.\d+e-0[89]\)",
          "of numbers whose sum is 0 the rounding is left"),
    Cause("shape", "^Squeeze-", r"shape \(1, ", "a Squeeze of all sizes of 1 keeps the batch"),
)


def cause(found: Difference) -> str:
    """Returns the reason of a difference; "" where it is not known."""
    return next((each.reason for each in CAUSES
                 if re.search(each.kind, found.kind) and re.search(each.where, found.where)
                 and re.search(each.text, found.text)), "")
