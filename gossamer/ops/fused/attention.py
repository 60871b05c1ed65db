"""Attention in one kernel: two products of matrices and the softmax between them.

The algorithm attention_mma, for NVIDIA GPUs, keeps the scores in registers, and reads queries, keys
and values where the layers before wrote them. Transposes and slices of these values, and the
transpose of the result, need no copies.

Source: T. Dao, D. Fu, S. Ermon, A. Rudra, C. Ré, "FlashAttention: fast and memory-efficient exact
attention with IO-awareness", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from gossamer.device.base import Device
from gossamer.device.limits import Limits
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.conv2d.common import config_of, sizes_of
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source
from gossamer.ops.fused.views import linear, reorders, view_of
from gossamer.ops.gpu import (
    COPIED,
    LaunchWork,
    groups_per_unit,
    product_cycles,
    without_tensor_cores,
)
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.strided import common_sizes, layout_variants
from gossamer.ops.view import View
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, rounded_up

_SOURCE = Path(__file__).with_name("attention.cu")
_MOST_DIM = 128
"""Maximum number of elements of a query and of a value, limited by registers."""
_MOST_BIASES = 1 << 26
"""Maximum number of elements of the bias."""
_MOST_SUMS = 128
"""Maximum number of scores and sums of results that a lane of a warp with 32 queries holds."""
_WARPS = 16
"""Number of warps with 16 queries for whose registers a multiprocessor has room."""
_EXPONENTIALS = 16
"""Exponentials that a multiprocessor computes per cycle."""
_SHARED_BYTES = 128
"""Bytes of shared memory that a multiprocessor reads per cycle."""
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Bias:
    """A constant that is added to the scores.

    name: name of the array among the fusion's constants.
    factor: number by which the array is multiplied.
    view: view of the array, in the shape of the scores.
    """

    name: str
    factor: float
    view: View


@dataclass(frozen=True)
class Attention:
    """softmax(factor * q @ k.T + biases) @ v, for every index of the leading dimensions.

    sizes: sizes of the leading dimensions.
    entries: indices of the entries that q, k and v view.
    q, k, v, out: views of shape (*sizes, rows, columns). `out` is a view of the fusion's output.
    """

    sizes: tuple[int, ...]
    entries: tuple[int, int, int]
    q: View
    k: View
    v: View
    out: View
    factor: float
    biases: tuple[Bias, ...]

    @property
    def queries(self) -> int:
        """Number of rows of q and of the result."""
        return self.q.shape[-2]

    @property
    def keys(self) -> int:
        """Number of rows of k and of v."""
        return self.k.shape[-2]

    @property
    def dim(self) -> int:
        """Number of columns of q and of k."""
        return self.q.shape[-1]

    @property
    def value_dim(self) -> int:
        """Number of columns of v and of the result."""
        return self.v.shape[-1]


def attention_of(problem: FusionProblem, inputs: Sequence[TensorSpec],
                 outputs: Sequence[TensorSpec]) -> Attention | None:
    """Return the attention that a fusion computes; None if it computes something else.

    inputs, outputs: specs of the fusion's inputs and outputs, in the formats that a kernel reads
    and writes.
    """
    softmaxes = [index for index, part in enumerate(problem.parts)
                 if isinstance(part, SoftmaxProblem) and not part.log
                 and part.axis == len(part.input.shape) - 1]
    if len(softmaxes) != 1 or len(problem.exits) != 1 or any(
            0 in spec.shape for spec in (*inputs, *outputs)):
        return None
    scores = _scores_of(problem, problem.sources[softmaxes[0]][0])
    # the second product may be transposed as a whole: v.T @ weights.T
    second = next(((index, number) for index, (part, sources) in enumerate(
        zip(problem.parts, problem.sources, strict=True)) if isinstance(part, MatmulProblem)
        for number, source in enumerate(sources) if source == (softmaxes[0], 0)
        and (number in part.transposed) == bool(number)), None)
    if scores is None or second is None:
        return None
    first, factor, biases = scores
    product, place = second
    q, k = (_operand(problem, first, number, inputs) for number in (0, 1))
    v = _operand(problem, product, 1 - place, inputs)
    out = _view_of_result(problem, product, outputs[0])
    if q is None or k is None or v is None or out is None or v[2] != 1:
        return None
    ends = [view.transposed() if place else view for view in (v[1], out)]
    views = [q[1], k[1].transposed(), *ends, *(bias.view for bias in biases)]
    sizes = common_sizes([[size for loops in view.dims[:-2] for size, _ in loops]
                          for view in views])
    if sizes is None or len({math.prod(view.shape[:-2]) for view in views}) > 1:
        return None
    sizes = sizes or (1,)
    divided = [view.reshaped((*sizes, *view.shape[-2:])) for view in views]
    if any(view is None or not view.is_strided for view in divided):
        return None
    of_q, of_k, of_v, of_out, *of_biases = (view for view in divided if view is not None)
    return Attention(
        sizes, (q[0], k[0], v[0]), of_q, of_k, of_v, of_out, factor * q[2] * k[2],
        tuple(replace(bias, view=view) for bias, view in zip(biases, of_biases, strict=True)))


def _scores_of(problem: FusionProblem, source: Source) -> tuple[int, float, list[Bias]] | None:
    """Return the product that is scaled and biased to a value, the factor and the biases."""
    factor = 1.0
    biases: list[Bias] = []
    while source[0] >= 0:
        index = source[0]
        part = problem.parts[index]
        if isinstance(part, MatmulProblem):
            return index, factor, biases
        if isinstance(part, ReshapeProblem):
            if part.input.shape[-2:] != part.shape[-2:]:
                return None
        elif isinstance(part, ElementwiseProblem) and len(part.inputs) == 1 and (
                part.dtypes == ("float32",) and part.inputs[0].shape == part.shape
                and all(spec.dtype == "float32" for spec in part.operands)):
            coefficients = linear(part.expression)
            (data,) = set(range(len(part.operands))) - set(part.constants)
            if coefficients is None or data not in coefficients:
                return None
            # a number that is added to all scores does not change the softmax
            biases += [Bias(f"{index}.operand{operand}", factor * coefficients[operand],
                            View.of(part.operands[operand], part.shape))
                       for operand in part.constants if operand in coefficients]
            factor *= coefficients[data]
        else:
            return None
        source = problem.sources[index][0]
    return None


def _operand(problem: FusionProblem, index: int, number: int,
             inputs: Sequence[TensorSpec]) -> tuple[int, View, float] | None:
    """Return the entry, the view and the factor of an operand of a product."""
    product = problem.parts[index]
    assert isinstance(product, MatmulProblem)
    if product.constants or min(len(product.a.shape), len(product.b.shape)) < 2:
        return None
    scaled = view_of(problem, problem.sources[index][number], inputs)
    if scaled is None:
        return None
    view = scaled.view.transposed() if number in product.transposed else scaled.view
    *dims, rows, columns = view.dims
    # dimensions of size 1 are broadcast
    dims = [loops or (((size, 0),) if size > 1 else ()) for size, loops in zip(
        product.batch, [()] * (len(product.batch) - len(dims)) + dims, strict=True)]
    return scaled.entry, View((*dims, rows, columns), view.offset), scaled.factor


def _view_of_result(problem: FusionProblem, second: int, output: TensorSpec) -> View | None:
    """Return where a fusion's output has the result of a product."""
    view: View | None = View.of(output)
    index = problem.exits[0][0]
    while index != second and index >= 0:
        part = problem.parts[index]
        if isinstance(part, ReshapeProblem) and view is not None:
            view = view.reshaped(part.input.shape)
        elif isinstance(part, CopyProblem) and reorders(part) and view is not None:
            loops = dict(zip(part.dims, view.dims, strict=True))
            view = View(tuple(loops[dim] for dim in range(len(loops))))
        else:
            return None
        index = problem.sources[index][0][0]
    return view if index == second else None


@dataclass(frozen=True)
class AttentionTile:
    """The division of an attention among work-groups.

    warps_m: number of warps along the queries.
    warps_k: number of warps that share the keys of the same queries.
    keys: number of keys of a stage for each warp.
    queries: number of queries of a warp, 16 or 32.
    """

    warps_m: int
    warps_k: int
    keys: int
    queries: int = 16

    @property
    def rows(self) -> int:
        """Number of queries of a work-group."""
        return self.queries * self.warps_m

    def fits(self, attention: Attention, limits: Limits) -> bool:
        """Return whether a work-group fits a multiprocessor, and a warp's sums its registers."""
        sums = self.queries * (rounded_up(attention.value_dim, 16) + self.keys) // 32
        return (self.shared_bytes(attention) <= limits.shared_bytes_opt_in
                and (self.queries == 16 or sums <= _MOST_SUMS))

    def slots(self, attention: Attention) -> int:
        """Number of stages that shared memory holds."""
        return 2 if attention.keys > self.warps_k * self.keys else 1

    def shared_bytes(self, attention: Attention) -> int:
        """Bytes of shared memory per work-group."""
        rows, stage = self.rows, self.warps_k * self.keys
        pitch = rounded_up(attention.dim, 16) + 8
        values = rounded_up(attention.value_dim, 16)
        operands = 2 * (rows * pitch + self.slots(attention) * stage * (pitch + values + 8))
        return max(operands, 4 * self.warps_k * rows * (values + 4 + 2))


TILES = tuple(AttentionTile(*sizes) for sizes in (
    (1, 4, 64), (1, 4, 32), (1, 4, 16), (1, 2, 32), (1, 1, 64), (2, 2, 32), (2, 2, 64), (2, 4, 32),
    (4, 1, 64), (4, 1, 32), (4, 2, 32), (8, 1, 64), (2, 1, 64, 32), (2, 1, 32, 32), (4, 1, 64, 32),
    (4, 1, 32, 32)))
"""The candidate tiles."""


class AttentionMma(FusionAlgorithm):
    """Attention in float16, with scores and sums in float32."""

    name = "attention_mma"
    patterns = (("matmul", "softmax", "matmul"),
                ("matmul", "elementwise", "softmax", "matmul"),
                ("matmul", "elementwise", "reshape", "elementwise", "reshape", "softmax", "matmul"))
    takes_moves = True

    def recognises(self, problem: FusionProblem) -> bool:
        return bool(_layouts(problem))

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := without_tensor_cores(problem, device)) is not None:
            return reason
        layouts = _layouts(problem)
        if not layouts:
            return "needs two products of matrices and the softmax between them"
        attention = layouts[0][1]
        most = max(attention.dim, attention.value_dim)
        if most > _MOST_DIM:
            return f"supports rows of at most {_MOST_DIM} elements, not {most}"
        if sum(math.prod(_sizes_of_bias(bias)) for bias in attention.biases) > _MOST_BIASES:
            return "the bias has too many elements"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        limits = device.limits
        found = [(_expected_us(attention, tile, limits),
                  replace(variant, config=config_of(tile)))
                 for variant, attention in _layouts(problem) for tile in TILES
                 if tile.fits(attention, limits)]
        for _, variant in sorted(found, key=itemgetter(0)):
            yield variant

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        return _expected_us(_attention(problem, variant), sizes_of(AttentionTile, variant),
                            device.limits)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        attention, tile = _attention(problem, variant), sizes_of(AttentionTile, variant)
        kernel = device.compile(KernelSource.of(
            _SOURCE, "attention_mma", _macros(attention, tile),
            architectures=("sm_80", "sm_100"), dynamic_shared=True))
        q, k, v = map(input_buffer, attention.entries)
        bias = None
        if attention.biases:
            bias = weights.packed(f"bias of attention {attention.biases}",
                                  lambda arrays: _packed_bias(attention, arrays))
        groups = math.prod(attention.sizes) * -(-attention.queries // tile.rows)
        return State(problem, variant, device, [Launch(
            kernel, (groups,), (32 * tile.warps_m * tile.warps_k,),
            (q, k, v, q if bias is None else bias, output_buffer(0)),
            tile.shared_bytes(attention))])


def _layouts(problem: FusionProblem) -> list[tuple[Variant, Attention]]:
    """Return the attention in each layout in which strides describe all its matrices."""
    if any(spec.dtype != "float32" for spec in (*problem.inputs, *problem.outputs)):
        return []
    return [(variant, attention) for variant in layout_variants(problem, ("NCHW", "NHWC"))
            for variant in (variant.as_fp16,)
            if (attention := attention_of(problem, variant.inputs, variant.outputs)) is not None]


def _attention(problem: FusionProblem, variant: Variant) -> Attention:
    attention = attention_of(problem, variant.inputs, variant.outputs)
    assert attention is not None  # variants() has found it
    return attention


def _expected_us(attention: Attention, tile: AttentionTile, limits: Limits) -> float:
    """Return the estimated time in microseconds."""
    rows, stage = tile.rows, tile.warps_k * tile.keys
    stages = -(-attention.keys // stage)
    dim, value_dim = (rounded_up(size, 16) for size in (attention.dim, attention.value_dim))
    copied = 2 * (rows * dim + stages * stage * (dim + value_dim)) / COPIED
    scores = rows * stages * stage
    multiplied = product_cycles(scores, 2 * (dim + value_dim), wgmma=False)
    # each warp reads the keys and values of its stages
    read = scores * 2 * (dim + value_dim) / tile.queries / _SHARED_BYTES
    # each warp goes through its stages in order
    in_order = stages * (1200 + tile.queries * tile.keys * (dim + value_dim) / 640)
    return LaunchWork(
        math.prod(attention.sizes) * -(-attention.queries // rows),
        groups_per_unit(tile.shared_bytes(attention), limits,
                        max(1, _WARPS * 16 // tile.queries // (tile.warps_m * tile.warps_k))),
        busy=max(copied, read, multiplied + scores / _EXPONENTIALS),
        waited=in_order).expected_us(limits)


def _divides(view: View) -> int:
    """Return how many elements a kernel may read or write at once along a view's columns."""
    if view.strides[-1] != 1:
        return 1
    return math.gcd(8, view.offset, view.shape[-1], *view.strides[:-1])


def _sizes_of_bias(bias: Bias) -> tuple[int, ...]:
    """Return the sizes of a bias's dimensions; 1 for those along which it is the same."""
    return tuple(1 if stride == 0 else size
                 for size, stride in zip(bias.view.shape, bias.view.strides, strict=True))


def _shape_of_bias(attention: Attention) -> tuple[int, ...]:
    """Return the shape of the sum of all biases."""
    shape = np.broadcast_shapes(*map(_sizes_of_bias, attention.biases))
    return (*shape[:-1], rounded_up(attention.keys, 2))


def _packed_bias(attention: Attention, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the sum of all biases, times log2(e), with rows of an even number of elements."""
    packed = np.zeros(_shape_of_bias(attention))
    for bias in attention.biases:
        array = np.ascontiguousarray(arrays[bias.name], np.float64)
        strides = tuple(array.itemsize * stride for stride in bias.view.strides)
        packed[..., :attention.keys] += _LOG2_E * bias.factor * np.lib.stride_tricks.as_strided(
            array, _sizes_of_bias(bias), strides)
    # masks are often the lowest float: a row of these has equal weights, while a row of -inf is NaN
    most = np.finfo(np.float32).max
    return np.where(np.isinf(packed), packed, packed.clip(-most, most)).astype(np.float32)


def _macros(attention: Attention, tile: AttentionTile) -> dict[str, object]:
    macros: dict[str, object] = {
        "HALVES": 1, "QUERIES": attention.queries, "KEYS": attention.keys, "DIM": attention.dim,
        "VALUE_DIM": attention.value_dim, "WARPS_M": tile.warps_m, "WARPS_K": tile.warps_k,
        "QUERIES_OF_WARP": tile.queries, "KEYS_OF_WARP": tile.keys, "SLOTS": tile.slots(attention),
        "FACTOR": f"{attention.factor * _LOG2_E!r}f", "DIMS": len(attention.sizes),
        "SIZES": _listed(attention.sizes), "BIASED": int(bool(attention.biases)),
        **_strides("OUT", attention.out)}
    for name, view in (("Q", attention.q), ("K", attention.k), ("V", attention.v)):
        macros.update(_strides(name, view))
        macros[f"{name}_OFFSET"] = view.offset
    if attention.biases:
        shape = _shape_of_bias(attention)
        strides = [0 if size == 1 else math.prod(shape[dim + 1:])
                   for dim, size in enumerate(shape[:-1])]
        macros.update({"BIAS_STRIDES": _listed(strides[:-1]), "BIAS_ROW": strides[-1]})
    return macros


def _strides(name: str, view: View) -> dict[str, object]:
    *strides, row, column = view.strides
    return {f"{name}_STRIDES": _listed(strides), f"{name}_ROW": row, f"{name}_COLUMN": column,
            f"{name}_DIVIDES": _divides(view)}


def _listed(numbers: Sequence[int]) -> str:
    return "{ " + ", ".join(map(str, numbers)) + " }"
