"""The backend "gossamer" of torch.compile."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from gossamer import debug
from gossamer.errors import GossamerError, GossamerWarning, InputError, first_line, quoted
from gossamer.torch.dynamo_graph import TensorGraph, set_weight, tensor_graph
from gossamer.torch.optimize import optimize
from gossamer.torch.parts import Left, parts_of
from gossamer.torch.watch import CALLS

_OPTIONS = {"precision", "effort", "budget", "tolerance", "threads"}
"""The options of this backend that `optimize` has too."""
LEAST_OPERATORS = 3
"""The fewest operators of a part: calling a part costs about as much as three launches of torch."""
_MOST_FORMS = 8
"""The most combinations of shapes and dtypes of inputs for which gossamer computes one graph."""
_MOST_REPORTS = 64
"""The most reports that are kept."""


@dataclass
class GraphReport:
    """A report on a graph of torch.compile: which of its operators gossamer computes.

    operators: number of operators in the graph.
    taken: number of operators that gossamer computes.
    parts: number of optimised modules that compute these operators.
    left: the operators that are left to torch.
    """

    operators: int
    taken: int
    parts: int
    left: list[Left] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"gossamer computes {self.taken} of {self.operators} operators in {self.parts} "
                 "parts"]
        return "\n".join([*lines, *(f"left to torch: {left}" for left in self.left)])


reports: deque[GraphReport] = deque(maxlen=_MOST_REPORTS)
"""The reports on the last graphs, the latest last."""


_known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
"""The compiled graphs that are alive, by their code, their options and the ids of their weights."""


def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any], *,
            options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Returns a function that computes a graph of torch.compile: by gossamer where possible, else
    by torch.

    graph_module: the graph.
    example_inputs: the arguments of the graph.
    options: options that torch.compile passes on: precision, effort, budget, tolerance and threads
    as for `gossamer.optimize`, and least_operators, the fewest operators of a part. Raises
    InputError for other options.
    """
    chosen = dict(options or {})
    least = chosen.pop("least_operators", LEAST_OPERATORS)
    if unknown := sorted(set(chosen) - _OPTIONS):
        raise InputError(f"options: {quoted(unknown[0])} is none of the backend gossamer; its "
                         f"options: least_operators, {', '.join(sorted(_OPTIONS))}")
    if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False)
                                       for value in example_inputs):
        warnings.warn("gossamer computes no gradients, and this graph is left to torch; call the "
                      "compiled module within torch.no_grad() or torch.inference_mode()",
                      GossamerWarning, stacklevel=2)
        return graph_module.forward
    try:
        graph = tensor_graph(graph_module, example_inputs)
    except GossamerError as error:
        warnings.warn(f"a graph is left to torch: {error}", GossamerWarning, stacklevel=2)
        return graph_module.forward
    return _CompiledGraph(graph_module, graph, chosen, least)


class _CompiledGraph:
    """A graph of Dynamo, with one function for each combination of the dtypes and the shapes of its
    inputs, where shapes are compared without the batch size."""

    def __init__(self, original: fx.GraphModule, graph: TensorGraph, options: Mapping[str, Any],
                 least_operators: int) -> None:
        self._original = original
        self._graph = graph
        self._options = options
        self._least_operators = least_operators
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._calls = 0
        # Dynamo passes the same graph again for another batch size: the functions of the first
        # graph are used again
        key = (graph.module.code, tuple(id(getattr(graph.module, name))
                                        for name in graph.weights.values()),
               repr((sorted(options.items()), least_operators)))
        if (known := _known.get(key)) is not None:
            self._functions, graph.module = known._functions, known._graph.module
        else:
            _known[key] = self

    def __call__(self, *arguments: Any) -> Any:
        graph = self._graph
        for index, number in graph.numbers.items():
            if arguments[index].item() != number:
                return self._original(*arguments)
        self._calls += 1
        if self._calls >= CALLS:
            self._calls = 0
            self._take_weights(arguments)
        tensors = [arguments[index] for index in graph.inputs]
        form = tuple([(tensor.shape[1:], tensor.dtype, tensor.dim()) for tensor in tensors])
        function = self._functions.get(form)
        if function is None:
            if len(self._functions) >= _MOST_FORMS or not all(
                    [size for tensor in tensors for size in tensor.shape]):
                return self._original(*arguments)
            function = self._functions[form] = self._made(tuple(tensors))
        try:
            return function(*tensors)
        except InputError as error:
            # some functions compute only the batch size for which they were made
            debug.logger.info("a call is left to torch: %s", error)
            return self._original(*arguments)

    def _take_weights(self, arguments: Sequence[Any]) -> None:
        """Makes the weights among the arguments of a call the weights of the graph's module. Where
        a weight is another tensor than before, the functions are made again."""
        changed = False
        for index, name in self._graph.weights.items():
            if getattr(self._graph.module, name) is not arguments[index]:
                set_weight(self._graph.module, name, arguments[index])
                changed = True
        if changed:
            self._functions.clear()

    def _made(self, tensors: tuple[Any, ...]) -> Callable[..., Any]:
        module = self._graph.module

        def made(part: fx.GraphModule, arguments: tuple[Any, ...]) -> Any:
            return optimize(part, arguments, strict=True, follow=True, **self._options)

        def tried(part: fx.GraphModule, arguments: tuple[Any, ...]) -> Any:
            return optimize(part, arguments, strict=True)

        count = sum(node.op.startswith("call_") for node in module.graph.nodes)
        try:
            if count < self._least_operators:
                raise InputError(f"the graph has {count} operators")
            fast = made(module, tensors)
        except GossamerError as error:
            debug.logger.info("a graph is taken in parts: %s", first_line(error))
        else:
            reports.append(GraphReport(count, count, 1))
            return fast
        parts = parts_of(module, tensors, made, tried, self._least_operators)
        report = GraphReport(parts.taken + len(parts.left), parts.taken, len(parts.optimized),
                             parts.left)
        reports.append(report)
        debug.logger.info("%s", report)
        return parts.module
