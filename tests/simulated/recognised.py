"""Fusions computed from what their algorithms recognise in them, in float64: attention from its
views, moves from the loops of their copy, row expressions from their operands and phases, products
of norms from rows in memory, and merged convolutions from their one convolution. The reference
computes the layers, and so would hide a fusion that is recognised wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.epilogue import operand_arrays
from gossamer.ops.fused.attention import attention_of
from gossamer.ops.fused.convolution import Merged, merged
from gossamer.ops.fused.moves import loops_of
from gossamer.ops.fused.problem import FusionProblem, weights_of_part
from gossamer.ops.fused.row_expression import row_expression_of
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.registry import OPS
from gossamer.ops.strided import dense_strides
from gossamer.tensor import AXES, TensorSpec

Compute = Callable[[FusionProblem, Variant, Sequence[np.ndarray], Mapping[str, np.ndarray]],
                   list[np.ndarray]]
"""A function that returns the logical outputs of a fusion, for a variant, inputs and constants."""


def stored(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Return the elements in the order of memory."""
    order = AXES[spec.layout] if len(spec.shape) == 4 else range(len(spec.shape))
    return np.ascontiguousarray(array.transpose(order)).ravel()


def seen(memory: np.ndarray, shape: Sequence[int], strides: Sequence[int],
         offset: int = 0) -> np.ndarray:
    """Return a view of memory. strides: in elements."""
    return np.lib.stride_tricks.as_strided(
        memory[offset:], shape, [stride * memory.itemsize for stride in strides])


def written(spec: TensorSpec, shape: Sequence[int], strides: Sequence[int], values: np.ndarray,
            offset: int = 0) -> np.ndarray:
    """Return a logical tensor whose memory has values at the places of a view."""
    result = np.full(spec.shape, np.nan) if values.dtype.kind == "f" else np.empty(
        spec.shape, values.dtype)
    memory = stored(result, spec)
    seen(memory, shape, strides, offset)[...] = values
    result[...] = seen(memory, spec.shape, spec.strides)
    return result


def attention(problem: FusionProblem, variant: Variant, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found = attention_of(problem, variant.inputs, variant.outputs)
    assert found is not None
    q, k, v = (seen(stored(inputs[entry].astype(np.float64), variant.inputs[entry]), view.shape,
                    view.strides, view.offset)
               for entry, view in zip(found.entries, (found.q, found.k, found.v), strict=True))
    scores = found.factor * q @ k.swapaxes(-1, -2)
    for bias in found.biases:
        scores = scores + bias.factor * seen(
            weights[bias.name].astype(np.float64).ravel(), bias.view.shape, bias.view.strides,
            bias.view.offset)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return [written(variant.outputs[0], found.out.shape, found.out.strides,
                    powers / powers.sum(-1, keepdims=True) @ v, found.out.offset)]


def moves(problem: FusionProblem, variant: Variant, inputs: Sequence[np.ndarray],
          weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    loops = loops_of(problem, variant.inputs, variant.outputs)
    assert loops is not None
    return [written(variant.outputs[0], loops.sizes, loops.target_strides, seen(
        stored(inputs[0], variant.inputs[0]), loops.sizes, loops.source_strides,
        loops.source_offset), loops.target_offset)]


def row_expression(problem: FusionProblem, variant: Variant, inputs: Sequence[np.ndarray],
                   weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found = row_expression_of(problem)
    assert found is not None
    operands = []
    for operand in found.operands:
        if operand.name:
            memory = weights[operand.name].ravel()
            strides, first = found.strides(operand.axes, dense_strides(
                [int(np.prod([found.sizes[dim] for dim in axis])) for axis in operand.axes])), 0
        else:
            memory = stored(inputs[operand.number], variant.inputs[operand.number])
            strides, first = found.place(operand, variant.inputs)
        operands.append(seen(memory.astype(np.float64), found.sizes, strides, first))
    totals: list[np.ndarray] = []
    for phase in found.phases:
        (value,) = phase.expression.evaluate(*(
            operands[number] if number >= 0 else totals[-1 - number] for number in phase.reads))
        if phase.kind:
            value = np.broadcast_to(value, found.sizes)
            totals.append(getattr(value, phase.kind)(tuple(found.reduced), keepdims=True))
    sizes = [1 if found.is_per_row and dim in found.reduced else size
             for dim, size in enumerate(found.sizes)]
    (spec,) = variant.outputs
    return [written(spec, sizes, found.strides(found.target, spec.strides), value)]


def product_of_norm(problem: FusionProblem, variant: Variant, inputs: Sequence[np.ndarray],
                    weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    norm, product, last = problem.parts[0], problem.parts[-1], len(problem.parts) - 1
    assert isinstance(norm, LayerNormProblem)
    rows = stored(inputs[0].astype(np.float64), variant.inputs[0]).reshape(-1, norm.count)
    x = rows - norm.centred * rows.mean(1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(1, keepdims=True) + norm.epsilon)
    x = x * weights["0.scale"] + weights["0.bias"]
    if product.op == "conv2d":
        batch, _, *pixels = product.inputs[0].shape
        x = np.moveaxis(x.reshape(batch, *pixels, norm.count), -1, 1)
    return OPS[product.op].reference(product, [x, *inputs[1:]], weights_of_part(weights, last))


def merged_convolution(problem: FusionProblem, variant: Variant, inputs: Sequence[np.ndarray],
                       weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found = merged(problem)
    assert isinstance(found, Merged)
    arrays = {name: weights[original] for name, original in found.names.items()}
    kernel, epilogue = found.convolution.kernel, found.convolution.epilogue
    if isinstance(problem.parts[0], PoolProblem):
        arrays["weight"] = np.tile(arrays["weight"] / np.prod(kernel), kernel)
    sums = OPS["conv2d"].reference(replace(found.convolution, epilogue=Epilogue()), inputs[:1],
                                   {"weight": arrays["weight"]})
    return list(epilogue.expression.evaluate(*sums, *operand_arrays(
        epilogue, arrays, inputs[1:], 4)))


RECOGNISED: dict[str, Compute] = {
    "attention_mma": attention, "strided": moves, "row_expression": row_expression,
    "normalised_mma": product_of_norm, "merged_mma": merged_convolution}
"""By the name of the algorithm."""
OF_TOKENS = tuple(name for name in RECOGNISED if name != "merged_mma")
"""Algorithms whose fusions are in networks of tokens."""
