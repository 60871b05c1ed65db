"""Reductions of rows, with element-wise arithmetic before and after them, in one kernel.

Softmaxes and layer norms are reductions, too. Networks written in PyTorch compute many other norms
by means, differences, squares and square roots. Examples are the RMS norm, group norm, EvoNorm-S0
(H. Liu, A. Brock, K. Simonyan, Q. Le, "Evolving normalization-activation layers", NeurIPS 2020) and
the filter response norm (S. Singh, S. Krishnan, CVPR 2020). As separate layers, each of these steps
reads and writes whole tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gossamer.device.base import Device
from gossamer.expression import Composer, Value
from gossamer.ops.algorithm import Problem, State, Variant
from gossamer.ops.copy.problem import CopyProblem, expand, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, ReshapeProblem, Source
from gossamer.ops.fused.views import move_of, moves
from gossamer.ops.layer_norm import OnePassLayerNorm
from gossamer.ops.peak_rates import moved_us
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.rows.config import GROUP
from gossamer.ops.rows.expression import (
    Axes,
    Phase,
    RowExpression,
    RowOperand,
    split_axes,
)
from gossamer.ops.rows.kernel import row_launches, row_variants
from gossamer.ops.softmax import OnePassSoftmax
from gossamer.ops.strided import cannot_compile, common_sizes, layout_variants
from gossamer.ops.view import Move, View
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

REDUCTIONS = frozenset({"reduce", "softmax", "layer_norm"})
"""The ops from which row expressions are made."""
_OPS = frozenset({"copy", "elementwise", "reshape"}) | REDUCTIONS
_EXPRESSIONS: dict[str, Callable[..., RowExpression]] = {
    "softmax": OnePassSoftmax().expression, "layer_norm": OnePassLayerNorm().expression}
"""For each op, the function that returns the row expression of a layer by itself."""
_MOST_REDUCTIONS = 4
_MOST_OPERANDS = 12
"""Maximum number of operands. Each needs registers for its place and its values."""
_MOST_LOOPS = 4
"""Maximum number of loops over the rows, and over the elements of a row, in one layout."""


class RowExpressionFusion(FusionAlgorithm):
    """A row expression in one launch, or in one launch per reduction and one for the result.

    In a single launch, each element is read from memory only once if the work-items of a row can
    keep the row in registers.
    """

    name = "row_expression"
    patterns = ()

    def matches(self, ops: Sequence[str]) -> bool:
        # a reduction that is only reshaped is as fast by itself; a norm may be transposed
        needed = {"elementwise"} if "reduce" in ops else {"elementwise", "copy"}
        return _OPS.issuperset(ops) and not (
            needed.isdisjoint(ops) or REDUCTIONS.isdisjoint(ops))

    def recognises(self, problem: FusionProblem) -> bool:
        return row_expression_of(problem) is not None

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if (reason := cannot_compile(problem, device)) is not None:
            return reason
        if row_expression_of(problem) is None:
            return "needs reductions over the same dimensions, and one result"
        if device.limits.work_group_size < GROUP:
            return f"needs work-groups of {GROUP}"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterable[Variant]:
        expression = _expression(problem)
        variants = [variant for variant in layout_variants(problem)
                    if _has_places(expression, variant.inputs)]
        variants += [variant.as_fp16 for variant in variants]
        return row_variants(expression, variants, device)

    def expected_us(self, problem: FusionProblem, variant: Variant, device: Device) -> float:
        # slices may read a small part of an input
        expression = _expression(problem)
        read = sum(expression.count(operand) * (
            4 if operand.name else variant.inputs[operand.number].stored_dtype.itemsize)
            for operand in expression.operands)
        return moved_us(read + variant.outputs[0].nbytes, device)

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        state.launches = row_launches(_expression(problem), weights, variant, device)
        return state


def _expression(problem: FusionProblem) -> RowExpression:
    expression = row_expression_of(problem)
    assert expression is not None  # supports() refuses other problems
    return expression


@functools.lru_cache(maxsize=4096)
def row_expression_of(problem: FusionProblem) -> RowExpression | None:
    """Return a fusion as a row expression.

    The operands are the fusion's inputs, or slices and transpositions of them, and constants.
    Returns None if the parts are no row expression: reductions, softmaxes and layer norms of
    float32 tensors with equal numbers of elements over the same dimensions; reshapes and
    expansions; and element-wise arithmetic, continuous but for roundings to fewer bits, on tensors
    that have the shape of the whole tensor or of the reductions' results. The result may be
    transposed.
    """
    if len(problem.exits) != 1 or not all(map(may_belong, problem.parts)):
        return None
    whole = {part.inputs[0].size for part in problem.parts if part.op in REDUCTIONS}
    if len(whole) != 1 or max(whole) < 2:
        return None
    (size,) = whole
    moved = _moved_entries(problem)
    computed = [index for index in range(len(problem.parts)) if (index, 0) not in moved]
    shapes: list[Sequence[int]] = [
        spec.shape for index in computed for spec in _in_order(problem.parts[index])]
    read = {source for index in computed for source in problem.sources[index]}
    for source, (number, path) in moved.items():
        view = View.of(problem.inputs[number]).moved(path) if path and source in read else None
        if view is not None:
            # a dimension that several loops over memory visit is divided into these
            shapes.append([size for loops in view.dims for size, _ in loops])
    sizes = common_sizes([shape for shape in shapes if math.prod(shape) == size])
    if sizes is None:
        return None
    try:
        expression = _Composition(problem, sizes, moved).composed()
    except _NoRowExpressionError:
        return None
    return expression if _fits(expression) and _has_places(expression, problem.inputs) else None


def _moved_entries(problem: FusionProblem) -> dict[Source, tuple[int, tuple[Move, ...]]]:
    """Return the entries, and the values that are copies of them and reshapes around copies.

    The result has the number of the entry and the copies and reshapes.
    """
    found: dict[Source, tuple[int, tuple[Move, ...]]] = {
        entry: (entry[1], ()) for entry in problem.entries}
    copied = {problem.sources[index][0] for index, part in enumerate(problem.parts)
              if is_gathering(part)}
    for index, part in enumerate(problem.parts):
        number, path = found.get(problem.sources[index][0], (-1, ()))
        is_moved = is_gathering(part) or (
            isinstance(part, ReshapeProblem) and (path or (index, 0) in copied))
        if number >= 0 and is_moved:
            found[index, 0] = number, (*path, move_of(part))
    return found


def _has_places(expression: RowExpression, inputs: Sequence[TensorSpec]) -> bool:
    """Return whether nests of loops visit the inputs in these formats."""
    try:
        for operand in expression.operands:
            if not operand.name:
                expression.place(operand, inputs)
    except ValueError:
        return False
    return True


def may_belong(part: Problem) -> bool:
    """Return whether a part may belong to a row expression, judged by the part alone."""
    if any(spec.dtype != "float32" for spec in (*part.inputs, *part.outputs)):
        return False
    if isinstance(part, ElementwiseProblem):
        return part.is_continuous
    if isinstance(part, CopyProblem):
        return _is_expansion(part) or is_gathering(part)
    return part.op in REDUCTIONS or isinstance(part, ReshapeProblem)


def is_gathering(part: Problem) -> bool:
    """Return whether a part is a copy through which an entry of a row expression may be read."""
    return isinstance(part, CopyProblem) and not _is_expansion(part) and moves(part)


def _is_expansion(part: CopyProblem) -> bool:
    try:
        return replace(part, facts=()) == expand(part.input, part.output.shape)
    except ValueError:
        return False


def _is_transposition(part: CopyProblem) -> bool:
    return None not in part.dims and len(set(part.dims)) == len(part.input.shape) and (
        replace(part, facts=()) == transpose(part.input, [dim or 0 for dim in part.dims]))


def _fits(expression: RowExpression) -> bool:
    """Return whether the kernel has room for the operands, and finds one result per row if the
    target has one."""
    return (len(expression.operands) <= _MOST_OPERANDS and expression.length > 1
            and len(expression.phases) <= 1 + _MOST_REDUCTIONS
            and len(expression.kept) <= _MOST_LOOPS
            and len(expression.reduced) <= _MOST_LOOPS
            and (not expression.is_per_row or not any(
                number >= 0 and expression.varies(expression.operands[number])
                for number in expression.phases[-1].reads)))


def _in_order(part: Problem) -> list[TensorSpec]:
    """Return the specs of the tensors of a part whose elements are in the reductions' order.

    The result of the fusion may be transposed.
    """
    return ([part.input] if isinstance(part, CopyProblem) and _is_transposition(part)
            else [*part.inputs, *part.outputs])


class _NoRowExpressionError(Exception):
    """The parts of a fusion are no row expression."""


@dataclass(frozen=True)
class _Known:
    """A value that a part computes, and the dimensions of its axes."""

    value: Value
    axes: Axes


class _Composition:
    """Composes a row expression of the parts of a fusion.

    sizes: sizes of the dimensions of the whole tensor.
    moved: entries, and values that are copies of them.
    """

    def __init__(self, problem: FusionProblem, sizes: tuple[int, ...],
                 moved: Mapping[Source, tuple[int, tuple[Move, ...]]]) -> None:
        self._problem, self._sizes, self._moved = problem, sizes, moved
        self._dims = tuple(range(len(sizes)))
        self._composer = Composer()
        self._values: dict[Source, _Known] = {}
        self._operands: dict[RowOperand, int] = {}
        self._numbers: dict[str, int] = {}
        self._phases: list[Phase] = []
        self._reduced: frozenset[int] | None = None

    def composed(self) -> RowExpression:
        """Return the row expression; raise _NoRowExpressionError if the parts are none."""
        for index, part in enumerate(self._problem.parts):
            if (index, 0) in self._moved:
                continue
            if isinstance(part, ReduceProblem):
                known = self._reduced_value(index, part)
            elif part.op in _EXPRESSIONS:
                known = self._inlined(index, part)
            elif isinstance(part, ElementwiseProblem):
                known = self._computed(index, part)
            else:
                known = self._reshaped(index, part)
            self._values[index, 0] = known
        if self._problem.exits[0] not in self._values:
            raise _NoRowExpressionError
        result = self._values[self._problem.exits[0]]
        self._add_phase("", result.value)
        assert self._reduced is not None  # a part is a reduction
        return RowExpression(self._sizes, self._reduced, tuple(self._operands),
                             tuple(self._phases), result.axes)

    def _whole(self, shape: Sequence[int]) -> Axes:
        """Return the dimensions of the axes of a tensor that has all elements."""
        return _found(split_axes(shape, self._dims, self._sizes))

    def _add_phase(self, kind: str, value: Value) -> None:
        names, expression = self._composer.build(value)
        self._phases.append(Phase(kind, tuple(self._numbers[name] for name in names), expression))

    def _operand(self, operand: RowOperand) -> Value:
        number = self._operands.setdefault(operand, len(self._operands))
        self._numbers[f"operand {number}"] = number
        return self._composer.operand(f"operand {number}")

    def _source(self, source: Source, axes: Axes | None) -> _Known:
        """Return the value of a source.

        axes: the dimensions of the axes of an entry or of a copy of it; None if it has all
        elements.
        """
        if source in self._values:
            return self._values[source]
        axes = self._whole(self._problem.spec(source).shape) if axes is None else axes
        number, path = self._moved[source]
        return _Known(self._operand(RowOperand(axes, number=number, path=path)), axes)

    def _reduced_value(self, index: int, part: ReduceProblem) -> _Known:
        known = self._source(self._problem.sources[index][0], None)
        self._reduce_along(known, (dim for axis in part.axes for dim in known.axes[axis]))
        axes = tuple(() if axis in part.axes else own for axis, own in enumerate(known.axes)
                     if part.keepdims or axis not in part.axes)
        return _Known(self._total(part.kind, known.value), axes)

    def _reduce_along(self, known: _Known, dims: Iterable[int]) -> None:
        """Raise _NoRowExpressionError unless a value may be reduced along dimensions."""
        dims = frozenset(dims)
        if self._reduced is None:
            self._reduced = dims
        if dims != self._reduced or sum(map(len, known.axes)) != len(self._sizes):
            raise _NoRowExpressionError

    def _total(self, kind: str, value: Value) -> Value:
        """Add a reduction, and return its result."""
        number = len(self._phases)
        self._add_phase(kind, value)
        self._numbers[f"total {number}"] = -1 - number
        return self._composer.operand(f"total {number}")

    def _inlined(self, index: int, part: Problem) -> _Known:
        """Return the value of a softmax or norm, whose row expression becomes a part of this one.
        """
        own = _EXPRESSIONS[part.op](part)
        known = self._source(self._problem.sources[index][0], None)
        dims_of = {dim: known.axes[axis] for axis, dims in enumerate(own.target) for dim in dims}
        self._reduce_along(known, (each for dim in own.reduced for each in dims_of.get(dim, ())))
        values = [known.value, *(self._operand(RowOperand(
            tuple(tuple(each for dim in axis for each in dims_of[dim]) for axis in operand.axes),
            f"{index}.{operand.name}")) for operand in own.operands[1:])]
        totals: list[Value] = []
        for phase in own.phases:
            (value,) = self._composer.inline(phase.expression, [
                values[number] if number >= 0 else totals[-1 - number] for number in phase.reads])
            if phase.kind:
                totals.append(self._total(phase.kind, value))
        return _Known(value, known.axes)

    def _computed(self, index: int, part: ElementwiseProblem) -> _Known:
        sources = iter(self._problem.sources[index])
        operands: list[Source | str] = [
            f"{index}.operand{number}" if number in part.constants else next(sources)
            for number in range(len(part.operands))]
        axes = self._result_axes(part, operands)
        arguments = []
        for spec, operand in zip(part.operands, operands, strict=True):
            own = _broadcast(spec.shape, axes)
            if isinstance(operand, str):
                arguments.append(self._operand(RowOperand(own, operand)))
                continue
            known = self._source(operand, own)
            _check_broadcast(known.axes, axes)
            arguments.append(known.value)
        (value,) = self._composer.inline(part.expression, arguments)
        return _Known(value, axes)

    def _result_axes(self, part: ElementwiseProblem, operands: Sequence[Source | str]) -> Axes:
        """Return the dimensions of the axes of an element-wise result.

        A result without all elements has the dimensions of the operands that the fusion computes.
        """
        shape = part.shape
        if part.outputs[0].size == math.prod(self._sizes):
            return self._whole(shape)
        axes: list[tuple[int, ...]] = [()] * len(shape)
        for operand in operands:
            if isinstance(operand, tuple) and operand in self._values:
                own = self._values[operand].axes
                for axis, dims in enumerate(own, start=len(shape) - len(own)):
                    axes[axis] = axes[axis] or dims
        if any(math.prod(self._sizes[dim] for dim in dims) != size
               for dims, size in zip(axes, shape, strict=True)):
            raise _NoRowExpressionError
        return tuple(axes)

    def _reshaped(self, index: int, part: Problem) -> _Known:
        """Return the value of a reshape or of a copy."""
        (source,) = self._problem.sources[index]
        if not isinstance(part, CopyProblem):
            known = self._source(source, None)
            dims = [dim for axis in known.axes for dim in axis]
            return _Known(known.value, _found(split_axes(part.outputs[0].shape, dims,
                                                         self._sizes)))
        if _is_expansion(part):
            known, axes = self._source(source, None), self._whole(part.output.shape)
            _check_broadcast(known.axes, axes)
            return _Known(known.value, axes)
        if not _is_transposition(part):
            raise _NoRowExpressionError
        known = self._values[source]
        return _Known(known.value, tuple(known.axes[dim or 0] for dim in part.dims))


def _found(axes: Axes | None) -> Axes:
    if axes is None:
        raise _NoRowExpressionError
    return axes


def _broadcast(shape: Sequence[int], axes: Axes) -> Axes:
    """Return the dimensions of the axes of an operand that is broadcast to a result.

    axes: dimensions of the result's axes.
    """
    own = axes[len(axes) - len(shape):]
    return tuple(() if size == 1 else dims for size, dims in zip(shape, own, strict=True))


def _check_broadcast(axes: Axes, target: Axes) -> None:
    """Raise _NoRowExpressionError unless a value broadcasts along the target's axes."""
    own = target[len(target) - len(axes):]
    if any(have not in ((), wanted) for have, wanted in zip(axes, own, strict=True)):
        raise _NoRowExpressionError
