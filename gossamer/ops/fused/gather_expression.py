"""Element-wise arithmetic and moves of elements, in one kernel.

The moves are slices, transposes, expansions, reshapes, pads, gathers, resizings and concatenations.
As separate layers, each of these reads and writes whole tensors. Examples are rotary position
embeddings (J. Su, Y. Lu, S. Pan, A. Murtadha, B. Wen, Y. Liu, "RoFormer: enhanced transformer with
rotary position embedding", 2021), gated linear units, whose two halves are slices, and windows that
overlap. The kernel computes for each element of the result where its operands come from, as
compilers of loops over tensors do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from gossamer.device.base import Argument, Device
from gossamer.device.source import KernelSource
from gossamer.ops.algorithm import Problem, State, Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue import c_float
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.kernel_expression import floats_in_kernels
from gossamer.ops.launch import Launch, input_buffer, output_buffer
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.peak_rates import moved_us
from gossamer.ops.resize.problem import ResizeProblem, linear, nearest
from gossamer.ops.strided import (
    WORK_GROUP_SIZE,
    cannot_compile,
    dense_strides,
    layout_variants,
    memory_order,
)
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec, default_spec

_SOURCE = Path(__file__).with_name("gather_expression.cl")
_OPS = frozenset({"concat", "copy", "elementwise", "gather", "pad", "reshape", "resize"})
_MOST_LOADS = 32
"""Maximum number of loads in the code of an element. A value that is read at several places is
computed once for each of them."""
_MOST_ITEMS = 4
"""Number of elements of a work-item if there are many."""
_MANY = 2**18
"""Number of elements from which on a work-item may compute several."""


class GatherExpressionFusion(FusionAlgorithm):
    """One launch, in which a work-item computes one or several elements of the result."""

    name = "gather_expression"
    patterns = ()

    def matches(self, ops: Sequence[str]) -> bool:
        # several copies are one strided copy
        return (_OPS.issuperset(ops) and not {"copy", "reshape"}.issuperset(ops)
                and sum(op != "reshape" for op in ops) > 1)

    def recognises(self, problem: FusionProblem) -> bool:
        return (len(problem.exits) == 1 and all(map(may_gather, problem.parts))
                and _code(problem, problem.inputs, problem.outputs[0]) is not None)

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        return None if self.recognises(problem) else (
            f"needs continuous arithmetic on float32 with at most {_MOST_LOADS} loads, and one "
            "result")

    def variants(self, problem: FusionProblem, device: Device) -> Iterator[Variant]:
        is_large = problem.outputs[0].size >= _MANY
        layouts = layout_variants(problem)
        for items in (_MOST_ITEMS, 1) if is_large else (1,):
            # the result may have another layout than the inputs
            for variant in dict.fromkeys(Variant((("items", items),), source.inputs, target.outputs)
                                         for source in layouts for target in layouts):
                yield variant
                yield variant.as_fp16

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        code = _code(problem, variant.inputs, variant.outputs[0])
        assert code is not None  # supports() refuses other problems
        return moved_us(code.loaded_bytes + variant.outputs[0].nbytes, device)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        output = variant.outputs[0]
        code = _code(problem, variant.inputs, output)
        assert code is not None
        items = variant["items"]
        kernel = device.compile(KernelSource.of(_SOURCE, "gather_expression", {
            "WORK_GROUP_SIZE": WORK_GROUP_SIZE, "ITEMS": items,
            "PARAMETERS": ", ".join(code.parameters), "GATHER": " ".join(code.lines),
            "STORE": "STORE_HALF(y, index, r);" if output.dtype == "float16" else "y[index] = r;"}))
        constants: list[Argument] = [
            weights.packed(f"{name} of gather_expression", constant.packed)
            for name, constant in code.constants.items()]
        groups = -(-output.size // (WORK_GROUP_SIZE * items))
        return State(problem, variant, device, [Launch(
            kernel, (groups,), (WORK_GROUP_SIZE,),
            (*map(input_buffer, range(len(variant.inputs))), *constants, output_buffer(0),
             output.size))])


def may_gather(part: Problem) -> bool:
    """Return whether a part may belong to the fusion, judged by the part alone.

    Places in all tensors have to fit in 32 bits, also in those that are not stored.
    """
    if any(spec.dtype != "float32" or not 0 < spec.size < 2**31
           for spec in (*part.inputs, *part.outputs)):
        return False
    if isinstance(part, ElementwiseProblem):
        return part.is_continuous
    if isinstance(part, CopyProblem):
        return part.is_free_of_format
    if isinstance(part, PadProblem):
        return part.mode == "constant"
    if isinstance(part, GatherProblem):
        return part.constants == (1,)
    return isinstance(part, ConcatProblem | ReshapeProblem | ResizeProblem)


class _TooLongError(Exception):
    """The code of an element has more loads than allowed."""


@dataclass
class _Constant:
    """An array that the kernel reads besides the inputs.

    kind: type of the elements in C.
    packed: function that returns the array, for the fusion's constants by name.
    """

    kind: str
    packed: Callable[[Mapping[str, np.ndarray]], np.ndarray]


@dataclass
class _Code:
    """Generated code that computes an element of a fusion's result.

    parameters: the kernel's pointers.
    constants: the constants by their names, in the order of their pointers, after the inputs.
    lines: C statements that compute `r` from `index`.
    loaded_bytes: bytes that all work-items load.
    """

    parameters: list[str]
    constants: Mapping[str, _Constant]
    lines: list[str]
    loaded_bytes: int


@functools.lru_cache(maxsize=4096)
def _code(problem: FusionProblem, inputs: tuple[TensorSpec, ...],
          output: TensorSpec) -> _Code | None:
    """Return the code for tensors in the given formats; None if it has too many loads."""
    generator = _Generator(problem, inputs)
    order = memory_order(output)
    places = generator.divided("index", [output.shape[dim] for dim in order], generator.scope)
    try:
        result = generator.value(problem.exits[0], tuple(
            places[order.index(dim)] for dim in range(len(order))), output.size, generator.scope)
    except _TooLongError:
        return None
    kinds = ["HALF" if spec.dtype == "float16" else "float" for spec in inputs]
    parameters = [*(f"const GLOBAL {kind} *x{i}" for i, kind in enumerate(kinds)),
                  *(f"const GLOBAL {constant.kind} *RESTRICT a{i}"
                    for i, constant in enumerate(generator.constants.values())),
                  f"GLOBAL {'HALF' if output.dtype == 'float16' else 'float'} *RESTRICT y"]
    return _Code(parameters, generator.constants, [*generator.scope.lines, f"VALUE r = {result};"],
                 generator.loaded_bytes)


@dataclass
class _Scope:
    """A block of C statements.

    known: the names of values by their sources and places, of this block and of outer ones.
    """

    known: dict[tuple[Source, tuple[str, ...]], str]
    lines: list[str] = field(default_factory=list)


class _Generator:
    """Generates the statements that compute an element.

    A place is a tuple of C expressions, one for each dimension, of type int.
    """

    def __init__(self, problem: FusionProblem, inputs: Sequence[TensorSpec]) -> None:
        self.scope = _Scope({})
        self.constants: dict[str, _Constant] = {}
        self.loaded_bytes = 0
        self._problem, self._inputs = problem, inputs
        self._numbers = itertools.count()
        self._loads = 0

    def value(self, source: Source, place: tuple[str, ...], count: int, scope: _Scope) -> str:
        """Return the name of a value's element.

        count: number of elements that all work-items compute here.
        """
        if (source, place) not in scope.known:
            scope.known[source, place] = self._computed(source, place, count, scope)
        return scope.known[source, place]

    def divided(self, index: str, sizes: Sequence[int], scope: _Scope) -> list[str]:
        """Return the places along dimensions of the given sizes, outermost first."""
        places = ["0"] * len(sizes)
        remaining = [dim for dim, size in enumerate(sizes) if size > 1]
        for dim in reversed(remaining[1:]):
            quotient = self._declared("int", f"(int)((uint){index} / {sizes[dim]}u)", scope)
            places[dim] = self._declared("int", f"{index} - {quotient} * {sizes[dim]}", scope)
            index = quotient
        for dim in remaining[:1]:
            places[dim] = index
        return places

    def _declared(self, kind: str, text: str, scope: _Scope) -> str:
        name = f"{kind[0].lower()}{next(self._numbers)}"
        scope.lines.append(f"{kind} {name} = {text};")
        return name

    def _computed(self, source: Source, place: tuple[str, ...], count: int, scope: _Scope) -> str:
        if source[0] < 0:
            number = self._problem.entries.index(source)
            spec = self._inputs[number]
            return self._loaded(f"x{number}", spec, spec.strides, place, count, scope)
        part, sources = self._problem.parts[source[0]], self._problem.sources[source[0]]
        if isinstance(part, ElementwiseProblem):
            return self._of_elements(source[0], part, sources, place, count, scope)
        if isinstance(part, ConcatProblem):
            return self._of_concatenation(part, sources, place, count, scope)
        if isinstance(part, PadProblem):
            return self._of_padding(part, sources[0], place, count, scope)
        if isinstance(part, ResizeProblem):
            return self._of_resizing(source[0], part, sources[0], place, count, scope)
        if isinstance(part, CopyProblem):
            place = self._copied(part, place, scope)
        elif isinstance(part, GatherProblem):
            place = self._chosen(source[0], part, place, count, scope)
        else:
            place = self._reshaped(part.inputs[0].shape, part.outputs[0].shape, place, scope)
        return self.value(sources[0], place, count, scope)

    def _loaded(self, pointer: str, spec: TensorSpec, strides: Sequence[int],
                place: tuple[str, ...], count: int, scope: _Scope, kind: str = "VALUE") -> str:
        """Return the name of an element in memory."""
        self._loads += 1
        if self._loads > _MOST_LOADS:
            raise _TooLongError
        self.loaded_bytes += min(count, spec.size) * spec.stored_dtype.itemsize
        at = _sum([*zip(strides, place, strict=True)], spec.offset)
        return self._declared(kind, f"LOAD_HALF({pointer}, {at})" if spec.dtype == "float16"
                              else f"{pointer}[{at}]", scope)

    def _constant(self, name: str, kind: str,
                  packed: Callable[[Mapping[str, np.ndarray]], np.ndarray]) -> str:
        """Return the pointer of a constant."""
        self.constants[name] = _Constant(kind, packed)
        return f"a{list(self.constants).index(name)}"

    def _of_elements(self, index: int, part: ElementwiseProblem, sources: Sequence[Source],
                     place: tuple[str, ...], count: int, scope: _Scope) -> str:
        remaining = iter(sources)
        arguments = []
        for number, spec in enumerate(part.operands):
            own = _broadcast(spec.shape, place[len(place) - len(spec.shape):])
            if number in part.constants:
                name = f"{index}.operand{number}"
                pointer = self._constant(name, "float", partial(_in_rows, name))
                arguments.append(self._loaded(pointer, spec, dense_strides(spec.shape), own, count,
                                              scope))
            else:
                arguments.append(self.value(next(remaining), own, count, scope))
        lines, (result,) = floats_in_kernels(part.expression).c_statements(
            arguments, c_float, f"t{next(self._numbers)}_")
        scope.lines += lines
        return result

    def _of_concatenation(self, part: ConcatProblem, sources: Sequence[Source],
                          place: tuple[str, ...], count: int, scope: _Scope) -> str:
        name = f"v{next(self._numbers)}"
        scope.lines.append(f"VALUE {name};")
        ends = [*itertools.accumulate(spec.shape[part.axis] for spec in part.parts)]
        at = place[part.axis]
        for number, (spec, source, end) in enumerate(zip(part.parts, sources, ends, strict=True)):
            inner = _Scope(dict(scope.known))
            start = end - spec.shape[part.axis]
            own = (at if not start else "0" if end == start + 1 else
                   self._declared("int", f"{at} - {start}", inner))
            result = self.value(source, (*place[:part.axis], own, *place[part.axis + 1:]),
                                count * spec.shape[part.axis] // ends[-1], inner)
            condition = f"if ({at} < {end}) " if number < len(ends) - 1 else ""
            scope.lines += [f"{'else ' if number else ''}{condition}{{", *inner.lines,
                            f"{name} = {result};", "}"]
        return name

    def _of_padding(self, part: PadProblem, source: Source, place: tuple[str, ...], count: int,
                    scope: _Scope) -> str:
        name = self._declared("VALUE", c_float(part.value), scope)
        inner = _Scope(dict(scope.known))
        tests, own = [], []
        for at, size, low, high in zip(place, part.input.shape, part.low, part.high, strict=True):
            if low > 0:
                tests.append(f"{at} >= {low}")
            if high > 0:
                tests.append(f"{at} < {low + size}")
            own.append("0" if size == 1 else self._short(_sum([(1, at)], -low), inner))
        result = self.value(source, tuple(own), min(count, part.input.size), inner)
        scope.lines += [f"if ({' && '.join(tests) or '1'}) {{", *inner.lines,
                        f"{name} = {result};", "}"]
        return name

    def _chosen(self, index: int, part: GatherProblem, place: tuple[str, ...], count: int,
                scope: _Scope) -> tuple[str, ...]:
        """Return the place from which a gather takes an element."""
        rank = len(part.indices.shape)
        own = _broadcast(part.indices.shape, place[part.axis:part.axis + rank])
        name = f"{index}.operand1"
        pointer = self._constant(name, "int", partial(_indices, name, part.data.shape[part.axis]))
        chosen = self._loaded(pointer, part.indices, dense_strides(part.indices.shape), own, count,
                              scope, "int")
        return (*place[:part.axis], chosen, *place[part.axis + rank:])

    def _of_resizing(self, index: int, part: ResizeProblem, source: Source, place: tuple[str, ...],
                     count: int, scope: _Scope) -> str:
        """Return the name of an element that is the nearest one, or interpolated between four."""
        def looked_up(axis: int, number: int, table: np.ndarray) -> str:
            kind = "int" if table.dtype == np.int32 else "float"
            pointer = self._constant(f"{index} table {number} of axis {axis}", kind,
                                     lambda arrays: table)
            return self._loaded(pointer, default_spec(table.shape), (1,), (place[2 + axis],), count,
                                scope, "int" if kind == "int" else "VALUE")

        def tap(row: str, column: str) -> str:
            return self.value(source, (*place[:2], row, column), count, scope)

        if part.mode == "nearest":
            return tap(*(looked_up(axis, 0, nearest(part, axis)) for axis in (0, 1)))
        (top, bottom, below), (left, right, beside) = (
            [looked_up(axis, number, table) for number, table in enumerate(linear(part, axis))]
            for axis in (0, 1))
        first, second = (
            self._declared("VALUE", f"{tap(top, column)} * (ONE - {below}) + "
                                    f"{tap(bottom, column)} * {below}", scope)
            for column in (left, right))
        return self._declared("VALUE", f"{first} * (ONE - {beside}) + {second} * {beside}", scope)

    def _copied(self, part: CopyProblem, place: tuple[str, ...], scope: _Scope) -> tuple[str, ...]:
        """Return the place that a copy reads."""
        terms: list[list[tuple[int, str]]] = [[] for _ in part.starts]
        for dim, step, at in zip(part.dims, part.steps, place, strict=True):
            if dim is not None:
                terms[dim].append((step, at))
        return tuple(self._short(_sum(own, start), scope)
                     for own, start in zip(terms, part.starts, strict=True))

    def _reshaped(self, source: Sequence[int], target: Sequence[int], place: tuple[str, ...],
                  scope: _Scope) -> tuple[str, ...]:
        """Return the place of an element before a reshape."""
        found = ["0"] * len(source)
        for froms, tos in _groups(source, target):
            strides = dense_strides([target[dim] for dim in tos])
            index = self._short(_sum([(stride, place[dim]) for stride, dim in zip(
                strides, tos, strict=True)]), scope)
            for dim, at in zip(froms, self.divided(index, [source[dim] for dim in froms], scope),
                               strict=True):
                found[dim] = at
        return tuple(found)

    def _short(self, text: str, scope: _Scope) -> str:
        return text if text.isalnum() else self._declared("int", text, scope)


def _broadcast(shape: Sequence[int], place: Sequence[str]) -> tuple[str, ...]:
    """Return the place in an operand that is broadcast to a result."""
    return tuple("0" if size == 1 else at for size, at in zip(shape, place, strict=True))


def _sum(terms: Sequence[tuple[int, str]], start: int = 0) -> str:
    """Return the C expression of a sum of products."""
    texts = [at if factor == 1 else f"{at} * {factor}" for factor, at in terms
             if factor and at != "0"]
    return " + ".join([*texts, *([str(start)] if start or not texts else [])])


def _groups(source: Sequence[int],
            target: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the dimensions of two shapes of as many elements that correspond to each other.

    A group has consecutive dimensions of either shape, as few as have equally many elements.
    """
    first, second = 0, 0
    while first < len(source) or second < len(target):
        starts = first, second
        sizes = [1, 1]
        while sizes[0] != sizes[1] or (first, second) == starts:
            if second == len(target) or (first < len(source) and sizes[0] <= sizes[1]):
                sizes[0] *= source[first]
                first += 1
            else:
                sizes[1] *= target[second]
                second += 1
        yield [*range(starts[0], first)], [*range(starts[1], second)]


def _in_rows(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(arrays[name], np.float32)


def _indices(name: str, length: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the indices of a gather along an axis of a length, from 0 and in range."""
    indices = arrays[name]
    return np.ascontiguousarray(
        np.clip(np.where(indices < 0, indices + length, indices), 0, length - 1), np.int32)
