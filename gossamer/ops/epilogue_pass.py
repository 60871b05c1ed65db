"""Application of an epilogue in a separate kernel, to results or to zeros.

Many algorithms import epilogue.py. If the code below were in that module, every change of this
kernel would invalidate the measured times of all these algorithms.
"""

from __future__ import annotations

from pathlib import Path

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.epilogue import epilogue_arguments, epilogue_macros
from gossamer.ops.launch import Launch, output_buffer
from gossamer.ops.strided import WORK_GROUP_SIZE, divisor, elements_per_channel
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

_SOURCE = Path(__file__).with_name("epilogue_pass.cl")


def epilogue_pass_launches(epilogue: Epilogue, weights: Weights, device: Device,
                           output: TensorSpec, first_tensor_input: int,
                           work_group: int = WORK_GROUP_SIZE, *,
                           of_zeros: bool = False) -> list[Launch]:
    """Return the launches that apply an epilogue to output 0.

    The epilogue is applied in place. If it is the identity and `of_zeros` is False, there are no
    launches.

    output: spec of the output. The output is float32 or float16, without padding, and has fewer
    than 2^31 elements. It is (N, C, H, W) in NCHW, NHWC or CHWN, or a row-major matrix
    (rows, channels). Tensor operands have the output's dtype and layout; channel operands are
    float32.
    first_tensor_input: index of the run-time input that is the first tensor operand.
    work_group: number of work-items per work-group.
    of_zeros: whether to apply the epilogue to zeros instead of the values of output 0.
    """
    if output.size == 0 or (epilogue.expression.is_identity and not of_zeros):
        return []
    channels, inner = output.shape[1], elements_per_channel(output)
    no_channels = "channel" not in epilogue.operands
    one_channel = inner % 4 == 0 or no_channels
    four_channels = inner == 1 and channels % 4 == 0
    vector = 4 if output.size % 4 == 0 and (one_channel or four_channels) else 1
    kernel = device.compile(KernelSource.of(_SOURCE, "epilogue_pass", {
        "HALVES": int(output.dtype == "float16"),
        "VECTOR": vector,
        "OF_ZEROS": int(of_zeros),
        "WORK_GROUP_SIZE": work_group,
        **epilogue_macros(epilogue, tensor_dtype=output.dtype, one_channel=one_channel),
    }))
    items = output.size // vector
    arguments = epilogue_arguments(epilogue, weights, first_tensor_input, channels)
    return [Launch(kernel, (-(-items // work_group),), (work_group,),
                   (output_buffer(0), items, *divisor(inner), *divisor(channels), *arguments))]
