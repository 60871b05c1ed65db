"""The backend "gossamer" of torch.compile."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import SkipFrame
from torch._guards import TracingContext

from gossamer import debug
from gossamer.errors import (
    GossamerError,
    GossamerWarning,
    InputError,
    UnsupportedError,
    did_you_mean,
    first_line,
    quoted,
)
from gossamer.ops.host_threads import ALL
from gossamer.plan.candidate import counted
from gossamer.plan.policy import Policy
from gossamer.torch.dynamo_graph import TensorGraph, set_weight, tensor_graph
from gossamer.torch.effects import (
    Effects,
    effects_of,
    random_numbers_restored,
    users_state,
    without_writes,
)
from gossamer.torch.optimize import check_tolerance, optimize
from gossamer.torch.optimized_module import OptimizedModule
from gossamer.torch.parts import Left, operators_of, parts_of
from gossamer.torch.weights import Watch, Weights

_OPTIONS = {"precision", "effort", "budget", "tolerance", "threads"}
"""Options that this backend passes to `optimize`."""
LEAST_OPERATORS = 3
"""Default minimum number of operators in a part: a call of a part costs about as much time as three
of torch's kernel launches."""
_MOST_FORMS = 8
"""Largest number of combinations of input shapes and dtypes that gossamer computes per graph."""
_MANY_CHANGES = 8
"""A graph is left to torch if its weights have changed in more calls than this, and in more than a
quarter of all its calls."""
_MOST_REPORTS = 64
"""Number of reports that are kept."""


@dataclass
class GraphReport:
    """Which operators of a torch.compile graph gossamer computes.

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
        lines = [f"gossamer computes {self.taken} of {self.operators} operators in "
                 f"{counted(self.parts, 'part')} of the graph"]
        return "\n".join([*lines, *(f"left to torch: {left}" for left in self.left)])


def _nothing_taken(operators: int, error: Exception) -> GraphReport:
    return GraphReport(operators, 0, 0, [Left("the whole graph", "", first_line(error), 1.0)])


reports: deque[GraphReport] = deque(maxlen=_MOST_REPORTS)
"""The reports on the most recent graphs, oldest first."""


def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any], *,
            options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return a function that computes a graph of torch.compile.

    gossamer computes the graph, or parts of it, if it can; torch computes the rest.

    graph_module: the graph.
    example_inputs: the arguments of the graph.
    options: options that torch.compile passes on: precision, effort, budget, tolerance and threads
    as for `gossamer.optimize`, and least_operators, the minimum number of operators in a part.
    Raises InputError for other options and wrong values.
    """
    chosen = dict(options or {})
    least = chosen.pop("least_operators", LEAST_OPERATORS)
    if unknown := sorted(set(chosen) - _OPTIONS):
        raise InputError(f"options: the backend gossamer has no option {quoted(unknown[0])}; its "
                         f"options: least_operators, {', '.join(sorted(_OPTIONS))}"
                         f"{did_you_mean(unknown[0], [*_OPTIONS, 'least_operators'])}")
    _check_values(chosen, least)
    if (reason := users_state(graph_module)) and TracingContext.try_get() is not None:
        # Dynamo does not guard on functions that it was told not to trace: if one of them were
        # replaced by another function, Dynamo would still reuse this graph
        error = UnsupportedError(reason)
        reports.append(_nothing_taken(operators_of(graph_module), error))
        raise SkipFrame(str(error))
    if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False)
                                       for value in example_inputs):
        warnings.warn("a graph is left to torch because gossamer computes no gradients; call the "
                      "compiled module within torch.no_grad() or torch.inference_mode()",
                      GossamerWarning, stacklevel=2)
        return graph_module.forward
    try:
        graph = tensor_graph(graph_module, example_inputs)
        effects = effects_of(graph.module, [example_inputs[index] for index in graph.inputs])
    except Exception as error:
        reason = first_line(error)
        warnings.warn(f"a graph is left to torch: {reason}", GossamerWarning, stacklevel=2)
        reports.append(_nothing_taken(operators_of(graph_module), error))
        return graph_module.forward
    key = (_content(graph), repr((sorted(chosen.items()), least)))
    with _lock:
        # Dynamo passes the same graph again for another batch size
        plans = _known.get(key)
        if plans is None:
            plans = _known[key] = _Plans(graph, effects, chosen, least)
    return _CompiledGraph(graph_module, graph, plans)


def _check_values(options: Mapping[str, Any], least: Any) -> None:
    """Raise InputError if an option has a wrong value.

    Without this check, every graph would fail and be left to torch.
    """
    Policy(options.get("effort"), options.get("precision") or "fp32",
           budget_s=options.get("budget"), threads=options.get("threads", ALL))
    check_tolerance(options.get("tolerance"))
    if not isinstance(least, int) or least < 0:
        raise InputError(f"options: least_operators {quoted(least)}: expected a whole number")


_lock = threading.Lock()
_known: weakref.WeakValueDictionary[Any, _Plans] = weakref.WeakValueDictionary()
"""The plans that are still referenced, by the contents of their graphs and their options."""


def _content(graph: TensorGraph) -> Any:
    """Return a key of a graph's computation, independent of names.

    Graphs with the same operators, functions, constants and weights have equal keys.
    """
    indices = {node: index for index, node in enumerate(graph.module.graph.nodes)}

    def content(node: fx.Node) -> Any:
        target = node.target if node.op == "call_function" else str(node.target)
        if node.op == "get_attr":
            target = id(attrgetter(str(node.target))(graph.module))
        elif node.op == "placeholder":
            target = ""
        arguments = fx.map_arg((node.args, dict(node.kwargs)), lambda each: f"%{indices[each]}")
        return node.op, target, repr(arguments)

    return tuple(map(content, indices))


class _CompiledGraph:
    """A callable graph of Dynamo, computed by plans or by torch."""

    def __init__(self, original: fx.GraphModule, graph: TensorGraph, plans: _Plans) -> None:
        self._original = original
        self._graph = graph
        self._plans = plans

    def __call__(self, *arguments: Any) -> Any:
        graph = self._graph
        for index, number in graph.numbers.items():
            if arguments[index].item() != number:
                return self._original(*arguments)
        tensors = [arguments[index] for index in graph.inputs]
        function = self._plans.function([arguments[index] for index in graph.weights], tensors)
        if function is None:
            return self._original(*arguments)
        try:
            with (random_numbers_restored(tensors, after_errors_only=True)
                  if self._plans.effects.random else nullcontext()):
                return function(*tensors)
        except GossamerError as error:
            # some functions support only the batch size for which they were made
            debug.logger.info("a call is left to torch: %s", error)
            return self._original(*arguments)


class _Plans:
    """The functions that compute a graph.

    There is one function for each combination of input dtypes and shapes (without the batch size).

    module: the graph, with weights as attributes.
    effects: the side effects of the graph.
    """

    def __init__(self, graph: TensorGraph, effects: Effects, options: Mapping[str, Any],
                 least_operators: int) -> None:
        self.module = graph.module
        self.effects = effects
        self._options = options
        self._least_operators = least_operators
        self._names = list(graph.weights.values())
        self._constants = Weights(self.module, self._names)
        self._watch = self._watched([getattr(self.module, name) for name in self._names])
        self._functions: dict[Any, Callable[..., Any] | None] = {}
        self._optimized: list[tuple[OptimizedModule, fx.GraphModule]] = []
        self._calls = 0
        self._changes = 0
        self._is_left = False
        self._lock = threading.RLock()

    def function(self, weights: list[Any], tensors: list[Any]) -> Callable[..., Any] | None:
        """Return the function for a call's weights and inputs; None if torch computes it.

        If another thread is making the function, the call waits for it.
        """
        if self._is_left:
            return None
        self._calls += 1
        if self._watch.change(weights + self._constants.now()):
            self._follow(weights)
            if self._is_left:
                return None
        form = tuple([(tensor.shape[1:], tensor.dtype, tensor.dim()) for tensor in tensors])
        if form in self._functions:
            return self._functions[form]
        with self._lock:
            if form not in self._functions:
                if len(self._functions) >= _MOST_FORMS or not all(
                        [size for tensor in tensors for size in tensor.shape]):
                    return None
                with random_numbers_restored(tensors):
                    self._functions[form] = self._made(tuple(tensors))
            return self._functions[form]

    def _follow(self, weights: list[Any]) -> None:
        """Update the functions to the weights of a call.

        The functions are created anew if a weight is a different tensor object than before, or does
        not have zeros at the positions where a plan requires them.
        """
        with self._lock:
            if not self._watch.change(weights + self._constants.now()):
                return
            is_other = not all(map(is_, weights, self._watch.weights))
            self._changes += 1
            # create the watch before the weights are read: a weight that changes in between is then
            # noticed
            watch = self._watched(weights)
            for name, tensor in zip(self._names, weights, strict=True):
                set_weight(self.module, name, tensor)
            if self._changes > _MANY_CHANGES and 4 * self._changes > self._calls:
                # tensors that change in nearly every call are not weights
                self._is_left = True
                warnings.warn("a graph is left to torch: its weights change from call to call",
                              GossamerWarning, stacklevel=2)
                return
            try:
                for fast, part in () if is_other else self._optimized:
                    fast.update(part)
            except GossamerError:
                is_other = True
            if is_other:
                self._forget()
            # set last: until then, calls in other threads see a change and wait for the lock
            self._watch = watch

    def _watched(self, weights: list[Any]) -> Watch:
        return Watch(self._names + self._constants.paths, weights + self._constants.now())

    def _forget(self) -> None:
        self._functions.clear()
        self._optimized.clear()

    def _made(self, tensors: tuple[Any, ...]) -> Callable[..., Any] | None:
        optimized: list[tuple[OptimizedModule, fx.GraphModule]] = []

        def made(part: fx.GraphModule, arguments: tuple[Any, ...]) -> Any:
            fast = optimize(part, arguments, strict=True, follow=None, **self._options)
            optimized.append((fast, part))
            return fast

        def tried(part: fx.GraphModule, arguments: tuple[Any, ...]) -> Any:
            return optimize(part, arguments, strict=True, follow=None)

        count = operators_of(self.module)
        try:
            if count < self._least_operators:
                raise InputError(f"the graph has {count} operators")
            if self.effects.random or self.effects.views:
                raise InputError("torch computes some of its operators")
            fast = made(self.module, tensors)
        except Exception as error:
            debug.logger.info("a graph is split into several parts: %s", first_line(error))
        else:
            reports.append(GraphReport(count, count, 1))
            self._optimized += optimized
            return fast
        optimized.clear()
        try:
            reasons = dict.fromkeys(self.effects.random, "it draws random numbers")
            parts = parts_of(without_writes(self.module, self.effects), tensors, made, tried,
                             self._least_operators, reasons | self.effects.views)
        except Exception as error:
            reports.append(_nothing_taken(count, error))
            return None
        report = GraphReport(parts.taken + len(parts.left), parts.taken, len(parts.optimized),
                             parts.left)
        reports.append(report)
        debug.logger.info("%s", report)
        self._optimized += optimized
        return parts.module if parts.optimized else None
