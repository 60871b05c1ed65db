"""Macros and arguments with which a network's first layers read images.

The network's input may be the image itself, or another tensor from which kernels compute the image,
such as bytes in NHWC or floats before rounding. In the latter case, the arithmetic that computes
the image is the first part of a fusion.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from gossamer.device.base import Argument
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import epilogue_macros
from gossamer.ops.weights import Weights
from gossamer.tensor import BFLOAT16, TensorSpec

_TYPES = {"float32": "float", "float16": "HALF", "uint8": "uchar", BFLOAT16: "unsigned short"}


def makes_image(part: Problem) -> bool:
    """Return whether a part of a fusion computes an image.

    The part must compute the image from a single tensor in float32 arithmetic, with constants that
    have one number per channel.
    """
    return isinstance(part, ElementwiseProblem) and len(part.inputs) == 1 and (
        part.arithmetic == "float32" and part.dtypes == ("float32",)
        and part.constants == tuple(range(1, len(part.operands)))
        and part.inputs[0].shape == part.shape and len(part.shape) == 4
        and part.inputs[0].dtype in _TYPES
        and all(part.operands[index].shape[-3:] == (part.shape[1], 1, 1)
                for index in part.constants))


def image_macros(image: TensorSpec, given: ElementwiseProblem | None) -> dict[str, object]:
    """Return the macros that image.h needs.

    image: spec of the tensor that the kernel reads.
    given: the part that computes the image from this tensor; None if the tensor is the image.
    """
    numbers = Epilogue() if given is None else Epilogue(
        given.expression, ("channel",) * len(given.constants))
    return {"IMAGE_TYPE": _TYPES[image.dtype], "IMAGE_HALVES": int(image.dtype == "float16"),
            "IMAGE_BFLOATS": int(image.dtype == BFLOAT16),
            "IMAGE_NHWC": int(image.layout == "NHWC"), "IMAGE_CHANNELS": image.shape[1],
            **epilogue_macros(numbers, prefix="GIVEN_"), "GIVEN_OPERANDS": "".join(
                f", given_operand{index}" for index in range(len(numbers.operands)))}


def given_arguments(weights: Weights, given: ElementwiseProblem | None) -> list[Argument]:
    """Return the kernel arguments that match GIVEN_EPILOGUE_PARAMETERS.

    weights: the constants of a fusion.
    given: the first part of the fusion if it computes the image from the network's input; else
    None.
    """
    return [] if given is None else [
        weights.packed(f"operand{index} of what is given", functools.partial(_numbers, index))
        for index in given.constants]


def _numbers(index: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a constant of the fusion's first part, with one number per channel."""
    return np.ascontiguousarray(arrays[f"0.operand{index}"], np.float32).reshape(-1)
