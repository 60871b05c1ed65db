"""Application of epilogues: with macros in kernels, and in place with NumPy on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gossamer.device.base import Argument, Buffer
from gossamer.device.host import host_array
from gossamer.expression import Expression
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.kernel_expression import floats_in_kernels
from gossamer.ops.launch import input_buffer
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, default_spec, rounded_up


def c_float(value: float) -> str:
    """Return the value rounded to float32 as a literal of OpenCL C and CUDA C++."""
    value = float(np.float32(value))
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!r}f)" if "e" in repr(value) or "." in repr(value) else f"({value!r}.0f)"


def epilogue_macros(epilogue: Epilogue, *, tensor_dtype: str = "float32",
                    one_channel: bool = False, prefix: str = "") -> dict[str, str]:
    """Return the macros that apply an epilogue in a kernel.

    EPILOGUE_PARAMETERS goes at the end of the kernel's parameter list. EPILOGUE(value, channel,
    index) replaces the float `value` by the result. EPILOGUE4(value, channel, index) does so for a
    float4 of four consecutive elements in memory; `index` is a multiple of 4. For an expression
    with two outputs there are two more macros, which also set `second` to the second output:
    EPILOGUE2(value, second, channel, index) for floats, and EPILOGUE2_4(value, second, channel,
    index) for float4.

    tensor_dtype: dtype of the tensor operands, "float32" or "float16".
    one_channel: True if all values of a float4 belong to the channel `channel`. False if they
    belong to consecutive channels; `channel` is then a multiple of 4.
    prefix: prefix of the macros' names and, in lower case, of the parameters' names, for kernels
    with several epilogues.
    """
    return dict(_macros(epilogue, tensor_dtype, one_channel, prefix))


def epilogue_macros_of_eight(epilogue: Epilogue) -> dict[str, str]:
    """Return the macros that apply an epilogue to eight consecutive elements at once.

    The macros of `epilogue_macros` for float16 tensor operands are included. The macros for eight
    elements load all eight values of an operand at once.

    EPILOGUE8(lower, upper, channel, index) replaces the eight values of two float4 by the results.
    The values belong to consecutive channels. For an expression with two outputs, there is also
    EPILOGUE2_8(lower, upper, second_lower, second_upper, channel, index), which sets `second_lower`
    and `second_upper` to the second output. `channel` and `index` are multiples of 8.
    """
    loads = []
    for i, kind in enumerate(epilogue.operands):
        if kind == "channel":
            four = [f"LOAD4(operand{i} + (channel){offset})" for offset in ("", " + 4")]
        else:
            loads.append(f"FETCHED_HALF8 f{i} = FETCH_HALF8(operand{i}, index);")
            four = [f"LOWER_VALUE4(f{i})", f"UPPER_VALUE4(f{i})"]
        loads.append(f"float4 lower{i} = {four[0]}, upper{i} = {four[1]};")

    def rewritten(sets_second: bool) -> str:
        bodies = list(loads)
        for part in ("lower", "upper"):
            for lane in "xyzw":
                operands = [f"{part}{i}.{lane}" for i in range(len(epilogue.operands))]
                bodies.append(_body(epilogue.expression, f"{part}.{lane}", operands,
                                    f"second_{part}.{lane}" if sets_second else ""))
        return f"{{ {' '.join(bodies)} }}"

    macros = {**epilogue_macros(epilogue, tensor_dtype="float16"),
              "EPILOGUE8(lower, upper, channel, index)": rewritten(False)}
    if len(epilogue.expression.outputs) == 2:
        macros["EPILOGUE2_8(lower, upper, second_lower, second_upper, channel, index)"] = (
            rewritten(True))
    return macros


@functools.lru_cache(maxsize=1024)
def _macros(epilogue: Epilogue, tensor_dtype: str, one_channel: bool,
            prefix: str) -> dict[str, str]:
    operand = f"{prefix.lower()}operand"
    halves = tensor_dtype == "float16"
    types = ["HALF" if halves and kind == "tensor" else "float" for kind in epilogue.operands]
    # no RESTRICT for tensors, which the previous kernel may still be writing (see
    # ptx/griddepcontrol.h)
    parameters = "".join(
        f", const GLOBAL {name} *{'RESTRICT ' if kind == 'channel' else ''}{operand}{i}"
        for i, (name, kind) in enumerate(zip(types, epilogue.operands, strict=True)))

    def load(i: int, kind: str) -> str:
        if kind == "channel":
            return f"{operand}{i}[channel]"
        return f"LOAD_HALF({operand}{i}, index)" if halves else f"{operand}{i}[index]"

    def load4(i: int, kind: str) -> str:
        if kind == "channel" and one_channel:
            value = f"{operand}{i}[channel]"
            return f"MAKE4({value}, {value}, {value}, {value})"
        if kind == "channel":
            return f"LOAD4({operand}{i} + (channel))"
        return f"LOAD_HALF4({operand}{i}, index)" if halves else f"LOAD4({operand}{i} + (index))"

    def rewritten4(sets_second: bool) -> str:
        loads = " ".join(f"float4 v{i} = {load4(i, kind)};"
                         for i, kind in enumerate(epilogue.operands))
        lanes = " ".join(body(f"value.{lane}", [f"v{i}.{lane}" for i in range(len(types))],
                              f"second.{lane}" if sets_second else "") for lane in "xyzw")
        return f"{{ {loads} {lanes} }}"

    body = functools.partial(_body, epilogue.expression)
    loaded = [load(i, kind) for i, kind in enumerate(epilogue.operands)]
    macros = {
        f"{prefix}EPILOGUE_PARAMETERS": parameters,
        f"{prefix}EPILOGUE(value, channel, index)": body("value", loaded),
        f"{prefix}EPILOGUE4(value, channel, index)": rewritten4(False),
    }
    if len(epilogue.expression.outputs) == 2:
        macros |= {
            f"{prefix}EPILOGUE2(value, second, channel, index)": body("value", loaded, "second"),
            f"{prefix}EPILOGUE2_4(value, second, channel, index)": rewritten4(True)}
    return macros


def _body(expression: Expression, variable: str, operands: Sequence[str], second: str = "") -> str:
    """Return a C block that applies an expression to `variable` and the operands.

    The block sets `variable` to the first result and, if `second` is not empty, the variable of
    that name to the second result.
    """
    lines, results = floats_in_kernels(expression).c_statements(
        [variable, *operands], c_float, "e")
    if second:
        lines.append(f"{second} = {results[1]};")
    return f"{{ {' '.join(lines)} {variable} = {results[0]}; }}"


def epilogue_arguments(epilogue: Epilogue, weights: Weights, first_tensor_input: int,
                       channels: int, *, prefix: str = "", multiple: int = 4
                       ) -> list[Argument | Callable[..., Argument]]:
    """Return the kernel arguments that match EPILOGUE_PARAMETERS.

    Channel operands are padded so that kernels can read vectors.

    first_tensor_input: index of the run-time input that is the first tensor operand.
    prefix: prefix of the channel operands' names in the weights.
    multiple: channel operands are padded to a multiple of this number, itself a multiple of 4.
    """
    arguments: list[Argument | Callable[..., Argument]] = []
    tensor = first_tensor_input
    for index, kind in enumerate(epilogue.operands):
        if kind == "tensor":
            arguments.append(input_buffer(tensor))
            tensor += 1
        else:
            name = f"{prefix}operand{index}"
            padded = rounded_up(channels, multiple)
            arguments.append(weights.packed(f"{name} padded to {padded}",
                                            channel_vector(name, channels, padded)))
    return arguments


def channel_vector(name: str, channels: int, size: int
                   ) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Return a function that packs a constant into a padded vector.

    The vector has `size` elements: one per channel, then zeros. The constant has one number per
    channel, or a single number for all channels.
    """
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        padded = np.zeros(size, dtype=np.float32)
        padded[:channels] = np.broadcast_to(arrays[name].reshape(-1), (channels,))
        return padded
    return pack


def operand_arrays(epilogue: Epilogue, arrays: Mapping[str, np.ndarray],
                   tensors: Sequence[np.ndarray], rank: int) -> list[np.ndarray]:
    """Return an epilogue's operands as arrays.

    Each array broadcasts to a result (N, C, ...) of rank `rank`.

    arrays: the constants by name, including the channel operands.
    tensors: the tensor operands.
    """
    result = []
    remaining = iter(tensors)
    for index, kind in enumerate(epilogue.operands):
        if kind == "tensor":
            result.append(next(remaining))
        else:
            vector = arrays[f"operand{index}"].reshape(-1)
            result.append(vector.reshape((1, -1) + (1,) * (rank - 2)))
    return result


def apply_in_place(epilogue: Epilogue, result: np.ndarray, operands: Sequence[np.ndarray]) -> None:
    """Apply an epilogue to a result in host memory, in place.

    The function allocates no memory if _is_simple_chain() returns True for the expression.
    """
    expression = epilogue.expression
    if not _is_simple_chain(expression):
        result[...] = expression.evaluate(result, *operands)[0]
        return
    for step in expression.steps:
        step_operands = [operands[a - 1] for a in step.arguments[1:]]
        _IN_PLACE[step.function](result, *step_operands, *step.constants)


_IN_PLACE: dict[str, Callable[..., object]] = {
    "add": lambda y, b: np.add(y, b, out=y),
    "sub": lambda y, b: np.subtract(y, b, out=y),
    "mul": lambda y, b: np.multiply(y, b, out=y),
    "relu": lambda y: np.maximum(y, 0, out=y),
    "clip": lambda y, low, high: np.clip(y, np.float32(low), np.float32(high), out=y),
    "sign": lambda y: np.sign(y, out=y),
}


def _is_simple_chain(expression: Expression) -> bool:
    """Return whether an expression can be evaluated in place, by the functions of _IN_PLACE.

    This requires that all functions are in _IN_PLACE, that the first argument of every step is the
    previous step's result, and that all further arguments are operands.
    """
    current = 0
    for index, step in enumerate(expression.steps):
        if step.function not in _IN_PLACE or step.arguments[0] != current:
            return False
        if any(not 0 < a < expression.inputs for a in step.arguments[1:]):
            return False
        current = expression.inputs + index
    return expression.outputs == (current,)


def epilogue_inputs(epilogue: Epilogue, shape: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    """Return the specs of an epilogue's tensor operands.

    shape: shape of the results.
    """
    return (default_spec(shape),) * epilogue.tensor_count


def buffers_as_arrays(buffers: Sequence[Buffer], specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Return host buffers as arrays whose axes are in memory order."""
    return [host_array(buffer, spec) for buffer, spec in zip(buffers, specs, strict=True)]
