"""The state of lowering: a graph and the layers made from it.

This module also makes the layers that convert callers' tensors (bytes, float16, images in NHWC) to
the graph's inputs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gossamer.expression import Composer, Expression, ExpressionStep, apply, identity
from gossamer.facts import BYTES, NARROW, REAL, ValueFacts, are_scaled_signs
from gossamer.model.graph import Node, StaticGraph, names_of, unused_name
from gossamer.model.input_format import InputFormat
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.copy import problem as copy_problem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import ReshapeProblem
from gossamer.ops.weights import WeightsInfo, WeightsStore
from gossamer.plan.program import Layer
from gossamer.tensor import TensorSpec, default_spec


class LowerState:
    """A graph, with the layers and constants made from it.

    store: facts and packed forms of the layers' weights; lowering adds the facts that are missing.
    facts: value facts (bounds, and a grid of possible values) of values and constants, by name.
    swapped: names of matrices, by the names of their transposes.
    """

    def __init__(self, static: StaticGraph, store: WeightsStore,
                 facts: Mapping[str, ValueFacts]) -> None:
        self.static = static
        self._store = store
        self._facts = dict(facts)
        self._matrices: dict[str, str] = {}
        self.swapped: dict[str, str] = {}
        self.layers: list[Layer] = []
        self.constants: dict[str, np.ndarray] = {}
        self.read = {name for node in static.nodes for name in node.inputs}
        self.read |= {info.name for info in static.graph.outputs}

    def constant(self, name: str) -> np.ndarray | None:
        """Return the array of a constant at this batch size; None for other values."""
        return self.static.constants.get(name)

    def weight(self, name: str) -> np.ndarray | None:
        """Return a constant that all batch sizes share, or None.

        The batch sizes also share the packed forms of the constant. Returns None for a value that
        is computed at run time, and for a constant that exists only at this batch size.
        """
        return self.static.graph.constants.get(name)

    def spec(self, name: str) -> TensorSpec:
        """Return the spec of a value in the default layout."""
        array = self.constant(name)
        if array is not None:
            return default_spec(array.shape, str(array.dtype))
        return default_spec(self.static.shapes[name], self.static.dtypes[name])

    def add(self, node: Node, problem: Problem, inputs: Sequence[str],
            weights: Mapping[str, np.ndarray] | None = None, *,
            outputs: Sequence[str] | None = None, name: str | None = None) -> None:
        """Add a layer.

        outputs, name: outputs and name of the layer; by default those of the node.
        """
        for value in inputs:
            array = self.constant(value)
            if array is not None:
                self.constants[value] = array
        info = getattr(problem, "weights_info", None)
        density = None if info is None else info.density
        names = list(outputs or node.outputs)
        self.layers.append(Layer(
            name or node.name, list(inputs), names, problem, weights or {}, density, node.source,
            facts=self._few_valued(names), store=self._store))

    def copy(self, node: Node, problem: CopyProblem, **names: Any) -> None:
        """Add a copy of a node's first input.

        names: as for add().
        """
        inputs = node.inputs[:1]
        self.add(node, replace(problem, facts=self.facts(inputs)), inputs, **names)

    def weights_info(self, node: Node, weight: np.ndarray) -> WeightsInfo:
        """Return the density, mask hash and facts of a node's weights.

        The weights are the node's second input.
        """
        if node.name not in self._store.infos:
            self._store.infos[node.name] = _weights_info(weight, self.stated(node.inputs[1]))
        return self._store.infos[node.name]

    def facts(self, names: Sequence[str]) -> tuple[ValueFacts, ...]:
        """Return the value facts of a problem's run-time inputs.

        The result is empty if no input is known to have few distinct values.
        """
        facts = tuple(self.stated(name) for name in names)
        return facts if any(fact != REAL for fact in facts) else ()

    def _few_valued(self, names: Sequence[str]) -> dict[str, ValueFacts]:
        """Return the facts of values with few distinct values, by the values' names.

        These facts state whether a value may be NaN, because conversions depend on this. The facts
        in problems do not state this.
        """
        return {name: replace(facts, nan=self._facts[name].nan) for name in names
                if (facts := self.stated(name)) != REAL}

    def stated(self, name: str) -> ValueFacts:
        """Return a value's facts, widened by shared_facts()."""
        return shared_facts(replace(self._facts.get(name, REAL), nan=False))

    def transposed(self, node: Node, name: str) -> str:
        """Add a transposed copy of a matrix; return the name of the copy."""
        target = f"{name} transposed for {node.name}"
        source = self.spec(name)
        self.add(node, copy_problem.transpose(source, (1, 0)), [name], outputs=[target],
                 name=target)
        self.define(target, source.shape[::-1], source.dtype)
        return target

    def define(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """Add a value that the graph does not have."""
        self.static.shapes[name] = shape
        self.static.dtypes[name] = dtype

    def matrix(self, node: Node, name: str) -> str:
        """Return the name of a value reshaped to a matrix.

        The rows of the matrix are the vectors along the value's last axis. A matrix is not
        reshaped; any other value is reshaped once for all readers.
        """
        if len(self.spec(name).shape) == 2:
            return name
        if name not in self._matrices:
            target = self.define_matrix(name)
            self.reshape(node, name, target, self.spec(target).shape, name=target)
        return self._matrices[name]

    def define_matrix(self, name: str) -> str:
        """Define the matrix to which a value is reshaped; return the name of the matrix."""
        spec = self.spec(name)
        matrix = self._matrices[name] = f"rows of {name}"
        self.define(matrix, (math.prod(spec.shape[:-1]), spec.shape[-1]), spec.dtype)
        self._facts[matrix] = self._facts.get(name, REAL)
        return matrix

    def reshape(self, node: Node, source: str, target: str, shape: Sequence[int], *,
                name: str | None = None) -> None:
        """Add a reshape, whose output is a view of the source's memory.

        name: name of the layer; by default the name of the node.
        """
        if self.constant(source) is not None:
            self.constants[source] = self.static.constants[source]
        self.layers.append(Layer(
            name or node.name, [source], [target],
            ReshapeProblem(self.spec(source), tuple(shape)), source=node.source,
            facts=self._few_valued([target]), store=self._store))

    def epilogue(self, node: Node) -> tuple[Epilogue, list[str], dict[str, np.ndarray]]:
        """Return a node's epilogue, and the epilogue's run-time operands and constants."""
        expression: Expression = node.attributes.get("epilogue") or identity()
        kinds, values, weights = [], [], {}
        for index, name in enumerate(node.inputs[2:]):
            array = self.weight(name)
            if array is None:
                kinds.append("tensor")
                values.append(name)
            else:
                kinds.append("channel")
                weights[f"operand{index}"] = array
        return Epilogue(expression, tuple(kinds)), values, weights

    def expression(self, node: Node, operands: Sequence[str], expression: Expression) -> None:
        """Add a layer that evaluates an expression of values and constants.

        A constant of one element that exists only at this batch size becomes part of the
        expression.
        """
        operands, expression = self._with_numbers(operands, expression)
        arrays = [self.weight(name) for name in operands]
        constants = tuple(i for i, array in enumerate(arrays) if array is not None)
        dtypes = tuple(self.static.dtypes[name] for name in node.outputs)
        weights = {f"operand{i}": array for i, array in enumerate(arrays) if array is not None}
        values = [name for name, array in zip(operands, arrays, strict=True) if array is None]
        result = self.stated(node.outputs[0]) if len(node.outputs) == 1 else REAL
        problem = ElementwiseProblem(tuple(self.spec(name) for name in operands), expression,
                                     dtypes, constants, facts=self.facts(values), result=result)
        self.add(node, problem, values, weights)

    def _with_numbers(self, operands: Sequence[str],
                      expression: Expression) -> tuple[Sequence[str], Expression]:
        """Return an expression with the numbers that only this batch size has, and its operands."""
        specs = [self.spec(name) for name in operands]
        arrays = [array if array is not None and array.size == 1 else None
                  for array in map(self.constant, operands)]
        rank = max(len(spec.shape) for spec in specs)
        if all(array is None for array in arrays) or any(
                spec.dtype != "float32" for spec in specs) or not any(
                array is None and len(spec.shape) == rank
                for spec, array in zip(specs, arrays, strict=True)):
            return operands, expression
        composer = Composer()
        return composer.build(*composer.inline(
            expression, list(map(composer.operand_or_constant, operands, arrays))))


def _weights_info(weight: np.ndarray, facts: ValueFacts) -> WeightsInfo:
    if not weight.size:
        return WeightsInfo()
    nonzero = weight != 0
    if nonzero.all():
        return WeightsInfo(facts=facts, scaled_signs=are_scaled_signs(weight))
    density = float(np.count_nonzero(nonzero)) / weight.size
    mask_hash = hashlib.sha256(np.packbits(nonzero).tobytes()).hexdigest()[:16]
    return WeightsInfo(density, mask_hash, facts, dense_groups=_dense_groups(nonzero))


def _dense_groups(nonzero: np.ndarray) -> float:
    """Return the share of groups that have more than two nonzero weights.

    A group is four consecutive weights along axis 1.
    """
    if nonzero.ndim < 2:
        return 1.0
    counts = np.add.reduceat(nonzero, np.arange(0, nonzero.shape[1], 4), axis=1, dtype=np.uint8)
    return float(np.count_nonzero(counts > 2)) / counts.size


@dataclass(frozen=True)
class GivenInputs:
    """A network's inputs in the callers' formats, at one batch size.

    layers: for each input that has an InputFormat, the layer that computes the input from the
    caller's tensor.
    specs: the spec of each caller's tensor, by the tensor's name.
    names: for each tensor that a layer converts, the name of the input, by the tensor's name.
    """

    layers: list[Layer] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def given_inputs(static: StaticGraph, store: WeightsStore) -> GivenInputs:
    """Return the inputs of a graph in the callers' formats.

    store: the packed weights of the network's layers.
    """
    result = GivenInputs()
    taken, layers = names_of(static.graph), {node.name for node in static.graph.nodes}
    for info in static.graph.inputs:
        spec = default_spec(static.shapes[info.name], static.dtypes[info.name])
        if info.given is None:
            result.specs[info.name] = spec
            continue
        value = unused_name(taken, f"given {info.name}")
        form = info.given.format(len(spec.shape))
        result.specs[value] = TensorSpec(spec.shape, form)
        result.names[value] = info.name
        expression, constants = _affine(info.given, spec)
        problem = ElementwiseProblem(
            (spec, *(default_spec(array.shape) for array in constants)), expression,
            constants=tuple(range(1, len(constants) + 1)), formats=(form,))
        weights = {f"operand{index}": array for index, array in enumerate(constants, start=1)}
        result.layers.append(Layer(
            unused_name(layers, f"input {info.name}"), [value], [info.name], problem, weights,
            source=f"input {info.name!r} as {info.given}", store=store))
    return result


def _affine(given: InputFormat, spec: TensorSpec) -> tuple[Expression, list[np.ndarray]]:
    """Return the expression that applies a format's factors and shifts.

    A number that all channels share is a constant of the expression. Numbers that differ between
    channels are further inputs of the expression; the arrays of these inputs are returned, too.
    """
    expression, constants = identity(), []
    for name, numbers, neutral in (("mul", given.factors, 1.0), ("add", given.shifts, 0.0)):
        if len(numbers) > 1:
            constants.append(np.array(numbers, np.float32).reshape(
                -1, *(1,) * (len(spec.shape) - 2)))
            expression = expression.then(apply(name))
        elif numbers != (neutral,):
            expression = expression.then(Expression(
                1, (ExpressionStep("constant", (), numbers), ExpressionStep(name, (0, 1)))))
    return expression, constants


def shared_facts(facts: ValueFacts) -> ValueFacts:
    """Return a value's facts, widened for use in problems.

    Values that algorithms treat in the same way get equal facts; the layers that read such values
    then share measurements. A value that may have many distinct values gets REAL.

    facts: all known facts about the value.
    """
    if facts.few_values and facts.is_integer and (facts.count or 0) > 3:
        return next((wider for wider in (BYTES, NARROW) if facts.largest <= wider.largest), facts)
    return facts if facts.few_values else REAL
